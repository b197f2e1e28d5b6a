"""
Gradient communication for data-parallel training: workers hand arrays to CPU servers that sum them, and get the sum back.

    using BytePS
    Session() do session                                 # bpslaunch says which job
        push_pull!(session, "gradient", gradient)        # the average over all workers, in place
    end

Started as `bpslaunch --workers 2 -- julia train.jl`; alone it is a job of one worker.

A task that waits for a request lets others of its thread run, at least every hundredth of a second; `Session`, `barrier`,
`shutdown` and `close` hold their thread. None of them holds up the garbage collector of other threads.
Failures are [`BytePSError`](@ref)s in the library's words.
"""
module BytePS

import Libdl

export Session, BytePSError, Buffer, DeviceArray, device_buffer
export push_pull!, push_pull_async!, bcast!, bcast_async!, barrier, shutdown, declare, info, isended, cancel
export ProcessSet, allreduce!, allreduce_async!, allgather, allgather_async, reducescatter, reducescatter_async
export alltoall, alltoall_async, reduceto, reduceto_async, gather, gather_async, scatter, scatter_async
export send, send_async, receive!, receive_async!, group, group_async, splits
export sparse_allreduce, sparse_allreduce_async, join!, join_async!, give_up
export start_timeline, stop_timeline, timeline_mark, timeline_span
export SUM, AVERAGE, MIN, MAX, PRODUCT, BIT_AND, BIT_OR, BIT_XOR, ADASUM

include("structs.jl")
include("library.jl")
include("errors.jl")
include("dtypes.jl")
include("session.jl")
include("buffer.jl")
include("device.jl")
include("request.jl")
include("extensions.jl")
include("operations.jl")
include("process_set.jl")
include("collectives.jl")
include("group.jl")
include("sparse.jl")
include("give_up.jl")
include("join.jl")
include("timeline.jl")

end
