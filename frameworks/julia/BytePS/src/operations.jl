"""
A name, an element type and a size that all ranks know; made by [`declare`](@ref). Operations on it cost less than those that
name it anew each time.
"""
struct Tensor{T,N}
    session::Session
    handle::Ptr{Cvoid}
    name::String
    size::NTuple{N,Int}
end

"""
    declare(session, name, T, size) -> Tensor
    declare(session, name, array) -> Tensor

Declares a tensor; does not block. The same name, type and size give the same tensor again.

Julia's first index runs fastest, C's and Python's last one does: to them it is an array of the reversed size.
"""
function declare(session::Session, name::AbstractString, ::Type{T}, size::NTuple{N,Integer}) where {T,N}
    library, text, shape = functions(), Base.cconvert(Cstring, String(name)), collect(Int64, reverse(size))
    tensor = Ref{Ptr{Cvoid}}(C_NULL)
    GC.@preserve text shape begin
        args = Ref(fill_struct(DeclareArgs; name=Base.unsafe_convert(Cstring, text), shape=pointer(shape), ndim=N,
                               dtype=dtype(T)))
        use(session) do handle
            check(ccall(library.bps_declare, Ptr{Cvoid}, (Ptr{Cvoid}, Ptr{DeclareArgs}, Ptr{Ptr{Cvoid}}),
                        handle, args, tensor))
        end
    end
    return Tensor{T,N}(session, tensor[], String(name), map(Int, size))
end
declare(session::Session, name::AbstractString, array::AbstractArray{T}) where {T} =
    declare(session, name, T, size(array))

"""
    push_pull!(session, name, array; op=AVERAGE, priority=0, timeout=nothing, match=0)
    push_pull!(session, name, output, input; ...)
    push_pull!(tensor, ...)

Replaces the array (or the output) by its reduction over all workers, and returns it. `priority`: larger is sooner. `timeout`:
seconds, of the whole operation. `stream`: of a [`DeviceArray`](@ref)'s GPU. `match`: a number that the ranks compare, such as a
step's; where it differs all of them throw `:FAILED_PRECONDITION`; 0 is none.
"""
push_pull!(tensor::Tensor, arrays...; options...) = wait(push_pull_async!(tensor, arrays...; options...))
push_pull!(session::Session, name::AbstractString, output, input...; options...) =
    push_pull!(declare(session, name, output), output, input...; options...)

"""
    bcast!(session, name, array; root=0, set=nothing, priority=0, timeout=nothing, match=0)
    bcast!(tensor, ...)

Replaces the array by that of the worker with rank `root`, and returns it. A declared tensor is of all ranks.
"""
bcast!(tensor::Tensor, arrays...; options...) = wait(bcast_async!(tensor, arrays...; options...))
bcast!(session::Session, name::AbstractString, output, input...; options...) =
    wait(bcast_async!(session, name, output, input...; options...))

"""
    push_pull_async!(session, name, array; ...) -> Request

As [`push_pull!`](@ref), but returns at once: `wait(request)`. The arrays must not be used until then.
"""
function push_pull_async!(tensor::Tensor, output::AbstractArray, input::AbstractArray=output; op::ReduceOp=AVERAGE,
                          priority::Integer=0, timeout=nothing, stream=C_NULL, match::Integer=0, reason=nothing)
    timeout_ms = milliseconds(timeout)
    start(tensor, output, input, functions().bps_push_pull, Ptr{Cvoid}(stream), match, reason) do from, to, places
        fill_struct(PushPullArgs; tensor=tensor.handle, input=from, output=to, priority=priority, op=Int32(op),
                    timeout_ms=timeout_ms, places...)
    end
end
push_pull_async!(session::Session, name::AbstractString, output::AbstractArray, input...; options...) =
    push_pull_async!(declare(session, name, output), output, input...; options...)

"""
    bcast_async!(session, name, array; ...) -> Request

As [`bcast!`](@ref), but returns at once: `wait(request)`. The arrays must not be used until then.
"""
function bcast_async!(tensor::Tensor, output::AbstractArray, input::AbstractArray=output; root::Integer=0,
                      priority::Integer=0, timeout=nothing, stream=C_NULL, match::Integer=0, reason=nothing)
    timeout_ms = milliseconds(timeout)
    start(tensor, output, input, functions().bps_broadcast, Ptr{Cvoid}(stream), match, reason) do from, to, places
        fill_struct(BroadcastArgs; tensor=tensor.handle, input=from, output=to, priority=priority, root=root,
                    timeout_ms=timeout_ms, places...)
    end
end
bcast_async!(session::Session, name::AbstractString, output::AbstractArray, input...; set=nothing, options...) =
    set === nothing ? bcast_async!(declare(session, name, output), output, input...; options...) :
    bcast_among(session, name, output, input...; set=set, options...)

"""
Starts an operation; `arguments(input, output, places)` makes its struct, `places` being fields of it. `reason`: of a round that is
given up.
"""
function start(arguments::F, tensor::Tensor, output::AbstractArray, input::AbstractArray, call::Ptr{Cvoid},
               stream::Ptr{Cvoid}, match::Integer, reason::Union{Nothing,String}) where {F}
    check_array(tensor, output, "output")
    input === output || check_array(tensor, input, "input")
    # The memory stays where it is from before the operation begins.
    roots = (output, input, pin(output), input === output ? nothing : pin(input))
    streams = streams_of(output, input, stream)
    extensions = extend(streams, match, reason)
    GC.@preserve roots streams extensions begin
        to, from = Ptr{Cvoid}(pointer(output)), Ptr{Cvoid}(pointer(input))
        args = Ref(arguments(from, to, with_extensions(places_of(output, input, streams), extensions)))
        made = Ref{Ptr{Cvoid}}(C_NULL)
        use(tensor.session) do handle
            check(ccall(call, Ptr{Cvoid}, (Ptr{Cvoid}, Ptr{Cvoid}, Ptr{Ptr{Cvoid}}), handle, args, made))
        end
        return hold(Request(tensor.session, made[], output, roots, to))
    end
end

function check_array(tensor::Tensor{T}, array::AbstractArray, what) where {T}
    eltype(array) === T || invalid("tensor \"$(tensor.name)\" has elements of type $T, the $what of type $(eltype(array))")
    size(array) == tensor.size ||
        invalid("tensor \"$(tensor.name)\" has size $(tensor.size), the $what has size $(size(array))")
    array isa DeviceArray || check_dense(tensor.name, array, what)
end

check_dense(name, array, what) =
    is_dense(array) || invalid("\"$name\": the $what is a $(typeof(array)), which is not a block of memory; " *
                               "copy it, or take a contiguous view")

is_dense(array::DenseArray) = true
is_dense(array::SubArray) = is_dense(parent(array)) && Base.iscontiguous(array)
is_dense(array::Base.ReshapedArray) = is_dense(parent(array))
is_dense(array::Base.ReinterpretArray) = is_dense(parent(array))
is_dense(array::AbstractArray) = false

"""
    pin(array)

What keeps the array's memory in its place. A vector that was ever in flight cannot be resized any more in Julia up to 1.10: the
attempt is an error. From 1.11 on a resized vector gets new memory, and the old one stays until the operation has ended.
"""
pin(array::SubArray) = pin(parent(array))
pin(array::Base.ReshapedArray) = pin(parent(array))
pin(array::Base.ReinterpretArray) = pin(parent(array))
pin(array::AbstractArray) = array
@static if VERSION < v"1.11-"
    # Two arrays of one memory: neither can be resized.
    pin(array::Vector) = reshape(array, 1, length(array))
else
    pin(array::Array) = getfield(array, :ref).mem
end
