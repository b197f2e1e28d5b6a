// read_args.h - reads and fills the structs that cross the C ABI, whatever version their caller was compiled with.
//
//     absl::StatusOr<bps_declare_args> args = ReadArgs(c_args);      // in an entry point
//     return WriteOut(info, c_info);                                 // structs that the library fills
//
// The rules, the same for every struct:
//   - struct_size smaller than the struct had in version 1.0 (0 above all): not initialised with its ..._INIT macro;
//   - smaller than ours: an older caller; the fields it does not have are zero, their default;
//   - larger than ours: a newer caller; accepted if every byte we do not know is zero, and the size is at most 4096;
//   - extensions: a type that the struct does not take is an error unless flagged BPS_EXT_IGNORABLE.
// Everything else is INVALID_ARGUMENT and names the struct.
//
// Threads: free functions without state. Ownership: results are copies; what pointers in them point to is not.
#ifndef BYTEPS_CORE_WORKER_API_READ_ARGS_H_
#define BYTEPS_CORE_WORKER_API_READ_ARGS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "abi/byteps.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace byteps {

// Types of extensions; 0: none.
using ExtensionTypes = std::array<uint32_t, 4>;

// What the rules need to know of a struct.
struct StructRule {
  const char* name;           // "bps_open_args"
  const char* init;           // "BPS_OPEN_ARGS_INIT"
  size_t first_size;          // its size in version 1.0, on every 64-bit platform; never changes
  size_t size;                // its size here
  bool extensible;            // its second field is `const bps_ext* ext`
  ExtensionTypes takes = {};  // of extensions that it may have
};

inline constexpr size_t kMaxStructSize = 4096;
inline constexpr int kMaxExtensions = 64;

// One specialisation per struct of byteps.h.
template <typename T>
inline constexpr StructRule kStructRule = {};
template <>
inline constexpr StructRule kStructRule<bps_open_args> = {"bps_open_args", "BPS_OPEN_ARGS_INIT", 128,
                                                          sizeof(bps_open_args), true};
template <>
inline constexpr StructRule kStructRule<bps_info> = {"bps_info", "BPS_INFO_INIT", 48, sizeof(bps_info), false};
template <>
inline constexpr StructRule kStructRule<bps_declare_args> = {"bps_declare_args", "BPS_DECLARE_ARGS_INIT", 48,
                                                             sizeof(bps_declare_args), true};
template <>
inline constexpr StructRule kStructRule<bps_push_pull_args> = {
    "bps_push_pull_args",
    "BPS_PUSH_PULL_ARGS_INIT",
    96,
    sizeof(bps_push_pull_args),
    true,
    {BPS_EXT_STREAMS, BPS_EXT_CAST, BPS_EXT_GIVE_UP, BPS_EXT_MATCH}};
template <>
inline constexpr StructRule kStructRule<bps_broadcast_args> = {"bps_broadcast_args",
                                                               "BPS_BROADCAST_ARGS_INIT",
                                                               96,
                                                               sizeof(bps_broadcast_args),
                                                               true,
                                                               {BPS_EXT_STREAMS, BPS_EXT_GIVE_UP, BPS_EXT_MATCH}};
template <>
inline constexpr StructRule kStructRule<bps_barrier_args> = {"bps_barrier_args", "BPS_BARRIER_ARGS_INIT", 32,
                                                             sizeof(bps_barrier_args), true};
template <>
inline constexpr StructRule kStructRule<bps_buffer_args> = {"bps_buffer_args", "BPS_BUFFER_ARGS_INIT", 32,
                                                            sizeof(bps_buffer_args), true};

template <>
inline constexpr StructRule kStructRule<bps_result> = {"bps_result", "BPS_RESULT_INIT", 48, sizeof(bps_result), false};
template <>
inline constexpr StructRule kStructRule<bps_process_set_args> = {"bps_process_set_args", "BPS_PROCESS_SET_ARGS_INIT",
                                                                 40, sizeof(bps_process_set_args), true};
template <>
inline constexpr StructRule kStructRule<bps_collective_args> = {"bps_collective_args",
                                                                "BPS_COLLECTIVE_ARGS_INIT",
                                                                176,
                                                                sizeof(bps_collective_args),
                                                                true,
                                                                {BPS_EXT_STREAMS, BPS_EXT_GIVE_UP, BPS_EXT_MATCH}};
template <>
inline constexpr StructRule kStructRule<bps_group_args> = {"bps_group_args", "BPS_GROUP_ARGS_INIT", 48,
                                                           sizeof(bps_group_args), true};

template <>
inline constexpr StructRule kStructRule<bps_join_args> = {"bps_join_args", "BPS_JOIN_ARGS_INIT", 48,
                                                          sizeof(bps_join_args), true};

template <>
inline constexpr StructRule kStructRule<bps_sparse_args> = {
    "bps_sparse_args", "BPS_SPARSE_ARGS_INIT", 112, sizeof(bps_sparse_args), true, {BPS_EXT_GIVE_UP, BPS_EXT_MATCH}};

// Checks struct_size, the bytes beyond ours and the extensions of `from`, then copies at most rule.size bytes to `to`,
// which the caller has zeroed. The untyped heart of ReadArgs.
absl::Status ReadStruct(const StructRule& rule, const void* from, void* to);

// Checks a chain of extensions for the struct called `name`, which takes those of the types `takes`, each once.
absl::Status CheckExtensions(const char* name, const bps_ext* ext, const ExtensionTypes& takes = {});

// The streams in a chain that was checked; zeros where there are none. INVALID_ARGUMENT: what this library does not
// know is set.
absl::StatusOr<bps_streams> ReadStreams(const char* name, const bps_ext* ext);

// Likewise the data type of bps_cast; 0 where there is none.
absl::StatusOr<uint32_t> ReadCast(const char* name, const bps_ext* ext);

// Writes what an operation ends with whose round is given up; nothing where there is no bps_give_up.
absl::Status ReadGiveUp(const char* name, const bps_ext* ext, absl::Status* given_up);

// Likewise the number of bps_match.
absl::Status ReadMatch(const char* name, const bps_ext* ext, uint64_t* number);

// Copies at most to's struct_size bytes of `from` to `to`, its struct_size excepted. The heart of WriteOut.
absl::Status WriteStruct(const StructRule& rule, const void* from, void* to);

// A copy of `*args` with this library's size; NULL is INVALID_ARGUMENT.
template <typename T>
absl::StatusOr<T> ReadArgs(const T* args) {
  static_assert(std::is_trivially_copyable_v<T>);
  static_assert(kStructRule<T>.size == sizeof(T), "add the struct to kStructRule");
  T copy = {};
  absl::Status status = ReadStruct(kStructRule<T>, args, &copy);
  if (!status.ok()) return status;
  return copy;
}

// Fills `*out` as far as its caller knows the struct.
template <typename T>
absl::Status WriteOut(const T& value, T* out) {
  static_assert(std::is_trivially_copyable_v<T>);
  static_assert(kStructRule<T>.size == sizeof(T), "add the struct to kStructRule");
  return WriteStruct(kStructRule<T>, &value, out);
}

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_API_READ_ARGS_H_
