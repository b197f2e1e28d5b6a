"""
    DeviceArray{T}(address, dims...; device=0, owner=nothing)

An array in the memory of a GPU, as [`push_pull!`](@ref) and [`bcast!`](@ref) take it beside those of the host: `address` as
the GPU's driver counts, `device` which GPU, `owner` what keeps the memory there. Of a `CuArray`:

    on_gpu = DeviceArray{eltype(x)}(UInt(pointer(x)), size(x)...; owner=x)
    push_pull!(session, "gradient", on_gpu; stream=CUDA.stream().handle)

`stream` is the caller's: what it holds at the call is done before the input is read; and it waits for the result by itself. An
operation in two arrays may have one of them on the host. The host cannot touch the elements.
"""
struct DeviceArray{T,N} <: AbstractArray{T,N}
    address::Ptr{T}
    dims::NTuple{N,Int}
    device::Int32
    owner::Any

    function DeviceArray{T}(address, dims::Vararg{Integer,N}; device::Integer=0, owner=nothing) where {T,N}
        dtype(T)
        all(extent -> extent >= 0, dims) || invalid("an array of size $dims")
        return new{T,N}(Ptr{T}(address), map(Int, dims), Int32(device), owner)
    end
end

Base.size(array::DeviceArray) = array.dims
Base.pointer(array::DeviceArray) = array.address
Base.getindex(array::DeviceArray, ::Int...) = invalid("the memory of a GPU cannot be read by the host")
Base.show(io::IO, array::DeviceArray{T}) where {T} =
    print(io, join(size(array), "×"), " DeviceArray{", T, "} on GPU ", array.device)
Base.show(io::IO, ::MIME"text/plain", array::DeviceArray) = show(io, array)

"What frees a device buffer when no array and no request holds it any more."
mutable struct DeviceMemory
    handle::Ptr{Cvoid}
end

"""
    device_buffer(session, T, dims...; device=0) -> DeviceArray

Zeros in new memory of a GPU, which may outlive the session.
"""
function device_buffer(session::Session, ::Type{T}, dims::Integer...; device::Integer=0) where {T}
    dtype(T)
    all(extent -> extent >= 0, dims) || invalid("a buffer of size $dims")
    library, made = functions(), Ref{Ptr{Cvoid}}(C_NULL)
    args = Ref(fill_struct(BufferArgs; size=Base.checked_mul(prod(map(Int, dims)), sizeof(T)), device=CUDA, device_id=device))
    use(session) do handle
        check(ccall(library.bps_buffer_alloc, Ptr{Cvoid}, (Ptr{Cvoid}, Ptr{BufferArgs}, Ptr{Ptr{Cvoid}}), handle, args, made))
    end
    memory = finalizer(DeviceMemory(made[])) do freed
        status = ccall(functions().bps_buffer_free, Ptr{Cvoid}, (Ptr{Cvoid},), freed.handle)
        status == C_NULL || ccall(functions().bps_status_free, Cvoid, (Ptr{Cvoid},), status)
    end
    address = ccall(library.bps_buffer_data, Ptr{Cvoid}, (Ptr{Cvoid},), made[])
    return DeviceArray{T}(address, dims...; device=device, owner=memory)
end

const CUDA = Int32(2)

"The streams of an operation, if a GPU has a part in it."
function streams_of(output::AbstractArray, input::AbstractArray, stream::Ptr{Cvoid})
    if output isa DeviceArray || input isa DeviceArray
        return Ref(Streams(Ext(sizeof(Streams), EXT_STREAMS, 0, C_NULL), stream, stream, 0, 0))
    end
    stream == C_NULL || invalid("a stream is of arrays in the memory of a GPU; these are the host's")
    return nothing
end

"The fields of an operation's struct that say where its arrays are."
places_of(output, input, ::Nothing) = NamedTuple()
function places_of(output, input, streams::Ref{Streams})
    type(array) = array isa DeviceArray ? CUDA : Int32(0)
    id(array) = array isa DeviceArray ? array.device : Int32(0)
    return (ext=Ptr{Cvoid}(Base.unsafe_convert(Ptr{Streams}, streams)), input_device=type(input), input_device_id=id(input),
            output_device=type(output), output_device_id=id(output))
end
