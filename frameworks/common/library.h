// library.h - libbyteps.so as the binding sees it: a table of the functions of abi/byteps.h, found at run time.
//
//     std::shared_ptr<const Library> library = Library::Load("/opt/byteps/lib/libbyteps.so");
//     const char* release = library->bps_version_string();
//
// The binding links nothing of BytePS, so one build of it serves every release with the same ABI major version, and a
// process that holds other libraries' symbols cannot be confused by ours: the library is opened RTLD_LOCAL.
//
// Once loaded it stays loaded until the process ends: statuses and threads point into it.
//
// Threads: immutable after Load.
#ifndef BYTEPS_FRAMEWORKS_COMMON_LIBRARY_H_
#define BYTEPS_FRAMEWORKS_COMMON_LIBRARY_H_

#include <memory>
#include <string>

#include "abi/byteps.h"

namespace byteps::binding {

// Every function the binding uses. One that is missing in the library fails the load with its name.
#define BYTEPS_BINDING_FUNCTIONS(X) \
  X(bps_version)                    \
  X(bps_version_string)             \
  X(bps_status_code)                \
  X(bps_status_message)             \
  X(bps_status_retryable)           \
  X(bps_status_free)                \
  X(bps_open_versioned)             \
  X(bps_shutdown)                   \
  X(bps_close)                      \
  X(bps_session_info)               \
  X(bps_transport_name)             \
  X(bps_scheduler_name)             \
  X(bps_declare)                    \
  X(bps_request_state)              \
  X(bps_request_state_name)         \
  X(bps_wait)                       \
  X(bps_test)                       \
  X(bps_cancel)                     \
  X(bps_request_free)               \
  X(bps_push_pull)                  \
  X(bps_broadcast)                  \
  X(bps_barrier)                    \
  X(bps_buffer_alloc)               \
  X(bps_buffer_data)                \
  X(bps_buffer_free)                \
  X(bps_process_set_create)         \
  X(bps_process_set_free)           \
  X(bps_collective)                 \
  X(bps_group)                      \
  X(bps_request_result)             \
  X(bps_join)                       \
  X(bps_sparse_all_reduce)          \
  X(bps_wait_on_stream)             \
  X(bps_timeline_start)             \
  X(bps_timeline_stop)              \
  X(bps_timeline_mark)

// An operation holds it by shared_from_this() until its end: by then another session may have brought another one.
struct Library : std::enable_shared_from_this<Library> {
  // Loads the library at `path`. Throws std::runtime_error with the path and the loader's own words when it cannot be
  // opened, lacks a function, or speaks another major version of the ABI.
  static std::shared_ptr<Library> Load(const std::string& path);

// A name that is declared stands in no parentheses.
#define BYTEPS_BINDING_MEMBER(name) decltype(&::name) name = nullptr;  // NOLINT(bugprone-macro-parentheses)
  BYTEPS_BINDING_FUNCTIONS(BYTEPS_BINDING_MEMBER)
#undef BYTEPS_BINDING_MEMBER

  std::string path;
};

}  // namespace byteps::binding

#endif  // BYTEPS_FRAMEWORKS_COMMON_LIBRARY_H_
