# The structs against byteps.h itself, as the C compiler sees it.
const HEADERS = [joinpath(get(ENV, "BYTEPS_HOME", ""), "include"), joinpath(PACKAGE, "..", "..", "..")]

function header()
    for root in HEADERS, name in ["byteps.h", "byteps/byteps.h", "abi/byteps.h"]
        isfile(joinpath(root, name)) && return (root, name)
    end
    return nothing
end

@testset "structs are those of the header" begin
    found = header()
    if found === nothing || Sys.which("cc") === nothing
        @info "skipped: there is no byteps.h, or no C compiler"
    else
        structs = [
            BytePS.OpenArgs => "bps_open_args", BytePS.InfoStruct => "bps_info", BytePS.DeclareArgs => "bps_declare_args",
            BytePS.PushPullArgs => "bps_push_pull_args", BytePS.BroadcastArgs => "bps_broadcast_args",
            BytePS.BarrierArgs => "bps_barrier_args", BytePS.BufferArgs => "bps_buffer_args",
            BytePS.ProcessSetArgs => "bps_process_set_args", BytePS.CollectiveArgs => "bps_collective_args",
            BytePS.GroupArgs => "bps_group_args", BytePS.ResultStruct => "bps_result", BytePS.JoinArgs => "bps_join_args",
            BytePS.SparseArgs => "bps_sparse_args", BytePS.Ext => "bps_ext", BytePS.Streams => "bps_streams",
            BytePS.GiveUp => "bps_give_up", BytePS.Match => "bps_match",
        ]
        dtypes = [
            Int8 => "INT8", Int16 => "INT16", Int32 => "INT32", Int64 => "INT64", UInt8 => "UINT8", Float16 => "FLOAT16",
            Float32 => "FLOAT32", Float64 => "FLOAT64", ComplexF32 => "COMPLEX64", ComplexF64 => "COMPLEX128", Bool => "BOOL",
        ]
        ours, theirs = String[], String[]
        for (type, name) in structs
            push!(ours, "$name $(sizeof(type))")
            push!(theirs, "printf(\"$name %zu\\n\", sizeof($name));")
            for (i, field) in enumerate(fieldnames(type))
                push!(ours, "$name.$field $(fieldoffset(type, i))")
                push!(theirs, "printf(\"$name.$field %zu\\n\", offsetof($name, $field));")
            end
        end
        for (type, name) in dtypes
            push!(ours, "$name $(Int(BytePS.dtype(type)))")
            push!(theirs, "printf(\"$name %d\\n\", (int)BPS_$name);")
        end
        for (name, value) in ("CUDA" => BytePS.CUDA, "EXT_STREAMS" => BytePS.EXT_STREAMS, "EXT_GIVE_UP" => BytePS.EXT_GIVE_UP,
                              "EXT_MATCH" => BytePS.EXT_MATCH)
            push!(ours, "$name $(Int(value))")
            push!(theirs, "printf(\"$name %d\\n\", (int)BPS_$name);")
        end
        push!(ours, "BFLOAT16 $(Int(BytePS.BFLOAT16))")
        push!(theirs, "printf(\"BFLOAT16 %d\\n\", (int)BPS_BFLOAT16);")
        for op in [instances(BytePS.ReduceOp)..., instances(BytePS.Kind)...]
            push!(ours, "$op $(Int(op))")
            push!(theirs, "printf(\"$op %d\\n\", BPS_$op);")
        end
        mktempdir() do folder
            source, program = joinpath(folder, "structs.c"), joinpath(folder, "structs")
            write(source, "#include <stddef.h>\n#include <stdio.h>\n#include \"$(found[2])\"\nint main(void) {\n",
                  join(theirs, "\n"), "\nreturn 0;\n}\n")
            run(`cc -I$(found[1]) $source -o $program`)
            @test ours == readlines(`$program`)
        end
    end
end
