"""
    join!(session; timeout=nothing) -> Int

Says that this rank has no data left, and waits until all have said so; returns the rank that was last. Meanwhile it counts as zeros
in what the others submit. `timeout`: seconds since the last operation of the others. `join_async!` returns a [`Request`](@ref).
"""
join!(session::Session; options...) = wait(join_async!(session; options...))

@doc (@doc join!)
function join_async!(session::Session; timeout=nothing)
    call, made, last_rank = functions().bps_join, Ref{Ptr{Cvoid}}(C_NULL), Ref{Int32}(-1)
    GC.@preserve last_rank begin
        args = Ref(fill_struct(JoinArgs; last_rank=Base.unsafe_convert(Ptr{Int32}, last_rank), timeout_ms=milliseconds(timeout)))
        use(session) do handle
            check(ccall(call, Ptr{Cvoid}, (Ptr{Cvoid}, Ptr{JoinArgs}, Ptr{Ptr{Cvoid}}), handle, args, made))
        end
        return hold(Request(session, made[], last_rank, last_rank, C_NULL))
    end
end

function land(request::Request{<:Base.RefValue{Int32}})
    release(request)
    return Int(request.output[])
end
