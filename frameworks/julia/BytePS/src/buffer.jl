"""
    Buffer{T}(session, dims...)

An array of zeros in memory that the library moves fastest: the other workers of this host read and write it where it is. For
arrays that are reduced again and again. It may outlive its session.
"""
mutable struct Buffer{T,N} <: DenseArray{T,N}
    handle::Ptr{Cvoid}
    array::Array{T,N}  # of this memory, which is not Julia's

    function Buffer{T}(session::Session, dims::Vararg{Integer,N}) where {T,N}
        dtype(T)
        library, size = functions(), map(Int, dims)
        all(extent -> extent >= 0, size) || invalid("a buffer of size $size")
        made = Ref{Ptr{Cvoid}}(C_NULL)
        args = Ref(fill_struct(BufferArgs; size=Base.checked_mul(prod(size), sizeof(T))))
        use(session) do handle
            check(ccall(library.bps_buffer_alloc, Ptr{Cvoid}, (Ptr{Cvoid}, Ptr{BufferArgs}, Ptr{Ptr{Cvoid}}),
                        handle, args, made))
        end
        first = Ptr{T}(ccall(library.bps_buffer_data, Ptr{Cvoid}, (Ptr{Cvoid},), made[]))
        array = prod(size) == 0 ? Array{T}(undef, size) : unsafe_wrap(Array, first, size)
        # Requests in flight hold it, so that freeing it is never refused.
        return finalizer(new{T,N}(made[], array)) do buffer
            status = ccall(functions().bps_buffer_free, Ptr{Cvoid}, (Ptr{Cvoid},), buffer.handle)
            status == C_NULL || ccall(functions().bps_status_free, Cvoid, (Ptr{Cvoid},), status)
        end
    end
end

Base.size(buffer::Buffer) = size(buffer.array)
Base.IndexStyle(::Type{<:Buffer}) = IndexLinear()
Base.@propagate_inbounds Base.getindex(buffer::Buffer, i::Int) = buffer.array[i]
Base.@propagate_inbounds Base.setindex!(buffer::Buffer, value, i::Int) = (buffer.array[i] = value; buffer)
Base.pointer(buffer::Buffer) = pointer(buffer.array)
Base.unsafe_convert(::Type{Ptr{T}}, buffer::Buffer{T}) where {T} = pointer(buffer.array)
Base.elsize(::Type{<:Buffer{T}}) where {T} = sizeof(T)
Base.strides(buffer::Buffer) = strides(buffer.array)
