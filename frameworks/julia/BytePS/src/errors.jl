"Kinds of failure; numerically those of the C interface, of Abseil and of gRPC."
const CODES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED",
)

"""
A failed call, in the library's words: what was asked, what was found, who is missing.

* `code::Symbol`: what kind of failure, such as `:UNAVAILABLE` (a member of the job died) or `:DEADLINE_EXCEEDED`
* `message::String`
* `retryable::Bool`: whether the same call may succeed when tried again on this session
"""
struct BytePSError <: Exception
    code::Symbol
    message::String
    retryable::Bool
end

Base.showerror(io::IO, error::BytePSError) = print(io, "BytePSError: ", error.message, " (", error.code, ")")

code_symbol(number::Integer) = Symbol(0 <= number < length(CODES) ? CODES[number + 1] : "UNKNOWN")

"Throws the error that a status is, and frees the status; nothing for a null one."
@inline check(status::Ptr{Cvoid}) = status == C_NULL ? nothing : throw(take_error(status))

function take_error(status::Ptr{Cvoid})
    library = functions()
    code = ccall(library.bps_status_code, Int32, (Ptr{Cvoid},), status)
    message = unsafe_string(ccall(library.bps_status_message, Cstring, (Ptr{Cvoid},), status))
    retryable = ccall(library.bps_status_retryable, Int32, (Ptr{Cvoid},), status) != 0
    ccall(library.bps_status_free, Cvoid, (Ptr{Cvoid},), status)
    return BytePSError(code_symbol(code), message, retryable)
end

invalid(message) = throw(BytePSError(:INVALID_ARGUMENT, message, false))

"Seconds as the library's milliseconds, rounded up; `nothing` is its default."
milliseconds(::Nothing) = Int64(0)
function milliseconds(seconds::Real)
    0 < seconds <= 1e9 || invalid("timeout is $seconds s; it must be positive (nothing means the default)")
    return ceil(Int64, seconds * 1000)
end
