# What goes with an operation's arguments (bps_ext): a number that the ranks compare, and the reason of a round that is given up.

"The chain of an operation's extensions; what `first` points at lives as long as this does."
struct Extensions
    first::Ptr{Cvoid}
    roots::Any
end

"""
The extensions of an operation, in front of its streams; nothing, where there are none but these. `match`: 0 is none; `reason`: of
a round that is given up.
"""
function extend(streams, match::Integer, reason::Union{Nothing,String}=nothing)
    match == 0 && reason === nothing && return nothing
    number = match == 0 ? nothing : Ref(Match(Ext(sizeof(Match), EXT_MATCH, 0, address(streams)), match))
    next = number === nothing ? streams : number
    reason === nothing && return Extensions(address(number), (streams, number))
    text = Base.cconvert(Cstring, reason)
    given_up = Ref(GiveUp(Ext(sizeof(GiveUp), EXT_GIVE_UP, 0, address(next)), Base.unsafe_convert(Cstring, text)))
    return Extensions(address(given_up), (streams, number, text, given_up))
end

address(::Nothing) = Ptr{Cvoid}(C_NULL)
address(extension::Ref{T}) where {T} = Ptr{Cvoid}(Base.unsafe_convert(Ptr{T}, extension))

"The fields of an operation's struct with its extensions."
with_extensions(fields::NamedTuple, ::Nothing) = fields
with_extensions(fields::NamedTuple, extensions::Extensions) = merge(fields, (ext=extensions.first,))
