# What each worker of a job does with collectives; started by jobs.jl.
using BytePS
using Test

const session = Session()
const rank = info(session).rank
@assert info(session).size == 2

code_of(call) = try call(); :nothing catch error error isa BytePSError ? error.code : error end

@testset "rank $rank" begin
    own, three = Float32(rank), [1.0, 2.0, 3.0]

    @testset "each kind" begin
        # Rows, Julia's last dimension, differ between ranks.
        request = allgather_async(session, "gather", fill(own, 2, rank + 1))
        @test wait(request) == [0 1 1; 0 1 1] && wait(request) === wait(request)
        @test splits(request) == [1, 2]
        @test allreduce!(session, "max", [own, 5, -own]; op=MAX) == [1, 5, 0]
        output = zeros(3)
        @test allreduce!(session, "scaled", output, three; op=SUM, scale=(0.5, 4)) === output == [4, 8, 12]
        @test allreduce!(session, "adasum", copy(three); op=ADASUM) == three # equal vectors: their mean
        @test reducescatter(session, "rs", three; op=SUM, splits=[1, 2]) == [[2], [4, 6]][rank + 1]
        @test reducescatter(session, "rs", reshape(1.0:8.0, 2, 4) |> collect) == reshape(1.0:8.0, 2, 4)[:, 2rank .+ (1:2)]
        @test alltoall(session, "a2a", [10rank, 10rank + 1]) == [rank, 10 + rank]
        uneven = alltoall_async(session, "uneven", three; splits=[(1, 2), (3, 0)][rank + 1])
        @test length(wait(uneven)) == [4, 2][rank + 1] && splits(uneven) == [[1, 3], [2, 0]][rank + 1]
        @test reduceto(session, "reduce", three; op=PRODUCT, root=1) == [[], [1, 4, 9]][rank + 1]
        @test length(gather(session, "to root", three)) == [6, 0][rank + 1]
        @test scatter(session, "from root", rank == 0 ? [5 6 7] : zeros(Int, 1, 0)) == [[5 6], [7]'][rank + 1]
        @test bcast!(session, "b", fill(rank, 2, 2); root=1, set=ProcessSet(session, 0:1)) == fill(1, 2, 2)
        # Each to the other, in the order of submission.
        sent = [send_async(session, [own + i], 1 - rank; tag=7) for i in 1:3]
        @test [receive!(session, zeros(Float32, 1), 1 - rank; tag=7)[1] for _ in 1:3] == [1 - own + i for i in 1:3]
        foreach(wait, sent)
        rank == 0 ? send(session, three, 1) : @test receive!(session, zeros(3), 0) == three
    end

    @testset "sets" begin
        both = ProcessSet(session, [1, 0])
        @test both.ranks == [0, 1]
        @test allreduce!(session, "t", [own, 1]; set=both) == [0.5, 1]
        @test allreduce!(session, "t", [7.0]; op=SUM, set=ProcessSet(session, [rank]; name="alone")) == [7.0]
        @test code_of(() -> allreduce!(session, "t", [7.0]; set=ProcessSet(session, [1 - rank]))) === :INVALID_ARGUMENT
        @test code_of(() -> ProcessSet(session, [0, 2])) === :INVALID_ARGUMENT
        Session(name="second") do second
            @test code_of(() -> allreduce!(second, "t", [7.0]; set=both)) === :INVALID_ARGUMENT
        end
    end

    @testset "groups" begin
        loss = [1.0]
        outputs = group(session) do together
            allreduce!(together, "sum", loss; op=SUM)
            allgather(together, "rows", Int16[7 + rank])
            bcast!(together, "b", [rank]; root=1)
            barrier(together)
        end
        @test outputs[1] === loss == [2.0] && outputs[2] == [7, 8] && outputs[3] == [1]
        @test code_of(() -> group(together -> nothing, session)) === :INVALID_ARGUMENT
        failed = code_of() do
            group(session) do together
                allgather(together, "apart", zeros(1 + rank, 1))
                allreduce!(together, "sum", loss)
            end
        end
        @test failed in (:FAILED_PRECONDITION, :ABORTED)
    end

    @testset "arrays of requests that are not held" begin
        len, collected = 100_000, Threads.Atomic{Int}(0)
        drop(i) = (array = ones(len); finalizer(_ -> Threads.atomic_add!(collected, 1), array);
                   allgather_async(session, "dropped $i", array; set=ProcessSet(session, 0:1; name="of $i")); nothing)
        if rank == 0
            foreach(drop, 1:8)
            for _ in 1:3
                GC.gc()
                foreach(_ -> fill(NaN, len), 1:8) # what was freed would be written over
            end
            @test collected[] == 0
            barrier(session)
        else
            barrier(session)
            for i in 1:8
                @test allgather(session, "dropped $i", [2.0]; set=ProcessSet(session, 0:1; name="of $i")) == [ones(len); 2]
            end
        end
        barrier(session)
    end

    @testset "sparse rows" begin
        rows, numbers = sparse_allreduce(session, "table", (2, 100), [91, rank + 1], [1.0 3; 2 4]; op=SUM)
        @test numbers == [1, 2, 91] && rows == [3 3 2; 4 4 4]
        # Rows of all take more than the whole.
        rows, numbers = sparse_allreduce(session, "small", (1, 2), [1, 2, 1, 2], fill(2.0, 1, 4))
        @test numbers === nothing && rows == [4 4]
        @test code_of(() -> sparse_allreduce(session, "table", (2, 100), [1], [1.0])) isa MethodError
        @test code_of(() -> sparse_allreduce(session, "table", (2, 100), [1], ones(3, 1))) === :INVALID_ARGUMENT
    end

    @testset "disagreements" begin
        @test code_of(() -> allgather(session, "apart", zeros(1 + rank, 1))) === :FAILED_PRECONDITION
        @test code_of(() -> allgather(session, "row", view(zeros(2, 2), 1, :))) === :INVALID_ARGUMENT
        @test code_of(() -> allreduce!(session, "t", zeros(2), zeros(3))) === :INVALID_ARGUMENT
        @test code_of(() -> allgather(session, "text", ["text"])) === :INVALID_ARGUMENT
    end

    @testset "rounds that are given up" begin
        both = ProcessSet(session, 0:1)
        operations = [
            place -> push_pull!(place, "given up", [1.0, 2]; op=SUM),
            place -> bcast!(place, "given up", [1.0, 2]; root=1),
            place -> allgather(place, "given up", [1.0, 2]; match=3),
            place -> bcast!(place, "given up", [1.0, 2]; root=1, set=both),
            place -> sparse_allreduce(place, "given up", (9,), [9], [1.0]; op=SUM),
            place -> barrier(place; name="given up"),
        ]
        for operation in operations[1:5]
            if rank == 0
                @test give_up(operation, session, "no memory") === nothing
            else
                failure = try operation(session) catch thrown thrown end
                @test failure isa BytePSError && failure.code === :ABORTED
                @test occursin("no memory", failure.message) && occursin("rank 0", failure.message)
            end
        end
        # Several at once.
        if rank == 0
            give_up(place -> foreach(operation -> operation(place), operations[1:2]), session, "no memory")
            give_up(operations[6], session, "no memory")
        else
            foreach(operation -> (@test code_of(() -> operation(session)) === :ABORTED), operations[1:2])
            @test code_of(() -> group(operations[6], session)) === :ABORTED
        end
        @test operations[1](session) == [2, 4] && operations[2](session) == [1, 2]
        @test operations[3](session) == [1, 2, 1, 2] && operations[5](session) == ([2.0], [9])
    end

    @testset "numbers that must agree" begin
        number = 7 + rank
        for operation in [
            () -> push_pull!(session, "matched", [1.0]; op=SUM, match=number),
            () -> bcast!(session, "matched", [1.0]; match=number),
            () -> allgather(session, "matched", [1.0]; match=number),
            () -> sparse_allreduce(session, "matched", (9,), [9], [1.0]; match=number),
        ]
            @test code_of(operation) === :FAILED_PRECONDITION
        end
        @test push_pull!(session, "matched", [1.0]; op=SUM, match=7) == [2]
        @test allgather(session, "matched", [1.0]; match=7) == [1, 1]
    end

    @testset "join" begin
        # Rank 1 has twice as many steps.
        for step in 1:(rank == 0 ? 2 : 4)
            @test push_pull!(session, "steps", [1.0]; op=SUM) == [step <= 2 ? 2 : 1]
        end
        @test join!(session) == 1
    end
    @test isempty(filter(held -> !isended(held.second), session.in_flight))
end
shutdown(session)
close(session)
println("all bodies have run")
