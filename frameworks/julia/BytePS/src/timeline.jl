# What becomes of operations, as a file: docs/timeline.md. Values of BPS_TIMELINE_... in abi/byteps.h:
const TIMELINE_MOMENT, TIMELINE_BEGIN, TIMELINE_END = Int32(0), Int32(1), Int32(2)

"""
    start_timeline(session, path; mark_steps=false)

Writes what becomes of every operation of this rank from now on, stage by stage, as Chrome's trace events: rank 0 to `path`,
rank 3 with `.rank3` before its extension. [`stop_timeline`](@ref) ends the file, or the end of the session.
`mark_steps`: show where the first operation goes into a round that none has gone into.
"""
function start_timeline(session::Session, path::AbstractString; mark_steps::Bool=false)
    call, text = functions().bps_timeline_start, Base.cconvert(Cstring, String(path))
    GC.@preserve text begin
        given = Base.unsafe_convert(Cstring, text)
        flags = UInt32(mark_steps)
        check(use(handle -> (@gc_safe ccall(call, Ptr{Cvoid}, (Ptr{Cvoid}, Cstring, UInt32), handle, given, flags)), session))
    end
end

"""
    stop_timeline(session)

Ends the file that [`start_timeline`](@ref) or a variable has begun, and waits until it is written.
"""
function stop_timeline(session::Session)
    call = functions().bps_timeline_stop
    check(use(handle -> (@gc_safe ccall(call, Ptr{Cvoid}, (Ptr{Cvoid},), handle)), session))
end

"""
    timeline_mark(session, name)

Puts a moment of the program's own into the timeline that is being written; nothing, where there is none.
"""
timeline_mark(session::Session, name::AbstractString) = put_mark(session, name, TIMELINE_MOMENT)

"""
    timeline_span(body, session, name)

Calls `body()` and puts it into the timeline as a span of the thread, which nests with others. The task must not yield
inside while other tasks of its thread mark spans, nor change its thread: `@spawn`ed tasks may.
"""
function timeline_span(body::Function, session::Session, name::AbstractString)
    put_mark(session, name, TIMELINE_BEGIN)
    try
        return body()
    finally
        put_mark(session, "", TIMELINE_END)
    end
end

function put_mark(session::Session, name::AbstractString, kind::Int32)
    call, text = functions().bps_timeline_mark, Base.cconvert(Cstring, String(name))
    GC.@preserve text begin
        given = Base.unsafe_convert(Cstring, text)
        check(use(handle -> ccall(call, Ptr{Cvoid}, (Ptr{Cvoid}, Cstring, Int32), handle, given, kind), session))
    end
end
