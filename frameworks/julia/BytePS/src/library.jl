# libbyteps.so, found and loaded at the first use. It stays loaded: its threads and statuses point into it.

const ABI_MAJOR = Int32(1)
const ABI_MINOR = Int32(3)

const FUNCTIONS = (
    :bps_version, :bps_version_string,
    :bps_status_code, :bps_status_message, :bps_status_retryable, :bps_status_free,
    :bps_open_versioned, :bps_shutdown, :bps_close, :bps_session_info, :bps_transport_name, :bps_scheduler_name,
    :bps_declare, :bps_wait, :bps_test, :bps_cancel, :bps_request_free,
    :bps_push_pull, :bps_broadcast, :bps_barrier,
    :bps_buffer_alloc, :bps_buffer_data, :bps_buffer_free,
    :bps_process_set_create, :bps_process_set_free,
    :bps_collective, :bps_group, :bps_request_result, :bps_join, :bps_sparse_all_reduce,
    :bps_timeline_start, :bps_timeline_stop, :bps_timeline_mark,
)

"The addresses of the functions, by name."
const Functions = NamedTuple{FUNCTIONS,NTuple{length(FUNCTIONS),Ptr{Cvoid}}}

const FUNCTION_TABLE = Ref{Functions}()
const IS_LOADED = Threads.Atomic{Bool}(false)
const LOADING = ReentrantLock()

"The functions of the library."
@inline functions() = (IS_LOADED[] || load(); FUNCTION_TABLE[])

"Where the library is looked for, and why there."
function candidates()
    named = get(ENV, "BYTEPS_LIBRARY", "")
    isempty(named) || return [(named, "from BYTEPS_LIBRARY")]
    home = get(ENV, "BYTEPS_HOME", "")
    isempty(home) || return [(joinpath(home, "lib", "libbyteps.so"), "from BYTEPS_HOME")]
    return [("libbyteps.so.1", "where the loader looks"), ("libbyteps.so", "where the loader looks")]
end

function load()
    lock(LOADING) do
        IS_LOADED[] && return
        failures = String[]
        for (path, origin) in candidates()
            try
                handle = Libdl.dlopen(path, Libdl.RTLD_NOW | Libdl.RTLD_LOCAL)
                FUNCTION_TABLE[] = Functions(map(name -> Libdl.dlsym(handle, name), FUNCTIONS))
                IS_LOADED[] = true
                return
            catch failure
                push!(failures, "$path ($origin): $(sprint(showerror, failure))")
            end
        end
        error("the BytePS library could not be loaded.\n  ", join(failures, "\n  "),
              "\nInstall BytePS and set BYTEPS_HOME to its prefix (or to the folder of the Python package byteps).")
    end
end

"""
    @gc_safe ccall(...)

A call that may block: other threads may collect garbage meanwhile, which would wait for this one else. Its arguments are
plain numbers and pointers that were computed before.
"""
macro gc_safe(call)
    quote
        state = ccall(:jl_gc_safe_enter, Int8, ())
        result = $(esc(call))
        ccall(:jl_gc_safe_leave, Cvoid, (Int8,), state)
        result
    end
end

"The release of the library, such as v\"0.1.0\"."
library_version() = VersionNumber(unsafe_string(ccall(functions().bps_version_string, Cstring, ())))
