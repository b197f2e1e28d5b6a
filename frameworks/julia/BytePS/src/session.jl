"""
    Session(; coordinator, job, name, token, host, transport, scheduler, place, timeout)
    Session(body; ...)

Joins a job, and waits until all workers and servers are there. What is not given comes from the environment (`DMLC_*` and
`BYTEPS_*`, set by bpslaunch), and then from its default.

The second form calls `body(session)`, then leaves the job in order ([`shutdown`](@ref)) and closes the session. If `body`
throws, it is closed at once, and the others hear that this worker is gone.

* `name`: of this session within the job; several sessions of one process have different ones
* `place`: `(host_index, num_hosts, local_rank, local_size, num_servers)`, all from 0, where the environment does not say
* `timeout`: seconds until all must have arrived
"""
mutable struct Session
    handle::Ptr{Cvoid}
    # Calls of the library that are running on it: it is closed when there are none.
    users::Threads.Atomic{Int}
    is_closed::Threads.Atomic{Bool}
    lock::ReentrantLock
    # Every request whose operation may still read and write its arrays.
    in_flight::Dict{Ptr{Cvoid},Any}
    until_sweep::Int

    function Session(; coordinator=nothing, job=nothing, name=nothing, token=nothing, host=nothing, transport=nothing,
                     scheduler=nothing, place=nothing, timeout=nothing)
        texts = map((coordinator, job, name, token, host, transport, scheduler)) do text
            text === nothing ? nothing : Base.cconvert(Cstring, String(text))
        end
        place === nothing || length(place) == 5 ||
            invalid("place is $place; it is (host_index, num_hosts, local_rank, local_size, num_servers)")
        where_we_are = place === nothing ? (0, 0, 0, 0, 0) : place
        library = functions()
        session = Ref{Ptr{Cvoid}}(C_NULL)
        GC.@preserve texts session begin
            pointers = map(text -> text === nothing ? Cstring(C_NULL) : Base.unsafe_convert(Cstring, text), texts)
            args = Ref(fill_struct(OpenArgs;
                coordinator=pointers[1], job=pointers[2], name=pointers[3], token=pointers[4], host=pointers[5],
                transport=pointers[6], scheduler=pointers[7], has_place=place !== nothing, host_index=where_we_are[1],
                num_hosts=where_we_are[2], local_rank=where_we_are[3], local_size=where_we_are[4],
                num_servers=where_we_are[5], timeout_ms=milliseconds(timeout)))
            GC.@preserve args begin
                open = library.bps_open_versioned
                given = Base.unsafe_convert(Ptr{OpenArgs}, args)
                made = Base.unsafe_convert(Ptr{Ptr{Cvoid}}, session)
                status = @gc_safe ccall(open, Ptr{Cvoid}, (Int32, Int32, Ptr{OpenArgs}, Ptr{Ptr{Cvoid}}),
                                        ABI_MAJOR, ABI_MINOR, given, made)
            end
        end
        check(status)
        opened = new(session[], Threads.Atomic{Int}(0), Threads.Atomic{Bool}(false), ReentrantLock(), Dict{Ptr{Cvoid},Any}(), 16)
        lock(() -> push!(OPEN_SESSIONS, opened), OPEN_SESSIONS_LOCK)
        return opened
    end
end

# A session that no caller refers to is open all the same, and so are the arrays of its operations in use.
const OPEN_SESSIONS = Session[]
const OPEN_SESSIONS_LOCK = ReentrantLock()

function Session(body::Function; options...)
    session = Session(; options...)
    try
        result = body(session)
        shutdown(session)
        return result
    finally
        close(session)
    end
end

"Calls `call(handle)`; the session is not closed meanwhile."
@inline function use(call::F, session::Session) where {F}
    Threads.atomic_add!(session.users, 1)
    try
        session.is_closed[] && throw(BytePSError(:FAILED_PRECONDITION, "the BytePS session is closed", false))
        return call(session.handle)
    finally
        Threads.atomic_sub!(session.users, 1)
    end
end

"""
    info(session)

Who we are: a named tuple of `rank` (0 to `size - 1`), `size`, `local_rank`, `local_size`, `num_servers`, `failed`, `epoch`,
`generation`, `shared_buffers`, `transport`, `scheduler`.
"""
function info(session::Session)
    library = functions()
    use(session) do handle
        filled = Ref(fill_struct(InfoStruct))
        check(ccall(library.bps_session_info, Ptr{Cvoid}, (Ptr{Cvoid}, Ptr{InfoStruct}), handle, filled))
        it = filled[]
        transport = unsafe_string(ccall(library.bps_transport_name, Cstring, (Ptr{Cvoid},), handle))
        scheduler = unsafe_string(ccall(library.bps_scheduler_name, Cstring, (Ptr{Cvoid},), handle))
        (rank=Int(it.rank), size=Int(it.size), local_rank=Int(it.local_rank), local_size=Int(it.local_size),
         num_servers=Int(it.num_servers), failed=it.failed != 0, epoch=it.epoch, generation=it.generation,
         shared_buffers=it.shared_buffers != 0, transport=transport, scheduler=scheduler)
    end
end

"""
    barrier(session; name="", timeout=nothing)

Waits until every worker has called it as often as this one (per name). It does not wait for operations in flight.
"""
function barrier(session::Session; name::AbstractString="", timeout=nothing)
    call, text = functions().bps_barrier, Base.cconvert(Cstring, String(name))
    GC.@preserve text begin
        args = Ref(fill_struct(BarrierArgs; name=Base.unsafe_convert(Cstring, text), timeout_ms=milliseconds(timeout)))
        GC.@preserve args begin
            given = Base.unsafe_convert(Ptr{BarrierArgs}, args)
            status = use(session) do handle
                @gc_safe ccall(call, Ptr{Cvoid}, (Ptr{Cvoid}, Ptr{BarrierArgs}), handle, given)
            end
        end
    end
    return check(status)
end

"""
    shutdown(session; timeout=nothing)

Leaves the job in order: waits until all operations of this worker have ended and all members have come here too or left, at
most `timeout` seconds (5). Whatever comes of it, the session can then only be closed.
"""
function shutdown(session::Session; timeout=nothing)
    call, timeout_ms = functions().bps_shutdown, milliseconds(timeout)
    check(use(handle -> (@gc_safe ccall(call, Ptr{Cvoid}, (Ptr{Cvoid}, Int64), handle, timeout_ms)), session))
end

"""
    close(session)

Ends the session: what is still in flight ends with an error. Without [`shutdown`](@ref) before it the other members see this
worker fail. Closing it again does nothing.
"""
function Base.close(session::Session)
    Threads.atomic_xchg!(session.is_closed, true) && return
    library = functions()
    shut, end_it, handle = library.bps_shutdown, library.bps_close, session.handle
    # A task inside of a call may wait for what no task will do any more: leaving the job ends such waits.
    while session.users[] > 0
        status = @gc_safe ccall(shut, Ptr{Cvoid}, (Ptr{Cvoid}, Int64), handle, 1)
        status == C_NULL || take_error(status)
        yield()
    end
    status = @gc_safe ccall(end_it, Ptr{Cvoid}, (Ptr{Cvoid},), handle)
    check(status)
    # Every operation has ended: the arrays are not touched any more.
    lock(() -> empty!(session.in_flight), session.lock)
    lock(() -> filter!(open -> open !== session, OPEN_SESSIONS), OPEN_SESSIONS_LOCK)
    return
end

Base.isopen(session::Session) = !session.is_closed[]
Base.show(io::IO, session::Session) = print(io, "BytePS.Session(", isopen(session) ? "open" : "closed", ")")
