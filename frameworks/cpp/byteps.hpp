// byteps.hpp - BytePS for C++20: abi/byteps.h with owners, spans, futures, and errors as exceptions or values; one
// header.
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

#include <chrono>
#include <complex>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "abi/byteps.h"

namespace byteps {

namespace internal {

// A struct of the C interface as its ..._INIT macro makes it, without the warnings that those have in strict C++.
template <typename Struct>
Struct Initialised() {
  Struct made{};
  made.struct_size = sizeof(Struct);
  return made;
}

}  // namespace internal

// ---- Errors ---------------------------------------------------------------------------------------------------------

// The outcome of a call, as a value.
class Status {
 public:
  // Success.
  Status() = default;
  // Takes ownership of `status`; NULL is success.
  explicit Status(bps_status* status) {
    if (status == nullptr) return;
    code_ = bps_status_code(status);
    message_ = bps_status_message(status);
    retryable_ = bps_status_retryable(status) != 0;
    bps_status_free(status);
  }
  Status(int32_t code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == BPS_OK; }
  // BPS_UNAVAILABLE and so on.
  int32_t code() const { return code_; }
  // The library's words; empty for success.
  const std::string& message() const { return message_; }
  // Whether the same call may succeed when tried again on this session.
  bool retryable() const { return retryable_; }

 private:
  int32_t code_ = BPS_OK;
  std::string message_;
  bool retryable_ = false;
};

// A failed call, in the library's own words.
class Error : public std::runtime_error {
 public:
  // `status` is not success.
  explicit Error(const Status& status) : std::runtime_error(status.message()), status_(status) {}
  // Takes ownership of `status`, which is not NULL.
  explicit Error(bps_status* status) : Error(Status(status)) {}

  const Status& status() const { return status_; }
  int32_t code() const { return status_.code(); }
  bool retryable() const { return status_.retryable(); }

 private:
  Status status_;
};

// Throws unless `status` is success.
inline void Check(bps_status* status) {
  if (status != nullptr) throw Error(status);
}
inline void Check(const Status& status) {
  if (!status.ok()) throw Error(status);
}

// A value, or why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : content_(std::move(value)) {}           // NOLINT(google-explicit-constructor)
  Result(Status failure) : content_(std::move(failure)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return std::holds_alternative<T>(content_); }
  explicit operator bool() const { return ok(); }
  // Success if there is a value.
  Status status() const { return ok() ? Status() : std::get<Status>(content_); }
  // The value; throws Error if there is none.
  T value() && {
    if (!ok()) throw Error(std::get<Status>(content_));
    return std::get<T>(std::move(content_));
  }
  T& operator*() & { return std::get<T>(content_); }
  T* operator->() { return &std::get<T>(content_); }

 private:
  std::variant<T, Status> content_;
};

// Deadlines of the calls below; zero is the session's default.
using Timeout = std::chrono::milliseconds;

// ---- Tensors --------------------------------------------------------------------------------------------------------

// The number of an element type. Types of other libraries join by a specialisation:
//     template <> struct byteps::DType<half_float::half> { static constexpr uint32_t kValue = BPS_FLOAT16; };
template <typename T>
struct DType;
#define BYTEPS_CPP_DTYPE(type, value)           \
  template <>                                   \
  struct DType<type> {                          \
    static constexpr uint32_t kValue = (value); \
  }
BYTEPS_CPP_DTYPE(int8_t, BPS_INT8);
BYTEPS_CPP_DTYPE(int16_t, BPS_INT16);
BYTEPS_CPP_DTYPE(int32_t, BPS_INT32);
BYTEPS_CPP_DTYPE(int64_t, BPS_INT64);
BYTEPS_CPP_DTYPE(uint8_t, BPS_UINT8);
BYTEPS_CPP_DTYPE(float, BPS_FLOAT32);
BYTEPS_CPP_DTYPE(double, BPS_FLOAT64);
BYTEPS_CPP_DTYPE(bool, BPS_BOOL);
BYTEPS_CPP_DTYPE(std::complex<float>, BPS_COMPLEX64);
BYTEPS_CPP_DTYPE(std::complex<double>, BPS_COMPLEX128);
#undef BYTEPS_CPP_DTYPE

// What push_pull makes of the contributions of all workers; see abi/byteps.h.
enum class Op : int32_t {
  kSum = BPS_SUM,
  kAverage = BPS_AVERAGE,
  kMin = BPS_MIN,
  kMax = BPS_MAX,
  kProduct = BPS_PRODUCT,
  kBitAnd = BPS_BIT_AND,
  kBitOr = BPS_BIT_OR,
  kBitXor = BPS_BIT_XOR,
};

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

// How an operation is done.
struct Options {
  int64_t priority = 0;  // larger is sooner
  Timeout timeout{0};    // of the whole operation
  // Runs once if the operation was accepted, on a thread of the library. It must not block, nor throw (std::terminate).
  std::function<void(Status)> done = nullptr;
};

// ---- Requests -------------------------------------------------------------------------------------------------------

// One operation that was accepted.
class Request {
 public:
  explicit Request(bps_request* request) : request_(request) {}

  // Waits until the operation has ended; throws its error, or BPS_DEADLINE_EXCEEDED if the wait ended first.
  void Wait(Timeout timeout = Timeout(0)) { Check(bps_wait(request_.get(), timeout.count())); }
  Status TryWait(Timeout timeout = Timeout(0)) { return Status(bps_wait(request_.get(), timeout.count())); }

  // Whether the operation has ended. Never blocks, and does not throw the operation's error.
  bool Test() const {
    int32_t done = 0;
    Check(bps_test(request_.get(), &done));
    return done != 0;
  }

  // Asks to give up.
  void Cancel() { Check(bps_cancel(request_.get())); }
  Status TryCancel() { return Status(bps_cancel(request_.get())); }

  bps_request* get() const { return request_.get(); }

 private:
  struct Free {
    void operator()(bps_request* request) const { bps_request_free(request); }
  };
  std::unique_ptr<bps_request, Free> request_;
};

// Requests that end in this block:
//     byteps::Group group;
//     for (...) group.Add(session.PushPull(...));
//     group.Wait();
// What has not ended when the group is destroyed (an exception is on its way) is cancelled and waited for, so that the
// memory of this block outlives its operations. Not inside a callback of the library, where nothing can be waited for.
class Group {
 public:
  Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  ~Group() {
    for (Request& request : requests_) bps_status_free(bps_cancel(request.get()));
    for (Request& request : requests_) {
      // The wait may end before the operation; it always ends.
      while (request.TryWait().code() == BPS_DEADLINE_EXCEEDED && !request.Test()) {
      }
    }
  }

  void Add(Request request) { requests_.push_back(std::move(request)); }

  // Waits for all; throws the first error when all have ended.
  void Wait() { Check(TryWait()); }
  Status TryWait() {
    Status first;
    for (Request& request : requests_) {
      Status status = request.TryWait();
      if (first.ok()) first = std::move(status);
    }
    std::erase_if(requests_, [](const Request& request) { return request.Test(); });
    return first;
  }

 private:
  std::vector<Request> requests_;
};

// An operation that owns its memory, a container of elements such as std::vector. Destroyed early it lets the operation
// go on, and the memory lives until that has ended.
template <typename Container>
class OwningRequest {
 public:
  OwningRequest(Request request, std::shared_ptr<Container> memory)
      : request_(std::move(request)), memory_(std::move(memory)) {}

  // Waits as Request does; gives the memory back, once.
  Container Wait() {
    request_.Wait();
    return std::move(*memory_);
  }
  // The same; the memory comes back whatever the outcome was. Without timeout: the operation has ended then.
  std::pair<Container, Status> TryWait() {
    Status status = request_.TryWait();
    while (!request_.Test()) status = request_.TryWait();
    return {std::move(*memory_), std::move(status)};
  }
  Request& request() { return request_; }

 private:
  Request request_;
  std::shared_ptr<Container> memory_;
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
    Keep(memory, &options);
    return {TryPushPull<T>(tensor, data, data, op, std::move(options)).value(), std::move(memory)};
  }

  // Starts the copy of the root's `input` into every rank's `output`; in place: of the root's `data` into everybody's.
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

  template <typename T>
  Buffer<T> NewBuffer(size_t size) {
    return TryNewBuffer<T>(size).value();
  }
  template <typename T>
  Result<Buffer<T>> TryNewBuffer(size_t size) {
    auto args = internal::Initialised<bps_buffer_args>();
    args.size = size > SIZE_MAX / sizeof(T) ? SIZE_MAX : size * sizeof(T);
    bps_buffer* buffer = nullptr;
    if (bps_status* status = bps_buffer_alloc(session_.get(), &args, &buffer)) return Status(status);
    return Buffer<T>(buffer, size);
  }

  // Waits until every worker has called it as often.
  void Barrier(const std::string& name = "", Timeout timeout = Timeout(0)) { Check(TryBarrier(name, timeout)); }
  Status TryBarrier(const std::string& name = "", Timeout timeout = Timeout(0)) {
    auto args = internal::Initialised<bps_barrier_args>();
    args.name = name.c_str();
    args.timeout_ms = timeout.count();
    return Status(bps_barrier(session_.get(), &args));
  }

  // Leaves the job in order. Without it the others see this worker fail when the session is destroyed.
  void Shutdown(Timeout timeout = Timeout(0)) { Check(TryShutdown(timeout)); }
  Status TryShutdown(Timeout timeout = Timeout(0)) { return Status(bps_shutdown(session_.get(), timeout.count())); }

  // What the destructor does, but with a word: it cannot be done inside a callback. The session is empty afterwards.
  void Close() {
    Check(bps_close(session_.get()));
    session_.release();
  }

  bps_session* get() const { return session_.get(); }

 private:
  explicit Session(bps_session* session) : session_(session) {}

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

  // The bps_done_fn of a callable.
  static void Done(void* user, bps_status* error) noexcept {
    const std::unique_ptr<std::function<void(Status)>> done(static_cast<std::function<void(Status)>*>(user));
    (*done)(Status(error));
  }

  // Submits the arguments of any operation.
  template <typename Args>
  Result<Request> Start(Args args, Options options) {
    args.priority = options.priority;
    args.timeout_ms = options.timeout.count();
    std::unique_ptr<std::function<void(Status)>> done;
    if (options.done) {
      done = std::make_unique<std::function<void(Status)>>(std::move(options.done));
      args.done = &Done;
      args.user = done.get();
    }
    bps_request* request = nullptr;
    if (bps_status* status = Submit(session_.get(), args, &request)) return Status(status);
    done.release();  // It runs once, and frees itself.
    return Request(request);
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

  // Keeps `memory` until the operation has ended.
  template <typename Memory>
  static void Keep(const std::shared_ptr<Memory>& memory, Options* options) {
    options->done = [memory, then = std::move(options->done)](const Status& status) {
      if (then) then(status);
    };
  }

  struct Closer {
    // Refused inside a callback: the library has logged it.
    void operator()(bps_session* session) const { bps_status_free(bps_close(session)); }
  };
  std::unique_ptr<bps_session, Closer> session_;
};

}  // namespace byteps

#endif  // BYTEPS_FRAMEWORKS_CPP_BYTEPS_HPP_
