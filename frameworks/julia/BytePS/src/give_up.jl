# Rounds that are given up.

"""
    give_up(session, reason) do place
        push_pull!(place, "gradient", gradient)
        allgather(place, "tokens", tokens)
    end

Uses the next round of each of these operations up without taking part, as where a training step ended half-way: they throw
`:ABORTED` on the other ranks, naming this one and the reason, and later rounds of the names meet those of the other ranks again.
The arrays say the type and the size; they are neither read nor written. Returns when all has been given up.
"""
function give_up(body, session::Session, reason::AbstractString)
    place = GivenUp(session, String(reason), Request[])
    body(place)
    for request in place.requests
        try
            wait(request)
        catch failure
            failure isa BytePSError && failure.code === :CANCELLED || rethrow()
        end
    end
end

"Where operations go that are given up."
struct GivenUp
    session::Session
    reason::String
    requests::Vector{Request}
end

session_of(place::GivenUp) = place.session
begin_at(place::GivenUp, description::Description) =
    (push!(place.requests, start(place.session, description, place.reason)); nothing)

push_pull!(place::GivenUp, name::AbstractString, array::AbstractArray; options...) =
    (push!(place.requests, push_pull_async!(place.session, name, array; reason=place.reason, options...)); nothing)
sparse_allreduce(place::GivenUp, arguments...; options...) =
    (push!(place.requests, sparse_allreduce_async(place.session, arguments...; reason=place.reason, options...)); nothing)

for (name, starts) in STARTS
    @eval $name(place::GivenUp, arguments...; options...) = $starts(place, arguments...; options...)
end
bcast!(place::GivenUp, name::AbstractString, array::AbstractArray; set=nothing, options...) =
    set === nothing ?
    (push!(place.requests, bcast_async!(place.session, name, array; reason=place.reason, options...)); nothing) :
    bcast_among(place, name, array; set=set, options...)
barrier(place::GivenUp; name::AbstractString="barrier", options...) =
    begin_at(place, describe(place.session, BARRIER, name, UInt8[]; options...))
