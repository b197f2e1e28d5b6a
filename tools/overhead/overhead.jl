# As overhead.c, from Julia.
using BytePS

function measure(call, what)
    best = Inf
    for _ in 1:50
        start = time_ns()
        for _ in 1:1000
            call()
        end
        best = min(best, (time_ns() - start) / 1000)
    end
    println(what, " ", round(best; digits=1))
end

Session() do session
    array = ones(Float32, 1)
    tensor = declare(session, "overhead", array)
    measure(() -> push_pull!(tensor, array; op=SUM), "Julia")
    measure(() -> push_pull!(session, "overhead", array; op=SUM), "Julia, by name")
end
