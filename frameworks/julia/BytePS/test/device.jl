# Memory of (simulated) GPUs, if BYTEPS_DEVICE names their plugin: a worker alone.

@testset "memory of a GPU" begin
    Session() do session
        host = rand(Float32, 4, 300)
        there = device_buffer(session, Float32, 4, 300)
        @test size(there) == (4, 300) && eltype(there) === Float32
        @test sprint(show, there) == "4×300 DeviceArray{Float32} on GPU 0"
        # From the host to the GPU, there in place, and back.
        @test push_pull!(session, "in", there, host; op=SUM, timeout=60) === there
        @test push_pull!(session, "in place", there; op=SUM, timeout=60) === there
        back = zeros(Float32, 4, 300)
        @test push_pull!(session, "out", back, there; op=SUM, timeout=60) == host
        fill!(back, 0)
        request = bcast_async!(session, "both", there; timeout=60)
        GC.gc()
        wait(request)
        @test push_pull!(session, "out", back, there; op=SUM, timeout=60) == host
        # A part of it, as a CuArray's own memory would be named.
        half = DeviceArray{Float32}(pointer(there) + 4 * 600, 4, 150; owner=there)
        part = zeros(Float32, 4, 150)
        @test push_pull!(session, "half", part, half; op=SUM, timeout=60) == host[:, 151:300]
        @test failure(:INVALID_ARGUMENT, () -> there[1]) == ""
        @test failure(:INVALID_ARGUMENT, () -> push_pull!(session, "stream", host; stream=Ptr{Cvoid}(8))) == ""
        @test failure(:INVALID_ARGUMENT, () -> allgather(session, "gather", there)) == ""
        wrong = DeviceArray{Float32}(pointer(host), 4, 300; owner=host)
        @test failure(:INVALID_ARGUMENT, () -> push_pull!(session, "not there", wrong)) == ""
        @test failure(:INVALID_ARGUMENT, () -> device_buffer(session, Float32, 3; device=9)) == ""
    end
    GC.gc()
end
