# Data types are DLPack's code, bits and one lane.
packed(code, bits) = UInt32(code) | UInt32(bits) << 8 | UInt32(1) << 16

"""
    BytePS.dtype(T)

The number of an element type. A package that has another 16-bit float may add a method: `BytePS.dtype(::Type{BFloat16}) =
BytePS.BFLOAT16`.
"""
dtype(::Type{T}) where {T} = invalid("elements of type $T cannot be reduced; Bool, Int8 to Int64, UInt8, Float16 to Float64 " *
                                     "and complex numbers of Float32 and Float64 can")
dtype(::Type{Int8}) = packed(0, 8)
dtype(::Type{Int16}) = packed(0, 16)
dtype(::Type{Int32}) = packed(0, 32)
dtype(::Type{Int64}) = packed(0, 64)
dtype(::Type{UInt8}) = packed(1, 8)
dtype(::Type{Float16}) = packed(2, 16)
dtype(::Type{Float32}) = packed(2, 32)
dtype(::Type{Float64}) = packed(2, 64)
dtype(::Type{ComplexF32}) = packed(5, 64)
dtype(::Type{ComplexF64}) = packed(5, 128)
dtype(::Type{Bool}) = packed(6, 8)

const BFLOAT16 = packed(4, 16)
if isdefined(Core, :BFloat16)
    dtype(::Type{Core.BFloat16}) = BFLOAT16
end

"""
What a reduction makes of the contributions of all workers. The result has the same bits on every rank and in every run. `ADASUM`
is of [`allreduce!`](@ref) alone.
"""
@enum ReduceOp::Int32 SUM AVERAGE MIN MAX PRODUCT BIT_AND BIT_OR BIT_XOR ADASUM
