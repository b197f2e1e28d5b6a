#include "frameworks/python/native/session.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>
#include <utility>

#include "frameworks/python/native/buffer.h"
#include "frameworks/python/native/interruptible.h"
#include "frameworks/python/native/prepared_push_pull.h"
#include "frameworks/python/native/process_set.h"
#include "frameworks/python/native/request.h"
#include "frameworks/python/native/status_error.h"

namespace byteps::python {

namespace py = pybind11;

namespace {

const char* Pointer(const std::optional<std::string>& text) { return text ? text->c_str() : nullptr; }

bps_tensor* DeclareIn(const Library& library, bps_session* session, const TensorSpec& spec) {
  bps_declare_args args = BPS_DECLARE_ARGS_INIT;
  // The library would see the part before it alone, and two such names as one.
  if (spec.name.find('\0') != std::string::npos) {
    throw StatusError(BPS_INVALID_ARGUMENT, "the name of a tensor has a NUL character", /*retryable=*/false);
  }
  args.name = spec.name.c_str();
  args.shape = spec.shape.data();
  args.ndim = static_cast<int32_t>(spec.shape.size());
  args.dtype = spec.dtype;
  args.mode = spec.asynchronous ? BPS_MODE_ASYNCHRONOUS : BPS_MODE_SYNCHRONOUS;
  bps_tensor* tensor = nullptr;
  Check(library, library.bps_declare(session, &args, &tensor));
  return tensor;
}

// A notice on its way: what bps_done_fn is given.
struct Noticing {
  std::shared_ptr<const Library> library;
  Notice notice;
  std::shared_ptr<Ending> ending;

  static void Done(void* user, bps_status* error) {
    const std::unique_ptr<Noticing> self(static_cast<Noticing*>(user));
    self->library->bps_status_free(error);
    if (self->notice.completions != nullptr) self->notice.completions->Note(self->notice.token);
    if (self->ending != nullptr) self->ending->End();
  }
};

// Sets the callback of an operation, if a caller or the session is to be told. The caller lets go of the result once
// the operation was accepted: the callback then frees it.
template <typename Args>
std::unique_ptr<Noticing> SetNotice(Args& args, const std::shared_ptr<const Library>& library, Notice notice,
                                    std::shared_ptr<Ending> ending) {
  if (notice.completions == nullptr && ending == nullptr) return nullptr;
  auto noticing = std::make_unique<Noticing>(Noticing{library, std::move(notice), std::move(ending)});
  args.done = &Noticing::Done;
  args.user = noticing.get();
  return noticing;
}

// `streams` must outlive the call that takes `args`.
template <typename Args>
void SetPlace(Args& args, bps_streams& streams, const DevicePlace& place) {
  args.input_device = place.input_device;
  args.input_device_id = place.input_id;
  args.output_device = place.output_device;
  args.output_device_id = place.output_id;
  streams.input = streams.output = reinterpret_cast<void*>(place.stream);
  streams.output_later = place.output_later ? 1 : 0;
  args.ext = &streams.ext;
}

// Points into `spec`.
bps_collective_args ArgsOf(const CollectiveSpec& spec) {
  bps_collective_args args = BPS_COLLECTIVE_ARGS_INIT;
  if (spec.name && spec.name->find('\0') != std::string::npos) {
    throw StatusError(BPS_INVALID_ARGUMENT, "the name of an operation has a NUL character", /*retryable=*/false);
  }
  args.name = Pointer(spec.name);
  args.set = spec.set == nullptr ? nullptr : spec.set->get();
  args.input = reinterpret_cast<const void*>(spec.input);
  args.output = reinterpret_cast<void*>(spec.output);
  args.output_bytes = spec.output_bytes;
  args.shape = spec.shape.data();
  args.splits = spec.splits.data();
  args.tag = spec.tag;
  args.priority = spec.priority;
  args.timeout_ms = TimeoutMs(spec.timeout);
  if (spec.scale) {
    args.scaled = 1;
    args.prescale = spec.scale->first;
    args.postscale = spec.scale->second;
  }
  args.kind = spec.kind;
  args.ndim = static_cast<int32_t>(spec.shape.size());
  args.dtype = spec.dtype;
  args.op = spec.op;
  args.num_splits = static_cast<int32_t>(spec.splits.size());
  args.root = spec.root;
  args.peer = spec.peer;
  return args;
}

// `ending`: nullptr: of an operation without one.
bool HasEnded(const Library& library, bps_request* request, const Ending* ending) {
  if (ending != nullptr && ending->ended()) return true;
  int32_t done = 0;
  if (library.bps_request_state(request) < BPS_REQUEST_DONE) return false;
  // A request that cannot be asked (the session is gone) has ended: closing ends everything.
  bps_status* status = library.bps_test(request, &done);
  if (status == nullptr) return done != 0;
  library.bps_status_free(status);
  return true;
}

}  // namespace

int64_t TimeoutMs(const std::optional<double>& seconds) {
  if (!seconds) return 0;
  if (!(*seconds > 0) || *seconds > 1e9) {
    throw std::invalid_argument("timeout is " + std::to_string(*seconds) +
                                " s; it must be positive (None means the default)");
  }
  const int64_t milliseconds = static_cast<int64_t>(std::ceil(*seconds * 1e3));
  return milliseconds;
}

std::shared_ptr<Session> Session::Open(std::shared_ptr<const Library> library, OpenOptions options) {
  const int64_t timeout_ms = TimeoutMs(options.timeout);
  if (options.place && options.place->size() != 5) {
    throw std::invalid_argument("place has " + std::to_string(options.place->size()) +
                                " entries; it is (host_index, num_hosts, local_rank, local_size, num_servers)");
  }

  // Owned by the call, which may outlive this function.
  struct Opening {
    std::shared_ptr<const Library> library;
    OpenOptions options;
    bps_session* session = nullptr;
  };
  auto opening = std::make_shared<Opening>();
  opening->library = std::move(library);
  opening->options = std::move(options);

  RunInterruptible(
      [opening, timeout_ms] {
        const OpenOptions& from = opening->options;
        bps_open_args args = BPS_OPEN_ARGS_INIT;
        args.coordinator = Pointer(from.coordinator);
        args.job = Pointer(from.job);
        args.name = Pointer(from.name);
        args.token = Pointer(from.token);
        args.host = Pointer(from.host);
        args.transport = Pointer(from.transport);
        args.scheduler = Pointer(from.scheduler);
        if (from.place) {
          args.has_place = 1;
          args.host_index = (*from.place)[0];
          args.num_hosts = (*from.place)[1];
          args.local_rank = (*from.place)[2];
          args.local_size = (*from.place)[3];
          args.num_servers = (*from.place)[4];
        }
        args.log_level = from.log_level;
        args.timeout_ms = timeout_ms;
        const Library& table = *opening->library;
        Check(table, table.bps_open_versioned(BPS_ABI_MAJOR, BPS_ABI_MINOR, &args, &opening->session));
      },
      [opening] { opening->library->bps_status_free(opening->library->bps_close(opening->session)); });
  return std::make_shared<Session>(std::make_shared<SessionHandle>(opening->library, opening->session));
}

Session::Session(std::shared_ptr<SessionHandle> handle) : handle_(std::move(handle)) {}

Session::~Session() { Close(); }

py::dict Session::Info() const {
  bps_info info = BPS_INFO_INIT;
  std::string transport;
  std::string scheduler;
  {
    py::gil_scoped_release released;
    handle_->Use([&](bps_session* session) {
      Check(library(), library().bps_session_info(session, &info));
      transport = library().bps_transport_name(session);
      scheduler = library().bps_scheduler_name(session);
    });
  }
  py::dict result;
  result["rank"] = info.rank;
  result["size"] = info.size;
  result["local_rank"] = info.local_rank;
  result["local_size"] = info.local_size;
  result["num_servers"] = info.num_servers;
  result["transport"] = transport;
  result["scheduler"] = scheduler;
  result["failed"] = info.failed != 0;
  result["epoch"] = info.epoch;
  result["generation"] = info.generation;
  result["shared_buffers"] = info.shared_buffers != 0;
  return result;
}

uintptr_t Session::Address() const {
  py::gil_scoped_release released;
  return handle_->Use([](bps_session* session) { return reinterpret_cast<uintptr_t>(session); });
}

void Session::Declare(const TensorSpec& spec) {
  py::gil_scoped_release released;
  handle_->Use([&](bps_session* session) { DeclareIn(library(), session, spec); });
}

std::shared_ptr<Request> Session::PushPull(const TensorSpec& spec, uintptr_t input, uintptr_t output, int32_t op,
                                           int64_t priority, const std::optional<double>& timeout, py::object buffers,
                                           Notice notice, const OptionalPlace& place) {
  bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
  bps_streams streams = BPS_STREAMS_INIT;
  if (place) SetPlace(args, streams, *place);
  args.input = reinterpret_cast<const void*>(input);
  args.output = reinterpret_cast<void*>(output);
  args.op = op;
  args.priority = priority;
  args.timeout_ms = TimeoutMs(timeout);
  const std::shared_ptr<Ending> ending = EndingOf(place.has_value());
  std::unique_ptr<Noticing> noticing = SetNotice(args, handle_->shared_library(), std::move(notice), ending);
  bps_request* request = nullptr;
  {
    py::gil_scoped_release released;
    handle_->Use([&](bps_session* session) {
      args.tensor = DeclareIn(library(), session, spec);
      Check(library(), library().bps_push_pull(session, &args, &request));
    });
  }
  (void)noticing.release();
  Sweep();
  return std::make_shared<Request>(shared_from_this(), request, std::move(buffers), ending);
}

std::shared_ptr<PreparedPushPull> Session::Prepare(const TensorSpec& spec, int32_t op) {
  bps_tensor* tensor = nullptr;
  {
    py::gil_scoped_release released;
    handle_->Use([&](bps_session* session) { tensor = DeclareIn(library(), session, spec); });
  }
  return std::make_shared<PreparedPushPull>(shared_from_this(), tensor, op);
}

std::shared_ptr<Request> Session::PushPull(bps_tensor* tensor, int32_t op, uintptr_t input, uintptr_t output,
                                           int64_t priority, py::object buffers) {
  bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
  args.tensor = tensor;
  args.input = reinterpret_cast<const void*>(input);
  args.output = reinterpret_cast<void*>(output);
  args.op = op;
  args.priority = priority;
  bps_request* request = nullptr;
  {
    py::gil_scoped_release released;
    handle_->Use([&](bps_session* session) { Check(library(), library().bps_push_pull(session, &args, &request)); });
  }
  Sweep();
  return std::make_shared<Request>(shared_from_this(), request, std::move(buffers), nullptr);
}

std::shared_ptr<Request> Session::Broadcast(const TensorSpec& spec, uintptr_t input, uintptr_t output, int32_t root,
                                            int64_t priority, const std::optional<double>& timeout, py::object buffers,
                                            Notice notice, const OptionalPlace& place) {
  bps_broadcast_args args = BPS_BROADCAST_ARGS_INIT;
  bps_streams streams = BPS_STREAMS_INIT;
  if (place) SetPlace(args, streams, *place);
  args.input = reinterpret_cast<const void*>(input);
  args.output = reinterpret_cast<void*>(output);
  args.root = root;
  args.priority = priority;
  args.timeout_ms = TimeoutMs(timeout);
  const std::shared_ptr<Ending> ending = EndingOf(place.has_value());
  std::unique_ptr<Noticing> noticing = SetNotice(args, handle_->shared_library(), std::move(notice), ending);
  bps_request* request = nullptr;
  {
    py::gil_scoped_release released;
    handle_->Use([&](bps_session* session) {
      args.tensor = DeclareIn(library(), session, spec);
      Check(library(), library().bps_broadcast(session, &args, &request));
    });
  }
  (void)noticing.release();
  Sweep();
  return std::make_shared<Request>(shared_from_this(), request, std::move(buffers), ending);
}

std::shared_ptr<Request> Session::SparseAllReduce(const SparseSpec& spec) { return SparseAllReduce(spec, nullptr); }

std::shared_ptr<Request> Session::SparseAllReduce(const SparseSpec& spec, const bps_ext* ext) {
  if (spec.name.find('\0') != std::string::npos) {
    throw StatusError(BPS_INVALID_ARGUMENT, "the name of an operation has a NUL character", /*retryable=*/false);
  }
  bps_sparse_args args = BPS_SPARSE_ARGS_INIT;
  args.ext = ext;
  args.name = spec.name.c_str();
  args.set = spec.set == nullptr ? nullptr : spec.set->get();
  args.indices = reinterpret_cast<const int64_t*>(spec.indices);
  args.values = reinterpret_cast<const void*>(spec.values);
  args.num_rows = spec.rows;
  args.shape = spec.shape.data();
  args.priority = spec.priority;
  args.timeout_ms = TimeoutMs(spec.timeout);
  args.ndim = static_cast<int32_t>(spec.shape.size());
  args.dtype = spec.dtype;
  args.op = spec.op;
  bps_request* request = nullptr;
  {
    py::gil_scoped_release released;
    handle_->Use(
        [&](bps_session* session) { Check(library(), library().bps_sparse_all_reduce(session, &args, &request)); });
  }
  Sweep();
  return std::make_shared<Request>(shared_from_this(), request, py::none(), nullptr);
}

std::shared_ptr<Request> Session::Collective(const CollectiveSpec& spec, py::object buffers, Notice notice) {
  bps_collective_args args = ArgsOf(spec);
  bps_streams streams = BPS_STREAMS_INIT;
  if (spec.place) SetPlace(args, streams, *spec.place);
  const std::shared_ptr<Ending> ending = EndingOf(spec.place.has_value());
  std::unique_ptr<Noticing> noticing = SetNotice(args, handle_->shared_library(), std::move(notice), ending);
  bps_request* request = nullptr;
  {
    py::gil_scoped_release released;
    handle_->Use([&](bps_session* session) { Check(library(), library().bps_collective(session, &args, &request)); });
  }
  (void)noticing.release();
  Sweep();
  return std::make_shared<Request>(shared_from_this(), request, std::move(buffers), ending);
}

std::shared_ptr<Request> Session::GiveUp(const TensorSpec& spec, int32_t op, const std::string& reason) {
  bps_give_up give_up = BPS_GIVE_UP_INIT;
  give_up.reason = reason.c_str();
  bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
  args.ext = &give_up.ext;
  args.op = op;
  bps_request* request = nullptr;
  {
    py::gil_scoped_release released;
    handle_->Use([&](bps_session* session) {
      args.tensor = DeclareIn(library(), session, spec);
      Check(library(), library().bps_push_pull(session, &args, &request));
    });
  }
  return std::make_shared<Request>(shared_from_this(), request, py::none(), nullptr);
}

std::shared_ptr<Request> Session::GiveUp(const CollectiveSpec& spec, const std::string& reason) {
  bps_give_up give_up = BPS_GIVE_UP_INIT;
  give_up.reason = reason.c_str();
  bps_collective_args args = ArgsOf(spec);
  args.ext = &give_up.ext;
  bps_request* request = nullptr;
  {
    py::gil_scoped_release released;
    handle_->Use([&](bps_session* session) { Check(library(), library().bps_collective(session, &args, &request)); });
  }
  return std::make_shared<Request>(shared_from_this(), request, py::none(), nullptr);
}

std::shared_ptr<Request> Session::GiveUp(const SparseSpec& spec, const std::string& reason) {
  bps_give_up give_up = BPS_GIVE_UP_INIT;
  give_up.reason = reason.c_str();
  return SparseAllReduce(spec, &give_up.ext);
}

std::shared_ptr<Request> Session::Group(const std::vector<CollectiveSpec>& specs, py::object buffers) {
  std::vector<bps_collective_args> operations;
  std::vector<bps_streams> streams(specs.size(), BPS_STREAMS_INIT);  // outlive the call; they do not move
  for (const CollectiveSpec& spec : specs) {
    operations.push_back(ArgsOf(spec));
    if (spec.place) SetPlace(operations.back(), streams[operations.size() - 1], *spec.place);
  }
  std::vector<const bps_collective_args*> pointers;
  for (const bps_collective_args& operation : operations) pointers.push_back(&operation);
  bps_group_args args = BPS_GROUP_ARGS_INIT;
  args.operations = pointers.data();
  args.num_operations = static_cast<int32_t>(pointers.size());
  const bool on_device =
      std::any_of(specs.begin(), specs.end(), [](const CollectiveSpec& spec) { return spec.place.has_value(); });
  const std::shared_ptr<Ending> ending = EndingOf(on_device);
  std::unique_ptr<Noticing> noticing = SetNotice(args, handle_->shared_library(), {}, ending);
  bps_request* request = nullptr;
  {
    py::gil_scoped_release released;
    handle_->Use([&](bps_session* session) { Check(library(), library().bps_group(session, &args, &request)); });
  }
  (void)noticing.release();
  Sweep();
  return std::make_shared<Request>(shared_from_this(), request, std::move(buffers), ending);
}

std::shared_ptr<ProcessSet> Session::NewProcessSet(const std::vector<int32_t>& ranks, const std::string& name) {
  bps_process_set_args args = BPS_PROCESS_SET_ARGS_INIT;
  args.name = name.c_str();
  args.ranks = ranks.data();
  args.num_ranks = static_cast<int32_t>(ranks.size());
  bps_process_set* set = nullptr;
  handle_->Use([&](bps_session* session) { Check(library(), library().bps_process_set_create(session, &args, &set)); });
  return std::make_shared<ProcessSet>(handle_, set);
}

std::shared_ptr<Buffer> Session::NewBuffer(size_t size, std::optional<int32_t> pinned) {
  bps_buffer_args args = BPS_BUFFER_ARGS_INIT;
  args.size = size;
  if (pinned) args.device = BPS_CUDA_HOST;
  args.device_id = pinned.value_or(0);
  bps_buffer* buffer = nullptr;
  {
    py::gil_scoped_release released;
    handle_->Use([&](bps_session* session) { Check(library(), library().bps_buffer_alloc(session, &args, &buffer)); });
  }
  return std::make_shared<Buffer>(handle_, buffer, size);
}

void Session::Barrier(const std::optional<std::string>& name, const std::optional<double>& timeout) {
  const int64_t timeout_ms = TimeoutMs(timeout);
  RunInterruptible([handle = handle_, name, timeout_ms] {
    bps_barrier_args args = BPS_BARRIER_ARGS_INIT;
    args.name = Pointer(name);
    args.timeout_ms = timeout_ms;
    handle->Use([&](bps_session* session) { Check(handle->library(), handle->library().bps_barrier(session, &args)); });
  });
}

int32_t Session::Join(const std::optional<double>& timeout) {
  const int64_t timeout_ms = TimeoutMs(timeout);
  // Owned by the call, which may outlive this function.
  const auto last = std::make_shared<int32_t>(-1);
  RunInterruptible([handle = handle_, last, timeout_ms] {
    const Library& library = handle->library();
    bps_join_args args = BPS_JOIN_ARGS_INIT;
    args.last_rank = last.get();
    args.timeout_ms = timeout_ms;
    bps_request* request = nullptr;
    handle->Use([&](bps_session* session) { Check(library, library.bps_join(session, &args, &request)); });
    bps_status* outcome = library.bps_wait(request, /*timeout_ms=*/0);
    library.bps_request_free(request);
    Check(library, outcome);
  });
  return *last;
}

void Session::StartTimeline(const std::string& path, bool mark_steps) {
  if (path.find('\0') != std::string::npos) {
    throw StatusError(BPS_INVALID_ARGUMENT, "the path of a timeline has a NUL character", /*retryable=*/false);
  }
  const uint32_t flags = mark_steps ? BPS_TIMELINE_MARK_STEPS : 0;
  py::gil_scoped_release released;
  handle_->Use(
      [&](bps_session* session) { Check(library(), library().bps_timeline_start(session, path.c_str(), flags)); });
}

void Session::StopTimeline() {
  py::gil_scoped_release released;
  handle_->Use([&](bps_session* session) { Check(library(), library().bps_timeline_stop(session)); });
}

void Session::Mark(const std::string& name, int32_t kind) {
  py::gil_scoped_release released;
  handle_->Use(
      [&](bps_session* session) { Check(library(), library().bps_timeline_mark(session, name.c_str(), kind)); });
}

void Session::Shutdown(const std::optional<double>& timeout) {
  const int64_t timeout_ms = TimeoutMs(timeout);
  bps_status* status = nullptr;
  {
    py::gil_scoped_release released;
    status = handle_->Shutdown(timeout_ms);
  }
  Check(library(), status);
}

void Session::Close() {
  {
    py::gil_scoped_release released;
    handle_->Close();
  }
  if (!handle_->IsForkedChild()) Sweep();
}

std::shared_ptr<Ending> Session::EndingOf(bool on_device) {
  if (!on_device) return nullptr;
  if (sweeping_ == nullptr) sweeping_ = std::make_shared<Sweeping>(weak_from_this());
  return std::make_shared<Ending>(sweeping_);
}

void Session::Adopt(bps_request* request, py::object buffers, std::shared_ptr<Ending> ending) {
  if (ending != nullptr) ending->Orphan();
  if (HasEnded(library(), request, ending.get())) {
    library().bps_request_free(request);
  } else {
    orphans_.push_back(Orphan{request, std::move(buffers), std::move(ending)});
  }
  Sweep();
}

void Session::Sweep() {
  if (orphans_.empty()) return;
  // Freeing buffers runs Python code, which may come back here: take the ended ones out first.
  std::vector<Orphan> ended;
  std::vector<Orphan> left;
  for (Orphan& orphan : orphans_) {
    (HasEnded(library(), orphan.request, orphan.ending.get()) ? ended : left).push_back(std::move(orphan));
  }
  orphans_ = std::move(left);
  for (const Orphan& orphan : ended) library().bps_request_free(orphan.request);
}

}  // namespace byteps::python
