"""
    group(session) do together
        allreduce!(together, "loss", loss)
        allgather(together, "tokens", tokens)
    end

Starts several collectives as one, all or nothing, and waits until all have ended. Returns a vector of their outputs, in order.
[`group_async`](@ref) returns a [`Request`](@ref) at once. If one fails, so does the whole.
"""
group(body, session::Session) = wait(group_async(body, session))

"Collectives that are to be started as one."
struct Group
    session::Session
    members::Vector{Description}
end

session_of(group::Group) = group.session
begin_at(group::Group, description::Description) = (push!(group.members, description); nothing)

# What is started here, by the name under which a session does it and waits.
const STARTS = [(:allgather, :allgather_async), (:reducescatter, :reducescatter_async), (:alltoall, :alltoall_async),
                (:reduceto, :reduceto_async), (:gather, :gather_async), (:scatter, :scatter_async),
                (:allreduce!, :allreduce_async!), (:send, :send_async), (:receive!, :receive_async!)]
for (name, starts) in STARTS
    @eval $name(group::Group, arguments...; options...) = $starts(group, arguments...; options...)
end
bcast!(group::Group, arguments...; options...) = bcast_among(group, arguments...; options...)
barrier(group::Group; name::AbstractString="barrier", options...) =
    begin_at(group, describe(group.session, BARRIER, name, UInt8[]; options...))

"As [`group`](@ref), but returns a [`Request`](@ref) at once: the arrays must not be used until it has been waited for."
function group_async(body, session::Session)
    together = Group(session, Description[])
    body(together)
    members = together.members
    call, made = functions().bps_group, Ref{Ptr{Cvoid}}(C_NULL)
    all = map(member -> member.args, members)
    GC.@preserve members all begin
        operations = [pointer(all, i) for i in eachindex(all)]
        GC.@preserve operations begin
            args = Ref(fill_struct(GroupArgs; operations=pointer(operations), num_operations=length(operations)))
            use(session) do handle
                check(ccall(call, Ptr{Cvoid}, (Ptr{Cvoid}, Ptr{GroupArgs}, Ptr{Ptr{Cvoid}}), handle, args, made))
            end
        end
        return hold(Request(session, made[], Members(map(member -> member.output, members), map(member -> member.args.output, members)),
                            members, C_NULL))
    end
end

"The outputs of a group, and where they were when it began."
struct Members
    outputs::Vector{Any}
    addresses::Vector{Ptr{Cvoid}}
end

function land(request::Request{Members})
    release(request)
    return map(enumerate(request.output.outputs)) do (i, output)
        output isa Gathered ? collect!(output, request, i - 1) : in_place(output, request.output.addresses[i])
    end
end
