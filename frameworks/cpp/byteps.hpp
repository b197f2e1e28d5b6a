// byteps.hpp - BytePS for C++20: abi/byteps.h with owners, spans, futures, and errors as exceptions or values.
//
//     byteps::Session session;                                             // the environment says which job
//     byteps::TensorOf<float> tensor = session.Declare<float>("layer1.weight", {64, 32});
//
//     session.PushPull(tensor, std::span(gradient), byteps::Op::kAverage).Wait();       // in place
//     session.Shutdown();
//
// It adds nothing to the C interface, whose documentation holds. Four ways to hear of the end of an operation:
//
//     Request request = session.PushPull(tensor, span, op);                // request.Wait(), request.Test()
//     session.PushPull(tensor, span, op, {.done = [](Status status) {...}});            // on a thread of the library
//     std::future<void> future = session.PushPullFuture(tensor, span, op);
//     OwningRequest<std::vector<float>> request = session.PushPullOwned(tensor, std::move(vector), op);
//
// Every other collective is started by its description, and brings its result:
//
//     CollectiveRequest request = session.Start(Collective::AllGather("tokens", std::move(rows), {4, 3}));
//     request.Wait();
//     Output<float> all = request.Output<float>();                         // all.data, all.shape, all.splits
//
// Memory. Spans must stay valid until the operation has ended. A Request that is destroyed before lets its operation go
// on; a Group waits for its requests when it is destroyed, so that spans of the same block outlive them; an
// OwningRequest owns the memory, which lives until the operation has ended whatever becomes of the request.
//
// Errors. Every call that can fail throws byteps::Error. Its twin with Try in front returns a Status or a Result and
// throws nothing. Destructors do not throw.
//
// Threads. As the C interface; moving and destroying an object need a single owner, as everywhere. A session is
// destroyed after the last call on it; requests, buffers and futures may outlive it.
#ifndef BYTEPS_FRAMEWORKS_CPP_BYTEPS_HPP_
#define BYTEPS_FRAMEWORKS_CPP_BYTEPS_HPP_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "abi/byteps.h"
#include "frameworks/cpp/collective.hpp"
#include "frameworks/cpp/element.hpp"
#include "frameworks/cpp/request.hpp"
#include "frameworks/cpp/status.hpp"

namespace byteps {

// ---- Tensors --------------------------------------------------------------------------------------------------------

// A declared tensor; belongs to its session.
class Tensor {
 public:
  explicit Tensor(bps_tensor* tensor) : tensor_(tensor) {}
  bps_tensor* get() const { return tensor_; }

 private:
  bps_tensor* tensor_;
};

// A declared tensor of `size` elements of T.
template <typename T>
class TensorOf : public Tensor {
 public:
  TensorOf(bps_tensor* tensor, size_t size) : Tensor(tensor), size_(size) {}
  size_t size() const { return size_; }

 private:
  size_t size_;
};

// ---- Buffers --------------------------------------------------------------------------------------------------------

// Zeroed memory that the library moves fastest: other workers of this host use it where it is. It may outlive its
// session.
template <typename T>
class Buffer {
 public:
  Buffer(bps_buffer* buffer, size_t size) : buffer_(buffer), size_(size) {}

  T* data() const { return static_cast<T*>(bps_buffer_data(buffer_.get())); }
  size_t size() const { return size_; }
  T* begin() const { return data(); }
  T* end() const { return data() + size_; }
  T& operator[](size_t index) const { return data()[index]; }
  std::span<T> span() const { return {data(), size_}; }
  bps_buffer* get() const { return buffer_.get(); }

 private:
  struct Free {
    // Refused while an operation uses it: then the memory stays.
    void operator()(bps_buffer* buffer) const { bps_status_free(bps_buffer_free(buffer)); }
  };
  std::unique_ptr<bps_buffer, Free> buffer_;
  size_t size_;
};

// Memory of a GPU, zeros: an address that operations take (args.input_device = BPS_CUDA) and that the host cannot
// touch. It may outlive its session.
template <typename T>
class DeviceBuffer {
 public:
  DeviceBuffer(bps_buffer* buffer, size_t size, int32_t gpu) : buffer_(buffer, size), gpu_(gpu) {}

  T* data() const { return buffer_.data(); }
  size_t size() const { return buffer_.size(); }
  // As the process counts its GPUs.
  int32_t gpu() const { return gpu_; }

 private:
  Buffer<T> buffer_;
  int32_t gpu_;
};

// ---- Session --------------------------------------------------------------------------------------------------------

// A membership in a job.
class Session {
 public:
  // Joins the job that the environment names.
  Session() : Session(Defaults()) {}
  // Joins the job that `args` names; start from BPS_OPEN_ARGS_INIT.
  explicit Session(const bps_open_args& args) {
    bps_session* session = nullptr;
    Check(bps_open(&args, &session));
    session_.reset(session);
  }
  static Result<Session> TryOpen(const bps_open_args& args = Defaults()) {
    bps_session* session = nullptr;
    if (bps_status* status = bps_open(&args, &session)) return Status(status);
    return Session(session);
  }

  bps_info Info() const {
    auto info = internal::Initialised<bps_info>();
    Check(bps_session_info(session_.get(), &info));
    return info;
  }
  std::string transport() const { return bps_transport_name(session_.get()); }
  std::string scheduler() const { return bps_scheduler_name(session_.get()); }

  // Declares a tensor; does not block.
  Tensor Declare(const std::string& name, uint32_t dtype, const std::vector<int64_t>& shape) {
    return TryDeclare(name, dtype, shape).value();
  }
  Result<Tensor> TryDeclare(const std::string& name, uint32_t dtype, const std::vector<int64_t>& shape) {
    auto args = internal::Initialised<bps_declare_args>();
    args.name = name.c_str();
    args.dtype = dtype;
    args.shape = shape.data();
    args.ndim = static_cast<int32_t>(shape.size());
    bps_tensor* tensor = nullptr;
    if (bps_status* status = bps_declare(session_.get(), &args, &tensor)) return Status(status);
    return Tensor(tensor);
  }
  template <typename T>
  TensorOf<T> Declare(const std::string& name, const std::vector<int64_t>& shape) {
    return TryDeclare<T>(name, shape).value();
  }
  template <typename T>
  Result<TensorOf<T>> TryDeclare(const std::string& name, const std::vector<int64_t>& shape) {
    Result<Tensor> tensor = TryDeclare(name, DType<T>::kValue, shape);
    if (!tensor) return tensor.status();
    size_t size = 1;
    for (int64_t extent : shape) size *= static_cast<size_t>(extent);
    return TensorOf<T>(tensor->get(), size);
  }

  // Starts the reduction over all workers, in place, or of `input` into `output`.
  template <typename T>
  Request PushPull(TensorOf<T> tensor, std::span<std::type_identity_t<T>> data, Op op, Options options = {}) {
    return TryPushPull<T>(tensor, data, data, op, std::move(options)).value();
  }
  template <typename T>
  Request PushPull(TensorOf<T> tensor, std::span<const std::type_identity_t<T>> input,
                   std::span<std::type_identity_t<T>> output, Op op, Options options = {}) {
    return TryPushPull<T>(tensor, input, output, op, std::move(options)).value();
  }
  template <typename T>
  Result<Request> TryPushPull(TensorOf<T> tensor, std::span<const std::type_identity_t<T>> input,
                              std::span<std::type_identity_t<T>> output, Op op, Options options = {}) {
    if (Status status = CheckSizes(tensor, input.size(), output.size()); !status.ok()) return status;
    return Start(PushPullArgs(tensor, input.data(), output.data(), static_cast<int32_t>(op)), std::move(options));
  }
  // The same for memory whose type the program knows alone.
  Request PushPull(Tensor tensor, const void* input, void* output, int32_t op, int64_t priority = 0) {
    return Start(PushPullArgs(tensor, input, output, op), {.priority = priority}).value();
  }
  // The outcome as a future, whose get() throws Error.
  template <typename T>
  std::future<void> PushPullFuture(TensorOf<T> tensor, std::span<std::type_identity_t<T>> data, Op op,
                                   Options options = {}) {
    return Future(std::move(options),
                  [&](Options with) { return TryPushPull<T>(tensor, data, data, op, std::move(with)); });
  }
  // In place, in memory that the request owns: a vector, an array, a Buffer.
  template <typename T, typename Container>
  OwningRequest<Container> PushPullOwned(TensorOf<T> tensor, Container container, Op op, Options options = {}) {
    auto memory = std::make_shared<Container>(std::move(container));
    const std::span<T> data(memory->data(), memory->size());
    options.done = internal::Keeping(memory, std::move(options.done));
    return {TryPushPull<T>(tensor, data, data, op, std::move(options)).value(), std::move(memory)};
  }

  // Starts the copy of the root's `input` into every rank's `output`; in place: of the root's `data` into every rank's.
  template <typename T>
  Request Broadcast(TensorOf<T> tensor, std::span<std::type_identity_t<T>> data, int32_t root, Options options = {}) {
    return TryBroadcast<T>(tensor, data, data, root, std::move(options)).value();
  }
  template <typename T>
  Result<Request> TryBroadcast(TensorOf<T> tensor, std::span<const std::type_identity_t<T>> input,
                               std::span<std::type_identity_t<T>> output, int32_t root, Options options = {}) {
    // Elsewhere than on the root the input is not looked at.
    const size_t given = Info().rank == root ? input.size() : tensor.size();
    if (Status status = CheckSizes(tensor, given, output.size()); !status.ok()) return status;
    return Start(BroadcastArgs(tensor, input.data(), output.data(), root), std::move(options));
  }
  Request Broadcast(Tensor tensor, const void* input, void* output, int32_t root, int64_t priority = 0) {
    return Start(BroadcastArgs(tensor, input, output, root), {.priority = priority}).value();
  }
  template <typename T>
  std::future<void> BroadcastFuture(TensorOf<T> tensor, std::span<std::type_identity_t<T>> data, int32_t root,
                                    Options options = {}) {
    return Future(std::move(options),
                  [&](Options with) { return TryBroadcast<T>(tensor, data, data, root, std::move(with)); });
  }

  // Uses the next round of a tensor's name up without taking part, as where a training step ended half-way, so that
  // later ones meet those of the other ranks again: the request ends with BPS_CANCELLED, the operation of the
  // others with BPS_ABORTED, which names this rank and the reason.
  Request GiveUpPushPull(Tensor tensor, Op op, const std::string& reason) {
    return TryGiveUpPushPull(tensor, op, reason).value();
  }
  Result<Request> TryGiveUpPushPull(Tensor tensor, Op op, const std::string& reason) {
    return Start(PushPullArgs(tensor, nullptr, nullptr, static_cast<int32_t>(op)), {}, reason.c_str());
  }
  Request GiveUpBroadcast(Tensor tensor, int32_t root, const std::string& reason) {
    return TryGiveUpBroadcast(tensor, root, reason).value();
  }
  Result<Request> TryGiveUpBroadcast(Tensor tensor, int32_t root, const std::string& reason) {
    return Start(BroadcastArgs(tensor, nullptr, nullptr, root), {}, reason.c_str());
  }

  // Some of the ranks, for collectives of their own. Sets of the same ranks and name are the same set on all ranks.
  ProcessSet NewProcessSet(const std::vector<int32_t>& ranks, const std::string& name = "") {
    return TryNewProcessSet(ranks, name).value();
  }
  Result<ProcessSet> TryNewProcessSet(const std::vector<int32_t>& ranks, const std::string& name = "") {
    auto args = internal::Initialised<bps_process_set_args>();
    args.name = name.c_str();
    args.ranks = ranks.data();
    args.num_ranks = static_cast<int32_t>(ranks.size());
    bps_process_set* set = nullptr;
    if (bps_status* status = bps_process_set_create(session_.get(), &args, &set)) return Status(status);
    return ProcessSet(set);
  }

  // Starts a collective: session.Start(Collective::AllGather(...)). `done` as of Options.
  CollectiveRequest Start(Collective collective, std::function<void(Status)> done = nullptr) {
    return TryStart(std::move(collective), std::move(done)).value();
  }
  Result<CollectiveRequest> TryStart(Collective collective, std::function<void(Status)> done = nullptr) {
    return CollectiveRequest::Start(session_.get(), std::move(collective), std::move(done));
  }
  // Uses the next round of a collective up, as GiveUpPushPull does. Its input may be empty.
  CollectiveRequest GiveUp(Collective collective, const std::string& reason) {
    return TryGiveUp(std::move(collective), reason).value();
  }
  Result<CollectiveRequest> TryGiveUp(Collective collective, const std::string& reason) {
    return CollectiveRequest::GiveUp(session_.get(), std::move(collective), reason);
  }
  // Starts several as one, all or nothing: it ends when all of them have.
  CollectiveRequest StartGroup(std::vector<Collective> collectives, std::function<void(Status)> done = nullptr) {
    return TryStartGroup(std::move(collectives), std::move(done)).value();
  }
  Result<CollectiveRequest> TryStartGroup(std::vector<Collective> collectives,
                                          std::function<void(Status)> done = nullptr) {
    return CollectiveRequest::Start(session_.get(), std::move(collectives), std::move(done));
  }

  // Starts the reduction of a tensor of which each rank has some rows, zeros elsewhere: `values` are the rows numbered
  // `indices`, both read before this returns. The request then has the rows that any rank has as Output<T>(0) and their
  // numbers as Output<int64_t>(1); or the whole tensor, and no numbers, where that is less to send.
  template <typename T>
  CollectiveRequest SparseAllReduce(const std::string& name, std::span<const int64_t> indices,
                                    std::span<const std::type_identity_t<T>> values, const Shape& shape, Op op,
                                    const CollectiveOptions& options = {}) {
    return TrySparseAllReduce<T>(name, indices, values, shape, op, options).value();
  }
  template <typename T>
  Result<CollectiveRequest> TrySparseAllReduce(const std::string& name, std::span<const int64_t> indices,
                                               std::span<const std::type_identity_t<T>> values, const Shape& shape,
                                               Op op, const CollectiveOptions& options = {}) {
    size_t row = 1;
    for (size_t i = 1; i < shape.size(); ++i) row *= static_cast<size_t>(shape[i]);
    if (values.size() != indices.size() * row) {
      return Status(BPS_INVALID_ARGUMENT, "sparse tensor \"" + name + "\": " + std::to_string(indices.size()) +
                                              " rows of " + std::to_string(row) + " elements each are not " +
                                              std::to_string(values.size()) + " values");
    }
    if (!options.splits.empty() || options.factors) {
      return Status(BPS_INVALID_ARGUMENT, "sparse tensor \"" + name + "\": it has neither splits nor factors");
    }
    return StartSparse<T>(name, indices, values, shape, op, options, nullptr);
  }
  // Uses the next round of it up, as GiveUpPushPull does.
  template <typename T>
  CollectiveRequest GiveUpSparseAllReduce(const std::string& name, const Shape& shape, Op op, const std::string& reason,
                                          const CollectiveOptions& options = {}) {
    return TryGiveUpSparseAllReduce<T>(name, shape, op, reason, options).value();
  }
  template <typename T>
  Result<CollectiveRequest> TryGiveUpSparseAllReduce(const std::string& name, const Shape& shape, Op op,
                                                     const std::string& reason, const CollectiveOptions& options = {}) {
    return StartSparse<T>(name, {}, {}, shape, op, options, reason.c_str());
  }

  // Says that this rank has no data left: until all have said so it counts as zeros in what the others submit.
  JoinRequest Join(Timeout timeout = Timeout(0)) { return TryJoin(timeout).value(); }
  Result<JoinRequest> TryJoin(Timeout timeout = Timeout(0)) {
    auto last_rank = std::make_shared<int32_t>(-1);
    auto args = internal::Initialised<bps_join_args>();
    args.last_rank = last_rank.get();
    args.timeout_ms = timeout.count();
    Result<Request> request = internal::Submit(args, internal::Keeping(last_rank, nullptr),
                                               [this](const bps_join_args& filled, bps_request** submitted) {
                                                 return bps_join(session_.get(), &filled, submitted);
                                               });
    if (!request) return request.status();
    return JoinRequest(std::move(*request), std::move(last_rank));
  }

  template <typename T>
  Buffer<T> NewBuffer(size_t size) {
    return TryNewBuffer<T>(size).value();
  }
  template <typename T>
  Result<Buffer<T>> TryNewBuffer(size_t size) {
    return Allocate<Buffer, T>(size, BPS_CPU, 0);
  }
  // Pinned by a GPU: any of them copies from and to it in the order of its streams.
  template <typename T>
  Buffer<T> NewPinnedBuffer(size_t size, int32_t gpu = 0) {
    return TryNewPinnedBuffer<T>(size, gpu).value();
  }
  template <typename T>
  Result<Buffer<T>> TryNewPinnedBuffer(size_t size, int32_t gpu = 0) {
    return Allocate<Buffer, T>(size, BPS_CUDA_HOST, gpu);
  }
  template <typename T>
  DeviceBuffer<T> NewDeviceBuffer(size_t size, int32_t gpu = 0) {
    return TryNewDeviceBuffer<T>(size, gpu).value();
  }
  template <typename T>
  Result<DeviceBuffer<T>> TryNewDeviceBuffer(size_t size, int32_t gpu = 0) {
    return Allocate<DeviceBuffer, T>(size, BPS_CUDA, gpu, gpu);
  }

  // Waits until every worker has called it as often.
  void Barrier(const std::string& name = "", Timeout timeout = Timeout(0)) { Check(TryBarrier(name, timeout)); }
  Status TryBarrier(const std::string& name = "", Timeout timeout = Timeout(0)) {
    auto args = internal::Initialised<bps_barrier_args>();
    args.name = name.c_str();
    args.timeout_ms = timeout.count();
    return Status(bps_barrier(session_.get(), &args));
  }

  // Writes what becomes of every operation from now on as a file of Chrome's trace events (docs/timeline.md): rank 0 to
  // `path`, the others beside it. StopTimeline ends it, or the end of the session.
  void StartTimeline(const std::string& path, uint32_t flags = 0) { Check(TryStartTimeline(path, flags)); }
  Status TryStartTimeline(const std::string& path, uint32_t flags = 0) {
    return Status(bps_timeline_start(session_.get(), path.c_str(), flags));
  }
  void StopTimeline() { Check(TryStopTimeline()); }
  Status TryStopTimeline() { return Status(bps_timeline_stop(session_.get())); }
  // What the program does itself, in the timeline that is being written; nothing, where there is none.
  void Mark(const std::string& name) { Check(TryMark(name)); }
  Status TryMark(const std::string& name) {
    return Status(bps_timeline_mark(session_.get(), name.c_str(), BPS_TIMELINE_MOMENT));
  }
  // From here to the end of the object's life. It is used on one thread, and ends before the session.
  class Span {
   public:
    ~Span() { bps_status_free(bps_timeline_mark(session_, nullptr, BPS_TIMELINE_END)); }
    Span(const Span&) = delete;
    Span& operator=(const Span&) = delete;

   private:
    friend class Session;
    Span(bps_session* session, const std::string& name) : session_(session) {
      Check(bps_timeline_mark(session, name.c_str(), BPS_TIMELINE_BEGIN));
    }
    bps_session* const session_;
  };
  [[nodiscard]] Span MarkSpan(const std::string& name) { return {session_.get(), name}; }

  // Leaves the job in order. Without it the others see this worker fail when the session is destroyed.
  void Shutdown(Timeout timeout = Timeout(0)) { Check(TryShutdown(timeout)); }
  Status TryShutdown(Timeout timeout = Timeout(0)) { return Status(bps_shutdown(session_.get(), timeout.count())); }

  // What the destructor does, but with a word: it cannot be done inside a callback. The session is empty afterwards.
  void Close() {
    Check(bps_close(session_.get()));
    (void)session_.release();
  }

  bps_session* get() const { return session_.get(); }

 private:
  // Memory<T>(the buffer, size, more...).
  template <template <typename> class Memory, typename T, typename... More>
  Result<Memory<T>> Allocate(size_t size, int32_t device, int32_t gpu, More... more) {
    auto args = internal::Initialised<bps_buffer_args>();
    args.size = size > SIZE_MAX / sizeof(T) ? SIZE_MAX : size * sizeof(T);
    args.device = device;
    args.device_id = gpu;
    bps_buffer* buffer = nullptr;
    if (bps_status* status = bps_buffer_alloc(session_.get(), &args, &buffer)) return Status(status);
    return Memory<T>(buffer, size, more...);
  }

  explicit Session(bps_session* session) : session_(session) {}

  // `reason`: of a round that is given up; nullptr: it is not.
  template <typename T>
  Result<CollectiveRequest> StartSparse(const std::string& name, std::span<const int64_t> indices,
                                        std::span<const std::type_identity_t<T>> values, const Shape& shape, Op op,
                                        const CollectiveOptions& options, const char* reason) {
    internal::Extensions extensions;
    auto args = internal::Initialised<bps_sparse_args>();
    args.ext = extensions.Chain(options.match, reason);
    args.name = name.c_str();
    args.set = options.set ? options.set->get() : nullptr;
    args.indices = indices.data();
    args.values = values.data();
    args.num_rows = static_cast<int64_t>(indices.size());
    args.shape = shape.data();
    args.ndim = static_cast<int32_t>(shape.size());
    args.dtype = DType<T>::kValue;
    args.op = static_cast<int32_t>(op);
    args.priority = options.priority;
    args.timeout_ms = options.timeout.count();
    bps_request* request = nullptr;
    if (bps_status* status = bps_sparse_all_reduce(session_.get(), &args, &request)) return Status(status);
    std::vector<ProcessSet> sets;
    if (options.set) sets.push_back(*options.set);
    return CollectiveRequest(Request(request), {DType<T>::kValue, BPS_INT64}, std::move(sets));
  }

  static bps_open_args Defaults() {
    auto args = internal::Initialised<bps_open_args>();
    return args;
  }

  static bps_push_pull_args PushPullArgs(Tensor tensor, const void* input, void* output, int32_t op) {
    auto args = internal::Initialised<bps_push_pull_args>();
    args.tensor = tensor.get();
    args.input = input;
    args.output = output;
    args.op = op;
    return args;
  }
  static bps_broadcast_args BroadcastArgs(Tensor tensor, const void* input, void* output, int32_t root) {
    auto args = internal::Initialised<bps_broadcast_args>();
    args.tensor = tensor.get();
    args.input = input;
    args.output = output;
    args.root = root;
    return args;
  }
  static bps_status* Submit(bps_session* session, const bps_push_pull_args& args, bps_request** request) {
    return bps_push_pull(session, &args, request);
  }
  static bps_status* Submit(bps_session* session, const bps_broadcast_args& args, bps_request** request) {
    return bps_broadcast(session, &args, request);
  }

  template <typename T>
  static Status CheckSizes(const TensorOf<T>& tensor, size_t input, size_t output) {
    if (input == tensor.size() && output == tensor.size()) return Status();
    return Status(BPS_INVALID_ARGUMENT, "the tensor has " + std::to_string(tensor.size()) + " elements, the input " +
                                            std::to_string(input) + ", the output " + std::to_string(output));
  }

  // Submits the arguments of any operation. `reason`: of a round that is given up; nullptr: it is not.
  template <typename Args>
  Result<Request> Start(Args args, Options options, const char* reason = nullptr) {
    internal::Extensions extensions;
    args.ext = extensions.Chain(options.match, reason);
    args.priority = options.priority;
    args.timeout_ms = options.timeout.count();
    return internal::Submit(args, std::move(options.done), [this](const Args& filled, bps_request** request) {
      return Submit(session_.get(), filled, request);
    });
  }

  // `start(options)` with a callback that fulfils the future, before the caller's own.
  template <typename StartFn>
  static std::future<void> Future(Options options, StartFn start) {
    auto promise = std::make_shared<std::promise<void>>();
    options.done = [promise, then = std::move(options.done)](const Status& status) {
      status.ok() ? promise->set_value() : promise->set_exception(std::make_exception_ptr(Error(status)));
      if (then) then(status);
    };
    std::future<void> future = promise->get_future();
    Result<Request> request = start(std::move(options));
    if (!request) throw Error(request.status());
    return future;
  }

  struct Closer {
    // Refused inside a callback: the library has logged it.
    void operator()(bps_session* session) const { bps_status_free(bps_close(session)); }
  };
  std::unique_ptr<bps_session, Closer> session_;
};

}  // namespace byteps

#endif  // BYTEPS_FRAMEWORKS_CPP_BYTEPS_HPP_
