"""
    sparse_allreduce(session, name, size, numbers, rows; op=AVERAGE, set=nothing, priority=0, timeout=nothing, match=0)
        -> (rows, numbers)

Reduces an array of this size of which each rank has some rows (the last dimension), zeros elsewhere. `numbers[i]` is the number of
`rows[.., i]`, from 1; rows that are named several times are added up. `op` is `SUM` or `AVERAGE`.

The result has the rows that any rank has, in the order of their numbers; where that is more to send than the whole array, it has
the whole array, and `nothing` instead of numbers. `sparse_allreduce_async` returns a [`Request`](@ref) at once; its arguments may
be used again at once.
"""
sparse_allreduce(session::Session, name, size, numbers, rows; options...) =
    wait(sparse_allreduce_async(session, name, size, numbers, rows; options...))

"What a sparse reduction brings."
struct SparseRows{T,N}
    rows::Gathered{T,N}
    numbers::Gathered{Int64,1}
end

@doc (@doc sparse_allreduce)
function sparse_allreduce_async(session::Session, name::AbstractString, size::NTuple{N,Integer}, numbers::AbstractVector{<:Integer},
                                rows::AbstractArray{T,N}; op::ReduceOp=AVERAGE, set=nothing, priority::Integer=0,
                                timeout=nothing, match::Integer=0, reason=nothing) where {T,N}
    check_dense(name, rows, "rows")
    wanted = (size[1:end-1]..., length(numbers))
    Base.size(rows) == wanted || invalid("\"$name\": the rows have size $(Base.size(rows)), not $wanted")
    call, made = functions().bps_sparse_all_reduce, Ref{Ptr{Cvoid}}(C_NULL)
    text, shape, indices = Base.cconvert(Cstring, String(name)), collect(Int64, reverse(size)), Int64[n - 1 for n in numbers]
    extensions = extend(nothing, match, reason)
    GC.@preserve text shape indices rows set extensions begin
        args = Ref(fill_struct(SparseArgs; ext=extensions === nothing ? C_NULL : extensions.first,
            name=Base.unsafe_convert(Cstring, text), set=set_handle(session, set), indices=pointer(indices), values=pointer(rows),
            num_rows=length(indices), shape=pointer(shape), priority=priority, timeout_ms=milliseconds(timeout), ndim=N,
            dtype=dtype(T), op=Int32(op)))
        use(session) do handle
            check(ccall(call, Ptr{Cvoid}, (Ptr{Cvoid}, Ptr{SparseArgs}, Ptr{Ptr{Cvoid}}), handle, args, made))
        end
    end
    output = SparseRows{T,N}(Gathered{T,N}(nothing, Int[]), Gathered{Int64,1}(nothing, Int[]))
    return hold(Request(session, made[], output, set, C_NULL))
end

function land(request::Request{<:SparseRows})
    release(request)
    rows, found = collect!(request.output.rows, request, 0), collect!(request.output.numbers, request, 1)
    # Of the whole array there are no numbers; of an array without rows neither.
    is_whole = isempty(found) && !isempty(rows)
    return (rows, is_whole ? nothing : found .+ 1)
end
