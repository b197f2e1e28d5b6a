# A job of one worker: no servers, no launcher.

failure(code, call) = try
    call()
    "nothing was thrown"
catch error
    error isa BytePSError && error.code === code ? "" : sprint(showerror, error)
end

@testset "who we are" begin
    session = Session()
    it = info(session)
    @test (it.rank, it.size, it.local_rank, it.local_size, it.failed) == (0, 1, 0, 1, false)
    @test !isempty(it.transport) && !isempty(it.scheduler)
    @test BytePS.library_version() >= v"0.1.0"
    shutdown(session)
    @test failure(:FAILED_PRECONDITION, () -> barrier(session)) == ""
    close(session)
    close(session)
    @test !isopen(session)
    @test failure(:FAILED_PRECONDITION, () -> info(session)) == ""
    @test Session(session -> 7) == 7
end

@testset "every element type" begin
    Session() do session
        for values in ([Int8(-1), 2], Int16[1, 2], Int32[1, 2], [1, 2], UInt8[1, 255], Float16[1.5, 2], [1.5f0, 2], [1.5, 2],
                       [1.0f0 - 2im, 0], [1.0 - 2im, 0], [true, false])
            array = copy(values)
            @test push_pull!(session, "sum of $(eltype(values))", array; op=SUM) === array
            @test array == values
            @test bcast!(session, "bcast of $(eltype(values))", similar(values), values) == values
        end
        @test failure(:INVALID_ARGUMENT, () -> push_pull!(session, "text", ["text"])) == ""
        @test failure(:INVALID_ARGUMENT, () -> push_pull!(session, "bits", [1.0]; op=BIT_OR)) == ""
    end
end

@testset "arrays" begin
    Session() do session
        tensor = declare(session, "t", Float32, (3, 4))
        @test push_pull!(tensor, ones(Float32, 3, 4)) == ones(3, 4)
        for (wrong, part) in [(ones(Float32, 4, 3), "(4, 3)"), (ones(3, 4), "Float64"), (ones(Float32, 4, 3)', "block of memory")]
            error = try push_pull!(tensor, wrong) catch error error end
            @test error isa BytePSError && error.code === :INVALID_ARGUMENT && occursin(part, error.message)
        end
        # Parts of arrays: what lies together can travel.
        matrix = collect(reshape(1.0:12.0, 3, 4))
        @test push_pull!(session, "column", view(matrix, :, 2)) == [4, 5, 6]
        @test failure(:INVALID_ARGUMENT, () -> push_pull!(session, "row", view(matrix, 2, :))) == ""
        @test push_pull!(session, "reshaped", reshape(view(matrix, :, 2:3), 6)) == 4:9
        @test push_pull!(session, "scalar", fill(2.0)) == fill(2.0)
        @test isempty(push_pull!(session, "empty", Float64[]))
        buffer = Buffer{Float32}(session, 2, 3)
        @test buffer == zeros(2, 3)
        buffer .= 5
        buffer[2, 3] = 6
        @test sum(push_pull!(session, "buffer", buffer)) == 31
        @test failure(:INVALID_ARGUMENT, () -> Buffer{String}(session, 1)) == ""
        @test failure(:INVALID_ARGUMENT, () -> push_pull!(session, "t\0", [1.0])) != "nothing was thrown"
        for timeout in (0, -1, NaN)
            @test failure(:INVALID_ARGUMENT, () -> push_pull!(session, "late", [1.0]; timeout=timeout)) == ""
        end
    end
end

@testset "a vector in flight stays where it is" begin
    Session() do session
        vector = ones(1000)
        request = push_pull_async!(session, "vector", vector; op=SUM)
        if VERSION < v"1.11-"
            @test_throws ErrorException resize!(vector, 1_000_000)
            @test wait(request) === vector
        else
            resize!(vector, 1_000_000)
            @test_throws ErrorException wait(request)
        end
    end
end

@testset "refused openings" begin
    error = try Session(scheduler="nowhere") catch error error end
    @test error.code === :NOT_FOUND && occursin("\"nowhere\"", error.message) && !error.retryable
    @test occursin("NOT_FOUND", sprint(showerror, error))
    @test failure(:INVALID_ARGUMENT, () -> Session(place=(1, 2))) == ""
    script = "using BytePS; try Session() catch e print(sprint(showerror, e)) end"
    command = `$(Base.julia_cmd()) --startup-file=no --project=$PACKAGE -e $script`
    said = withenv(() -> read(command, String), "BYTEPS_HOME" => "/nowhere", "BYTEPS_LIBRARY" => nothing)
    @test occursin("/nowhere/lib/libbyteps.so (from BYTEPS_HOME)", said)
end

@testset "a timeline has operations and marks" begin
    path = tempname() * ".json"
    Session() do session
        @test failure(:FAILED_PRECONDITION, () -> stop_timeline(session)) == ""
        @test failure(:INVALID_ARGUMENT, () -> start_timeline(session, "/dev/null/t.json")) == ""
        start_timeline(session, path; mark_steps=true)
        @test failure(:FAILED_PRECONDITION, () -> start_timeline(session, path)) == ""
        @test timeline_span(() -> push_pull!(session, "gradient", [1.0]; op=SUM), session, "reduction") == [1.0]
        timeline_mark(session, "ends")
        stop_timeline(session)
    end
    text = read(path, String)
    rm(path)
    for part in ("\"reduction\",\"ph\":\"B\"", "\"ends\",\"ph\":\"i\"", "\"gradient\"", "\"ph\":\"E\"", "\"STEP\"")
        @test occursin(part, text)
    end
    @test endswith(text, "\n]\n")
end
