"""
    ProcessSet(session, ranks; name="")

Some of the ranks, for collectives of their own: `allgather(session, "tokens", rows; set=evens)`. Sets of the same ranks and name
are the same one on all ranks; no rank is asked, so ranks that are not in it need not make it. `set.ranks` are ascending.
"""
mutable struct ProcessSet
    session::Session
    handle::Ptr{Cvoid}
    ranks::Vector{Int}
    refusals::Int

    function ProcessSet(session::Session, ranks; name::AbstractString="")
        library, text, numbers = functions(), Base.cconvert(Cstring, String(name)), collect(Int32, ranks)
        made = Ref{Ptr{Cvoid}}(C_NULL)
        GC.@preserve text numbers begin
            args = Ref(fill_struct(ProcessSetArgs; name=Base.unsafe_convert(Cstring, text), ranks=pointer(numbers),
                                   num_ranks=length(numbers)))
            use(session) do handle
                check(ccall(library.bps_process_set_create, Ptr{Cvoid}, (Ptr{Cvoid}, Ptr{ProcessSetArgs}, Ptr{Ptr{Cvoid}}),
                            handle, args, made))
            end
        end
        return finalizer(free, new(session, made[], sort!(map(Int, numbers)), 0))
    end
end

Base.show(io::IO, set::ProcessSet) = print(io, "BytePS.ProcessSet(", set.ranks, ")")

function free(set::ProcessSet)
    status = ccall(functions().bps_process_set_free, Ptr{Cvoid}, (Ptr{Cvoid},), set.handle)
    status == C_NULL && return
    ccall(functions().bps_status_free, Cvoid, (Ptr{Cvoid},), status)
    # The library's thread is still leaving the last operation that used it: the next collection tries again.
    set.refusals += 1
    set.refusals < 10 && finalizer(free, set)
end

"The handle of a set, which is one of this session; null for all ranks."
set_handle(session::Session, ::Nothing) = C_NULL
set_handle(session::Session, set::ProcessSet) =
    set.session === session ? set.handle : invalid("the process set is one of another session")
