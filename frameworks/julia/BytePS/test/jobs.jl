# Jobs of two workers in processes of their own, with a server and without.

function run_job(file, servers)
    script = joinpath(TESTS, file)
    julia = `$(Base.julia_cmd()) --startup-file=no --project=$PACKAGE $script`
    command = `bpslaunch --workers 2 --servers $servers -- $julia`
    output = IOBuffer()
    forced = servers > 0 ? "1" : "0"
    process = withenv("BYTEPS_FORCE_DISTRIBUTED" => forced, "JULIA_NUM_THREADS" => "2", "BYTEPS_OP_TIMEOUT" => "120") do
        run(pipeline(ignorestatus(command), stdout=output, stderr=output))
    end
    text = String(take!(output))
    success(process) || print(text)
    return success(process) && count("all bodies have run", text) == 2
end

@testset "jobs" begin
    if Sys.which("bpslaunch") === nothing
        @info "skipped: bpslaunch is not in PATH"
    else
        @testset "$file, $servers servers" for file in ("job.jl", "collectives.jl"), servers in (1, 0)
            @test run_job(file, servers)
        end
    end
end
