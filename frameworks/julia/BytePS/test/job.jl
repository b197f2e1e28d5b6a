# What each worker of a job does; started by jobs.jl.
using BytePS
using Test

const session = Session()
const rank = info(session).rank
@assert info(session).size == 2 && Threads.nthreads() == 2

code_of(call) = try call(); :nothing catch error error isa BytePSError ? error.code : error end

@testset "rank $rank" begin
    @testset "reductions" begin
        own = [rank + 1.0, -2, 4]
        for (op, expected) in [SUM => [3.0, -4, 8], AVERAGE => [1.5, -2, 4], MIN => [1, -2, 4], MAX => [2, -2, 4], PRODUCT => [2, 4, 16]]
            @test push_pull!(session, "t", copy(own); op=op, priority=-3, timeout=60) == expected
            output = zeros(3)
            @test push_pull!(session, "t", output, own; op=op) === output == expected
        end
        @test own == [rank + 1.0, -2, 4]
        @test push_pull!(session, "bits", rank == 0 ? [0b0110, 0b1] : [0b0101, 0b0]; op=BIT_XOR) == [0b0011, 0b1]
        large = Buffer{Int64}(session, 1000, 1000)
        large .= reshape(1:1_000_000, 1000, 1000)
        @test push_pull!(session, "large", large; op=SUM) == 2 .* reshape(1:1_000_000, 1000, 1000)
        for root in (1, 0)
            @test bcast!(session, "b", fill(rank, 5); root=root) == fill(root, 5)
        end
        @test code_of(() -> bcast!(session, "b", [1]; root=2)) === :INVALID_ARGUMENT
    end

    @testset "many at once, in opposite orders" begin
        order = rank == 0 ? (1:50) : (50:-1:1)
        requests = [i => push_pull_async!(session, "t$i", fill(Float32(i), 100 * i); op=SUM, priority=i) for i in order]
        GC.gc()
        @test all(wait(request) == fill(2.0f0 * i, 100 * i) for (i, request) in requests)
        @test all(isended(request) for (_, request) in requests)
        @test isempty(session.in_flight)
    end

    @testset "arrays of requests that are not held" begin
        # On rank 0 the operations begin before those of rank 1, and nothing but the session holds their arrays.
        len, collected = 100_000, Threads.Atomic{Int}(0)
        drop(i) = (array = ones(len); finalizer(_ -> Threads.atomic_add!(collected, 1), array);
                   push_pull_async!(session, "dropped $i", array; op=SUM); nothing)
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
            @test all(push_pull!(session, "dropped $i", fill(2.0, len); op=SUM) == fill(3.0, len) for i in 1:8)
        end
        barrier(session)
        # They are let go of in the end: at the latest when as many others have come.
        deadline, i = time() + 60, 0
        while time() < deadline && push_pull!(session, "go on", [rank == 0 && collected[] < 8]; op=BIT_OR)[1]
            foreach(wait, [push_pull_async!(session, "other $j", [1.0]) for j in 1:20])
            GC.gc()
        end
        @test rank == 1 || collected[] == 8
    end

    @testset "other tasks and the garbage collector go on while one waits" begin
        if rank == 0
            request = push_pull_async!(session, "late", [1.0]; op=SUM)
            @test code_of(() -> wait(request; timeout=0.05)) === :DEADLINE_EXCEEDED
            steps = 0
            waiter = @async wait(request)
            other = Threads.@spawn (barrier(session; name="never before the other"); true)
            for _ in 1:20
                GC.gc()
                yield()
                steps += 1
            end
            @test steps == 20 && !istaskdone(waiter)
            barrier(session; name="go")
            @test fetch(waiter) == [3.0]
            @test fetch(other)
        else
            barrier(session; name="go")
            @test push_pull!(session, "late", [2.0]; op=SUM) == [3.0]
            barrier(session; name="never before the other")
        end
    end

    @testset "disagreements" begin
        @test code_of(() -> push_pull!(session, "shape", zeros(10 + rank))) === :FAILED_PRECONDITION
        @test push_pull!(session, "shape", ones(10); op=SUM) == fill(2.0, 10)
        if rank == 0
            request = push_pull_async!(session, "given up", ones(100_000))
            @test code_of(() -> push_pull_async!(session, "given up", ones(100_000))) === :ALREADY_EXISTS
            cancel(request)
            @test code_of(() -> wait(request)) === :CANCELLED
            barrier(session)
        else
            barrier(session)
            @test code_of(() -> push_pull!(session, "given up", ones(100_000))) === :ABORTED
        end
    end

    @testset "two sessions" begin
        Session(name="second") do second
            first_one = push_pull_async!(session, "same name", [1.0]; op=SUM)
            @test push_pull!(second, "same name", [10.0 + rank]; op=SUM) == [21.0]
            @test wait(first_one) == [2.0]
        end
        @test push_pull!(session, "same name", [1.0]; op=SUM) == [2.0]
    end

    @testset "closed in flight" begin
        second = Session(name="closed")
        request = push_pull_async!(second, "only on rank $rank", ones(10))
        waiter = Threads.@spawn code_of(() -> barrier(second; name="only on rank $rank"))
        barrier(session)
        close(second)
        @test isended(request) && isempty(second.in_flight)
        @test code_of(() -> wait(request)) in (:CANCELLED, :UNAVAILABLE)
        @test fetch(waiter) in (:CANCELLED, :UNAVAILABLE, :FAILED_PRECONDITION)
    end
end
shutdown(session)
close(session)
println("all bodies have run")
