# The structs of byteps.h, field by field. `defaults(T)` is the ..._INIT macro of T.

struct OpenArgs
    struct_size::Csize_t
    ext::Ptr{Cvoid}
    coordinator::Cstring
    job::Cstring
    name::Cstring
    token::Cstring
    host::Cstring
    transport::Cstring
    scheduler::Cstring
    has_place::Int32
    host_index::Int32
    num_hosts::Int32
    local_rank::Int32
    local_size::Int32
    num_servers::Int32
    log_level::Int32
    timeout_ms::Int64
    log::Ptr{Cvoid}
    log_user::Ptr{Cvoid}
end

struct InfoStruct
    struct_size::Csize_t
    rank::Int32
    size::Int32
    local_rank::Int32
    local_size::Int32
    num_servers::Int32
    failed::Int32
    epoch::UInt64
    generation::UInt64
    shared_buffers::Int32
    reserved::Int32
end

struct DeclareArgs
    struct_size::Csize_t
    ext::Ptr{Cvoid}
    name::Cstring
    shape::Ptr{Int64}
    ndim::Int32
    dtype::UInt32
    mode::Int32
    staleness::Int32
end

struct PushPullArgs
    struct_size::Csize_t
    ext::Ptr{Cvoid}
    tensor::Ptr{Cvoid}
    input::Ptr{Cvoid}
    output::Ptr{Cvoid}
    priority::Int64
    op::Int32
    input_device::Int32
    input_device_id::Int32
    output_device::Int32
    output_device_id::Int32
    reserved::Int32
    timeout_ms::Int64
    done::Ptr{Cvoid}
    user::Ptr{Cvoid}
    done_in_call::Int32
    reserved2::Int32
end

struct BroadcastArgs
    struct_size::Csize_t
    ext::Ptr{Cvoid}
    tensor::Ptr{Cvoid}
    input::Ptr{Cvoid}
    output::Ptr{Cvoid}
    priority::Int64
    root::Int32
    input_device::Int32
    input_device_id::Int32
    output_device::Int32
    output_device_id::Int32
    reserved::Int32
    timeout_ms::Int64
    done::Ptr{Cvoid}
    user::Ptr{Cvoid}
    done_in_call::Int32
    reserved2::Int32
end

struct BarrierArgs
    struct_size::Csize_t
    ext::Ptr{Cvoid}
    name::Cstring
    timeout_ms::Int64
end

struct BufferArgs
    struct_size::Csize_t
    ext::Ptr{Cvoid}
    size::Csize_t
    device::Int32
    device_id::Int32
end

struct Ext
    struct_size::Csize_t
    type::UInt32
    flags::UInt32
    next::Ptr{Cvoid}
end

const EXT_STREAMS = UInt32(1)
const EXT_GIVE_UP = UInt32(3)
const EXT_MATCH = UInt32(4)

struct Streams
    ext::Ext
    input::Ptr{Cvoid}
    output::Ptr{Cvoid}
    output_later::Int32
    reserved::Int32
end

struct GiveUp
    ext::Ext
    reason::Cstring
end

struct Match
    ext::Ext
    number::UInt64
end

struct ProcessSetArgs
    struct_size::Csize_t
    ext::Ptr{Cvoid}
    name::Cstring
    ranks::Ptr{Int32}
    num_ranks::Int32
    reserved::Int32
end

struct CollectiveArgs
    struct_size::Csize_t
    ext::Ptr{Cvoid}
    name::Cstring
    set::Ptr{Cvoid}
    input::Ptr{Cvoid}
    output::Ptr{Cvoid}
    output_bytes::UInt64
    shape::Ptr{Int64}
    splits::Ptr{Int64}
    tag::Int64
    priority::Int64
    timeout_ms::Int64
    prescale::Float64
    postscale::Float64
    done::Ptr{Cvoid}
    user::Ptr{Cvoid}
    kind::Int32
    ndim::Int32
    dtype::UInt32
    op::Int32
    num_splits::Int32
    root::Int32
    peer::Int32
    scaled::Int32
    input_device::Int32
    input_device_id::Int32
    output_device::Int32
    output_device_id::Int32
end

struct GroupArgs
    struct_size::Csize_t
    ext::Ptr{Cvoid}
    operations::Ptr{Ptr{CollectiveArgs}}
    num_operations::Int32
    reserved::Int32
    done::Ptr{Cvoid}
    user::Ptr{Cvoid}
end

struct ResultStruct
    struct_size::Csize_t
    data::Ptr{Cvoid}
    bytes::UInt64
    shape::Ptr{Int64}
    splits::Ptr{Int64}
    ndim::Int32
    num_splits::Int32
end

struct JoinArgs
    struct_size::Csize_t
    ext::Ptr{Cvoid}
    last_rank::Ptr{Int32}
    timeout_ms::Int64
    done::Ptr{Cvoid}
    user::Ptr{Cvoid}
end

struct SparseArgs
    struct_size::Csize_t
    ext::Ptr{Cvoid}
    name::Cstring
    set::Ptr{Cvoid}
    indices::Ptr{Int64}
    values::Ptr{Cvoid}
    num_rows::Int64
    shape::Ptr{Int64}
    priority::Int64
    timeout_ms::Int64
    done::Ptr{Cvoid}
    user::Ptr{Cvoid}
    ndim::Int32
    dtype::UInt32
    op::Int32
    reserved::Int32
end

zero_of(::Type{T}) where {T<:Real} = zero(T)
zero_of(::Type{Ptr{T}}) where {T} = Ptr{T}(C_NULL)
zero_of(::Type{Cstring}) = Cstring(C_NULL)

"The struct with another value of one field."
with_field(given::T, name::Symbol, value) where {T} =
    T(map(fieldnames(T)) do each
        each === name ? value : getfield(given, each)
    end...)

"The struct with its size set, the given fields, and zero in all others."
function fill_struct(::Type{T}; fields...) where {T}
    given = fields.data
    values = map(fieldnames(T), fieldtypes(T)) do name, type
        name === :struct_size ? Csize_t(sizeof(T)) :
        haskey(given, name) ? convert(type, given[name]) : zero_of(type)
    end
    return T(values...)
end
