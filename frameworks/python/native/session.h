// session.h - a session as Python sees it: every call of abi/byteps.h on a session, with Python's values.
//
//     session = library.open()
//     request = session.push_pull("layer1.weight", FLOAT32, (64, 32), address, address, SUM, buffers=[gradient])
//     request.wait()
//     session.shutdown(); session.close()
//
// The session keeps alive what the library still reads or writes: the `buffers` of an operation whose Request was
// dropped before the operation had ended are held here until it has. Of an operation on the memory of a GPU they are
// let go of then (ending.h), of others with the next operation. The library never calls back into Python and never
// waits for the GIL; every call that may block, or that takes a lock of the library, releases it.
//
// Threads: as Python's own objects: any thread that holds the GIL.
#ifndef BYTEPS_FRAMEWORKS_PYTHON_NATIVE_SESSION_H_
#define BYTEPS_FRAMEWORKS_PYTHON_NATIVE_SESSION_H_

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "abi/byteps.h"
#include "frameworks/common/library.h"
#include "frameworks/python/native/completions.h"
#include "frameworks/python/native/ending.h"
#include "frameworks/python/native/session_handle.h"

namespace byteps::python {

using binding::Library;

class Buffer;
class PreparedPushPull;
class ProcessSet;
class Request;

// The arguments of bps_open that Python may give; what is absent comes from the environment.
struct OpenOptions {
  std::optional<std::string> coordinator;
  std::optional<std::string> job;
  std::optional<std::string> name;
  std::optional<std::string> token;
  std::optional<std::string> host;
  std::optional<std::string> transport;
  std::optional<std::string> scheduler;
  // (host_index, num_hosts, local_rank, local_size, num_servers)
  std::optional<std::vector<int32_t>> place;
  int32_t log_level = 0;
  std::optional<double> timeout;
};

// A tensor as an operation names it.
struct TensorSpec {
  std::string name;
  uint32_t dtype;
  std::vector<int64_t> shape;
  bool asynchronous = false;
};

// Where the memory of an operation lies, if not on the host: as bps_push_pull_args says it, and bps_streams.
struct DevicePlace {
  int32_t input_device = BPS_CPU;
  int32_t input_id = 0;
  int32_t output_device = BPS_CPU;
  int32_t output_id = 0;
  uintptr_t stream = 0;       // of the GPU: what it holds is done before the input is read and the output written
  bool output_later = false;  // `stream` does not wait for the result; Request::WaitOnStream names who does
};
using OptionalPlace = std::optional<DevicePlace>;

// What bps_collective takes, of Python's values. Addresses as with PushPull; output 0: the library's memory.
struct CollectiveSpec {
  int32_t kind = 0;
  std::optional<std::string> name;
  uint32_t dtype = 0;
  std::vector<int64_t> shape;
  uintptr_t input = 0;
  uintptr_t output = 0;
  uint64_t output_bytes = 0;
  int32_t op = 0;
  std::vector<int64_t> splits;
  int32_t root = 0;
  int32_t peer = 0;
  int64_t tag = 0;
  std::optional<std::pair<double, double>> scale;  // before, after
  std::shared_ptr<ProcessSet> set;                 // nullptr: all ranks
  int64_t priority = 0;
  std::optional<double> timeout;
  OptionalPlace place;  // of the memory, if not on the host
};

// What bps_sparse_all_reduce takes.
struct SparseSpec {
  std::string name;
  uint32_t dtype = 0;
  std::vector<int64_t> shape;  // of the whole tensor
  uintptr_t indices = 0;
  uintptr_t values = 0;
  int64_t rows = 0;
  int32_t op = 0;
  std::shared_ptr<ProcessSet> set;  // nullptr: all ranks
  int64_t priority = 0;
  std::optional<double> timeout;
};

// Converts a timeout in seconds; absent is 0, the library's default. Throws std::invalid_argument unless positive.
int64_t TimeoutMs(const std::optional<double>& seconds);

class Session : public std::enable_shared_from_this<Session> {
 public:
  // Opens a session; Ctrl-C ends the wait for the other members.
  static std::shared_ptr<Session> Open(std::shared_ptr<const Library> library, OpenOptions options);

  explicit Session(std::shared_ptr<SessionHandle> handle);
  ~Session();

  pybind11::dict Info() const;
  // Of the bps_session, for a framework's shared object; valid until Close().
  uintptr_t Address() const;
  void Declare(const TensorSpec& spec);

  // `input` and `output` are addresses of row-major memory of the tensor's dtype and shape, `buffers` any object that
  // keeps them alive, `notice` whom to tell when the operation has ended (a thread that waits for a small tensor is
  // then slower: the end comes on a thread of the library), `place` where the memory is, if not on the host.
  std::shared_ptr<Request> PushPull(const TensorSpec& spec, uintptr_t input, uintptr_t output, int32_t op,
                                    int64_t priority, const std::optional<double>& timeout, pybind11::object buffers,
                                    Notice notice = {}, const OptionalPlace& place = {});
  // As Declare, for many operations like that of `spec` with `op`.
  std::shared_ptr<PreparedPushPull> Prepare(const TensorSpec& spec, int32_t op);
  std::shared_ptr<Request> PushPull(bps_tensor* tensor, int32_t op, uintptr_t input, uintptr_t output, int64_t priority,
                                    pybind11::object buffers);
  std::shared_ptr<Request> Broadcast(const TensorSpec& spec, uintptr_t input, uintptr_t output, int32_t root,
                                     int64_t priority, const std::optional<double>& timeout, pybind11::object buffers,
                                     Notice notice = {}, const OptionalPlace& place = {});
  std::shared_ptr<Request> Collective(const CollectiveSpec& spec, pybind11::object buffers, Notice notice = {});
  // Indices and values are read before it returns.
  std::shared_ptr<Request> SparseAllReduce(const SparseSpec& spec);
  // Uses the next round of such an operation up without taking part: bps_give_up of abi/byteps.h.
  std::shared_ptr<Request> GiveUp(const TensorSpec& spec, int32_t op, const std::string& reason);
  std::shared_ptr<Request> GiveUp(const CollectiveSpec& spec, const std::string& reason);
  std::shared_ptr<Request> GiveUp(const SparseSpec& spec, const std::string& reason);
  // All or nothing.
  std::shared_ptr<Request> Group(const std::vector<CollectiveSpec>& specs, pybind11::object buffers);
  std::shared_ptr<ProcessSet> NewProcessSet(const std::vector<int32_t>& ranks, const std::string& name);
  // Memory of the library's for tensors.
  std::shared_ptr<Buffer> NewBuffer(size_t size, std::optional<int32_t> pinned);
  void Barrier(const std::optional<std::string>& name, const std::optional<double>& timeout);
  // This rank has no data left; returns the last rank to join when all have.
  int32_t Join(const std::optional<double>& timeout);
  // What becomes of operations, as a file; `kind`: BPS_TIMELINE_MOMENT, ...
  void StartTimeline(const std::string& path, bool mark_steps);
  void StopTimeline();
  void Mark(const std::string& name, int32_t kind);
  void Shutdown(const std::optional<double>& timeout);
  void Close();

  // Takes over a request that no caller waits for any more, until it has ended. `ending`: its, or nullptr.
  void Adopt(bps_request* request, pybind11::object buffers, std::shared_ptr<Ending> ending);

  // Frees the orphans that have ended.
  void Sweep();

  const Library& library() const { return handle_->library(); }
  bool IsForkedChild() const { return handle_->IsForkedChild(); }

 private:
  struct Orphan {
    bps_request* request;
    pybind11::object buffers;
    std::shared_ptr<Ending> ending;
  };

  std::shared_ptr<Request> SparseAllReduce(const SparseSpec& spec, const bps_ext* ext);
  // For a new operation; nullptr: its memory is not on a device.
  std::shared_ptr<Ending> EndingOf(bool on_device);

  const std::shared_ptr<SessionHandle> handle_;
  std::vector<Orphan> orphans_;
  std::shared_ptr<Sweeping> sweeping_;  // made with the first operation on memory of a device
};

}  // namespace byteps::python

#endif  // BYTEPS_FRAMEWORKS_PYTHON_NATIVE_SESSION_H_
