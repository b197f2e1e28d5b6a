# Collectives: described, then started alone or in a group. Rows are what C's first extent counts: Julia's last dimension.

@enum Kind::Int32 ALL_REDUCE BROADCAST ALL_GATHER REDUCE_SCATTER ALL_TO_ALL REDUCE GATHER SCATTER SEND RECEIVE BARRIER

"An output in the library's memory, of which an array is made when the operation has ended."
mutable struct Gathered{T,N}
    array::Union{Nothing,Array{T,N}}
    splits::Vector{Int}
end

"A collective that has not begun."
struct Description
    args::CollectiveArgs
    match::UInt64
    # What its pointers point into.
    roots::Any
    # The caller's array, or Gathered.
    output::Any
end

function describe(session::Session, kind::Kind, name::AbstractString, input::AbstractArray{T,N}, output=nothing;
                  op::ReduceOp=SUM, root::Integer=0, peer::Integer=0, tag::Integer=0, splits=nothing, set=nothing, scale=nothing,
                  priority::Integer=0, timeout=nothing, match::Integer=0) where {T,N}
    what = isempty(name) ? lowercase(string(kind)) : name
    check_dense(what, input, "input")
    if output !== nothing && output !== input
        check_dense(what, output, "output")
        (eltype(output), size(output)) == (T, size(input)) ||
            invalid("\"$what\": the output is a $(size(output)) of $(eltype(output)), the input a $(size(input)) of $T")
    end
    before, after = scale === nothing ? (1.0, 1.0) : scale
    text, shape = Base.cconvert(Cstring, String(name)), collect(Int64, reverse(size(input)))
    rows = splits === nothing ? Int64[] : collect(Int64, splits)
    extensions = extend(nothing, match)
    args = fill_struct(CollectiveArgs; ext=extensions === nothing ? C_NULL : extensions.first,
        name=Base.unsafe_convert(Cstring, text), set=set_handle(session, set), input=pointer(input),
        output=output === nothing ? C_NULL : pointer(output), output_bytes=output === nothing ? 0 : sizeof(T) * length(output),
        shape=pointer(shape), splits=isempty(rows) ? C_NULL : pointer(rows), tag=tag, priority=priority,
        timeout_ms=milliseconds(timeout), prescale=scale === nothing ? 0.0 : before, postscale=scale === nothing ? 0.0 : after,
        kind=Int32(kind), ndim=N, dtype=dtype(T), op=Int32(op), num_splits=length(rows), root=root, peer=peer,
        scaled=scale !== nothing)
    # The memory stays where it is from before the operation begins.
    roots = (text, shape, rows, set, extensions, input, output, pin(input), output === nothing ? nothing : pin(output))
    return Description(args, match, roots, output === nothing ? Gathered{T,N}(nothing, Int[]) : output)
end

"`reason`: of a round that is given up."
function start(session::Session, description::Description, reason::Union{Nothing,String}=nothing)
    call, made = functions().bps_collective, Ref{Ptr{Cvoid}}(C_NULL)
    given_up = reason === nothing ? nothing : extend(nothing, description.match, reason)
    args = Ref(given_up === nothing ? description.args : with_field(description.args, :ext, given_up.first))
    GC.@preserve description given_up begin
        use(session) do handle
            check(ccall(call, Ptr{Cvoid}, (Ptr{Cvoid}, Ptr{CollectiveArgs}, Ptr{Ptr{Cvoid}}), handle, args, made))
        end
        return hold(Request(session, made[], description.output, description.roots, description.args.output))
    end
end

"Copies what operation `index` of the request has brought out of the library's memory."
function collect!(gathered::Gathered{T,N}, request::Request, index::Integer) where {T,N}
    gathered.array === nothing || return gathered.array
    filled = Ref(fill_struct(ResultStruct))
    GC.@preserve request begin
        check(ccall(functions().bps_request_result, Ptr{Cvoid}, (Ptr{Cvoid}, Int32, Ptr{ResultStruct}),
                    request.handle, index, filled))
        result = filled[]
        extents = reverse([Int(unsafe_load(result.shape, i)) for i in 1:result.ndim])
        # A sparse tensor that came whole has no numbers.
        array = Array{T,N}(undef, result.ndim == N ? Tuple(extents) : ntuple(_ -> 0, N))
        GC.@preserve array unsafe_copyto!(pointer(array), Ptr{T}(result.data), Int(result.bytes) ÷ sizeof(T))
        gathered.splits = [Int(unsafe_load(result.splits, i)) for i in 1:result.num_splits]
    end
    return gathered.array = array
end

function land(request::Request{<:Gathered})
    release(request)
    return collect!(request.output, request, 0)
end

"""
    splits(request) -> Vector{Int}

Of an ended request, by the ranks of the set: of gather, allgather, scatter and alltoall the rows that came from each, of
reducescatter those that went to each; else empty.
"""
function splits(request::Request{<:Gathered})
    wait(request)
    return request.output.splits
end

# Where a collective goes: to a session, which starts it, or to a group, which does so with others. `begin_at` answers with a
# request or nothing.
begin_at(session::Session, description::Description) = start(session, description)
session_of(session::Session) = session

for (name, kind, takes, text) in [
    (:allgather, ALL_GATHER, "", "All arrays, one behind the other by rank, to all. Rows (the last dimension) may differ."),
    (:reducescatter, REDUCE_SCATTER, "op=AVERAGE, splits=nothing, scale=nothing, ",
     "Of the reduction of all arrays to each rank its rows (the last dimension): `splits`, else as even as possible."),
    (:alltoall, ALL_TO_ALL, "splits=nothing, ", "From each to each rank its rows (the last dimension): `splits`, else equal ones."),
    (:reduceto, REDUCE, "op=AVERAGE, root=0, scale=nothing, ", "The reduction of all arrays, to the root; the others get no rows."),
    (:gather, GATHER, "root=0, ", "All arrays, one behind the other by rank, to the root; the others get no rows."),
    (:scatter, SCATTER, "root=0, splits=nothing, ",
     "From the root's array to each rank its rows (the last dimension): the root's `splits`, else as even as possible. Elsewhere " *
     "the array says the type and the other dimensions, and may have no rows."),
]
    starts = Symbol(name, :_async)
    reduces = kind in (REDUCE_SCATTER, REDUCE)
    signature = "session, name, array; $(takes)set=nothing, priority=0, timeout=nothing, match=0"
    @eval begin
        @doc $("""
            $name($signature) -> Array

        $text A new array has the result. `$starts` returns a [`Request`](@ref) at once: the array must not be used until it has
        been waited for; `splits(request)` then are the rows of each rank.
        """)
        $name(session::Session, name::AbstractString, array::AbstractArray; options...) =
            wait($starts(session, name, array; options...))
        @doc (@doc $name)
        $starts(place, name::AbstractString, array::AbstractArray; options...) =
            begin_at(place, describe(session_of(place), $kind, name, array; $(reduces ? :(op=AVERAGE) : :(op=SUM)), options...))
    end
end

"""
    allreduce!(session, name, array; op=AVERAGE, set=nothing, scale=nothing, priority=0, timeout=nothing, match=0)
    allreduce!(session, name, output, input; ...)

Replaces the array (or the output) by the reduction of all, and returns it. Without `set`, `scale` and `ADASUM` it is
[`push_pull!`](@ref). `scale=(before, after)`: inputs are multiplied by the first, and the result by the second.
"""
allreduce!(session::Session, name::AbstractString, arrays::AbstractArray...; options...) =
    wait(allreduce_async!(session, name, arrays...; options...))

"As [`allreduce!`](@ref), but returns a [`Request`](@ref) at once: the arrays must not be used until it has been waited for."
allreduce_async!(place, name::AbstractString, output::AbstractArray, input::AbstractArray=output; options...) =
    begin_at(place, describe(session_of(place), ALL_REDUCE, name, input, output; op=AVERAGE, options...))

"Broadcast among the ranks of a set, or in a group; else [`bcast_async!`](@ref) declares a tensor."
bcast_among(place, name::AbstractString, output::AbstractArray, input::AbstractArray=output; options...) =
    begin_at(place, describe(session_of(place), BROADCAST, name, input, output; options...))

"""
    send(session, array, peer; tag=0, set=nothing, priority=0, timeout=nothing)

Sends the array to a rank that receives with the same tag, in the order of submission. `send_async` returns a [`Request`](@ref).
"""
send(session::Session, array::AbstractArray, peer::Integer; options...) = (wait(send_async(session, array, peer; options...)); nothing)
@doc (@doc send)
send_async(place, array::AbstractArray, peer::Integer; options...) =
    begin_at(place, describe(session_of(place), SEND, "", array; peer=peer, options...))

"""
    receive!(session, array, peer; tag=0, set=nothing, priority=0, timeout=nothing)

Fills the array with what a rank sends with this tag, and returns it. `receive_async!` returns a [`Request`](@ref).
"""
receive!(session::Session, array::AbstractArray, peer::Integer; options...) = wait(receive_async!(session, array, peer; options...))
@doc (@doc receive!)
receive_async!(place, array::AbstractArray, peer::Integer; options...) =
    begin_at(place, describe(session_of(place), RECEIVE, "", array, array; peer=peer, options...))
