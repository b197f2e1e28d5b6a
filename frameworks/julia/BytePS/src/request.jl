"""
One operation in flight, made by [`push_pull_async!`](@ref) and its kin. `wait(request)` ends it and returns the output; `isended(request)` asks; `cancel(request)` gives up.

The session holds the arrays until the operation has ended, also when the request is not held.
"""
mutable struct Request{A}
    session::Session
    handle::Ptr{Cvoid}
    output::A
    # What keeps the memory of input and output where it is.
    roots::Any
    # Where the memory was: an array that was resized meanwhile is elsewhere.
    address::Ptr{Cvoid}

    function Request(session::Session, handle::Ptr{Cvoid}, output::A, roots, address) where {A}
        return finalizer(new{A}(session, handle, output, roots, address)) do request
            ccall(functions().bps_request_free, Cvoid, (Ptr{Cvoid},), request.handle)
        end
    end
end

Base.show(io::IO, request::Request) = print(io, "BytePS.Request(", isended(request) ? "ended" : "in flight", ")")

"Whether the operation has ended. Never blocks, and does not throw the operation's error."
function isended(request::Request)
    done = Ref{Int32}(0)
    GC.@preserve request check(ccall(functions().bps_test, Ptr{Cvoid}, (Ptr{Cvoid}, Ptr{Int32}), request.handle, done))
    return done[] != 0
end

"""
    cancel(request)

Asks to give up. The operation then ends with `:CANCELLED` here and with `:ABORTED` elsewhere, unless it was complete.
"""
cancel(request::Request) =
    GC.@preserve request check(ccall(functions().bps_cancel, Ptr{Cvoid}, (Ptr{Cvoid},), request.handle))

# Milliseconds that a wait keeps other tasks of its thread waiting, at first and at most.
const FIRST_SLICE = 1
const LONGEST_SLICE = 10

"""
    wait(request; timeout=nothing)

Waits until the operation has ended, and returns its output. Throws its error, or `:DEADLINE_EXCEEDED` when `timeout` (seconds)
has passed first: the operation then goes on. Without a timeout its own deadline is the only one.
"""
function Base.wait(request::Request; timeout=nothing)
    limit = milliseconds(timeout)
    call, handle, slice, start = functions().bps_wait, request.handle, FIRST_SLICE, time_ns()
    GC.@preserve request while true
        left = limit == 0 ? LONGEST_SLICE : limit - Int64(time_ns() - start) ÷ 1_000_000
        milliseconds = Int64(clamp(min(left, slice), 1, LONGEST_SLICE))
        status = @gc_safe ccall(call, Ptr{Cvoid}, (Ptr{Cvoid}, Int64), handle, milliseconds)
        status == C_NULL && break
        failure = take_error(status)
        if isended(request)
            # It may have ended just after the wait: this is its own outcome.
            outcome = ccall(call, Ptr{Cvoid}, (Ptr{Cvoid}, Int64), handle, 0)
            outcome == C_NULL && break
            release(request)
            check(outcome)
        end
        failure.code === :DEADLINE_EXCEEDED || throw(failure)
        if left <= 0
            what = last(split(failure.message, ": "; limit=2))
            throw(BytePSError(:DEADLINE_EXCEEDED, "the operation had not ended after $timeout s: $what", true))
        end
        slice = min(2 * slice, LONGEST_SLICE)
        yield()
    end
    return land(request)
end

function land(request::Request{<:AbstractArray})
    release(request)
    return in_place(request.output, request.address)
end

"The output, if its memory is still where the result was written."
function in_place(output::AbstractArray, address::Ptr{Cvoid})
    if length(output) > 0 && Ptr{Cvoid}(pointer(output)) != address
        error("the output was resized while its operation was in flight: the result is not in it")
    end
    return output
end

"Holds a request until its operation has ended."
function hold(request::Request)
    session = request.session
    lock(session.lock) do
        # Those that no caller waits for. As many requests as are looked at have come since the last time.
        session.until_sweep -= 1
        if session.until_sweep <= 0
            filter!(held -> !isended(held.second), session.in_flight)
            session.until_sweep = max(16, length(session.in_flight))
        end
        session.in_flight[request.handle] = request
    end
    return request
end

"Lets go of a request that has ended."
function release(request::Request)
    lock(() -> delete!(request.session.in_flight, request.handle), request.session.lock)
    request.roots = nothing
end
