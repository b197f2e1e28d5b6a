#include "core/worker/session/session.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "core/base/group_ranges.h"
#include "core/base/status.h"
#include "core/worker/device/device_stage.h"
#include "core/worker/device/gpu_group_options.h"
#include "core/worker/device/gpu_group_stage.h"
#include "core/worker/device/gpu_lanes.h"
#include "core/worker/device/pinned_stock.h"
#include "core/worker/device/staged_collectives.h"
#include "core/worker/session/io_cores.h"

namespace byteps {
namespace {

// Between two looks at the control connection while the I/O thread is not asleep: it is not in a hurry.
constexpr Time kControlInterval = kMillisecond / 2;
// Between two looks at a transport without a descriptor, with and without operations in flight.
constexpr Time kBusyPoll = 50'000;
constexpr Time kIdlePoll = 5 * kMillisecond;
// How soon callers hear that a plugin does not come back, and for how long one that describes a wait waits itself.
constexpr Time kStuckLook = 500 * kMillisecond;
constexpr Time kDescribeTime = 200 * kMillisecond;

}  // namespace

// ---- Opening ----

Session::Session(OpenArguments given, Logger log)
    : given_(std::move(given)),
      log_(std::move(log)),
      operation_timeout_(given_.config.GetDuration("BYTEPS_OP_TIMEOUT").count()),
      shutdown_timeout_(given_.config.GetDuration("BYTEPS_SHUTDOWN_TIMEOUT").count()),
      small_bytes_(static_cast<uint64_t>(given_.config.GetInt("BYTEPS_INLINE_BYTES"))),
      registry_(given_.config, log_),
      gpus_(std::make_shared<Gpus>([this] { return registry_.FindDevice(given_.config.GetString("BYTEPS_DEVICE")); },
                                   &given_.config, &log_,
                                   ReadGpuGroupOptions(given_.config, given_.place.local_size).status())),
      setup_(&given_, &registry_, &log_),
      commands_(
          given_.config.GetBool("BYTEPS_SHM") && given_.config.GetBool("BYTEPS_HUGE_PAGES") ? &collapser_ : nullptr,
          [this](Time now, Submission asked) { SubmitToEngine(now, std::move(asked)); },
          [this](Time now, Collective asked) { SubmitToEngine(now, std::move(asked)); }),
      driver_(this, given_.config.GetDuration("BYTEPS_SPIN_US").count(), &plugin_calls_) {
  registry_.Watch(&plugin_calls_);
}

absl::StatusOr<std::shared_ptr<Session>> Session::Open(const bps_open_args& args) {
  absl::StatusOr<OpenArguments> given = OpenArguments::Read(args);
  if (!given.ok()) return given.status();
  LogOptions log_options = given->config.GetLogOptions();
  log_options.sink = args.log;
  log_options.user = args.log_user;
  Logger log(log_options);
  given->config.LogWarnings(log);
  given->Tell(log);

  const Time deadline = After(Now(), given->config.GetDuration("BYTEPS_START_TIMEOUT").count());
  std::shared_ptr<Session> session(new Session(*std::move(given), std::move(log)));
  const bool alone = session->given_.alone();
  absl::Status status = session->given_.wrong;
  if (status.ok()) status = session->setup_.CheckNamed();
  const absl::StatusOr<IoCores> cores =
      IoCores::Read(session->given_.config.GetString("BYTEPS_IO_CPU_CORES"), session->given_.place.local_rank);
  if (status.ok()) status = cores.status();
  std::shared_ptr<Request> opening;
  {
    const IoCores::Scope scope(cores.ok() ? *cores : IoCores());
    if (!alone) {
      status = session->PrepareJob(deadline, status);
    } else if (status.ok()) {
      status = session->PrepareAlone();
    }
    if (status.ok()) {
      // From Start on, opening_ belongs to the thread that drives.
      opening = session->opening_;
      session->driver_.Start("byteps-io");
      if (session->watchdog_ != nullptr) session->watchdog_->Start();
    }
  }
  if (status.ok() && opening != nullptr) status = session->Join(*opening, deadline);
  if (status.ok()) status = session->StartAskedTimeline();
  if (status.ok() && session->setup_.shared_buffers()) {
    session->buffers_->Share(
        [owner = session.get()] {
          owner->commands_.Push({});
          owner->driver_.Wake();
        },
        [log = &session->log_] {
          BPS_LOG(*log, kWarning) << "buffers and pinned memory from now on may be of this process alone, and other "
                                     "processes of the host get copies of what is in them: half of the open files "
                                     "that it may have are in use (ulimit -n), or files must be small (ulimit -f)";
        });
  }
  if (status.ok()) return session;
  session->Close();
  // What is left belongs to a thread that does not come back from a plugin.
  if (session->stuck()) (void)new std::shared_ptr<Session>(std::move(session));
  return status;
}

// A worker alone.
absl::Status Session::PrepareAlone() {
  engine_ = std::make_unique<Engine>(EngineOptions{}, static_cast<EngineHandler*>(this), &log_);
  engine_->UseAlone();
  engine_->UseCollectives({}, nullptr);
  setup_.UseAlone();
  info_.size = info_.local_size = 1;
  info_.epoch = info_.generation = 1;
  proven_.store(true);  // there are no plugins but for GPUs
  BPS_LOG(log_, kDebug) << "ready: rank 0 of 1, alone: it needs no coordinator, server or plugin";
  all_ranks_ = ProcessSet::All(1);
  return absl::OkStatus();
}

std::unique_ptr<Watchdog> Session::MakeWatchdog() {
  const Time peer_timeout = given_.config.GetDuration("BYTEPS_PEER_TIMEOUT").count();
  auto watchdog = std::make_unique<Watchdog>(
      "this worker", peer_timeout > 0 ? Watchdog::LimitOf(peer_timeout) : operation_timeout_, &log_);
  watchdog->Add(&plugin_calls_, [this](const absl::Status& why) { OnStuck(why); });
  return watchdog;
}

absl::Status Session::PrepareJob(Time deadline, const absl::Status& able) {
  engine_ = std::make_unique<Engine>(setup_.MakeEngineOptions(), static_cast<EngineHandler*>(this), &log_);
  watchdog_ = MakeWatchdog();
  absl::StatusOr<ControlLinkOptions> link = setup_.Prepare(deadline, able, engine_.get());
  if (!link.ok()) return link.status();
  control_ = std::make_unique<ControlLink>(*std::move(link), static_cast<ControlHandler*>(this), Now());
  opening_ = std::make_shared<Request>(nullptr, nullptr);
  open_deadline_ = deadline;
  return absl::OkStatus();
}

absl::Status Session::Join(const Request& opening, Time deadline) const {
  // The client watches the deadline and knows who is missing; ours is for the case that nothing runs at all.
  if (!WaitUntil(opening, After(deadline, 10 * kSecond))) {
    return stuck() ? failure() : absl::InternalError("the session's thread does not answer");
  }
  return opening.outcome();
}

void Session::CheckOpening(Time now) {
  if (opening_ == nullptr) return;
  if (info_.epoch != 0 && engine_->ready()) {
    BPS_LOG(log_, kDebug) << "ready: rank " << info_.rank << " of " << info_.size << ", every link is up";
    completions_.push_back({std::exchange(opening_, nullptr), absl::OkStatus()});
  } else if (now >= open_deadline_ && info_.epoch != 0) {
    OnFailed(absl::DeadlineExceededError(
        absl::StrCat("registered with the coordinator, but not connected to ", engine_->missing())));
  }
}

// ---- Calls of user threads ----

absl::Status Session::CheckProcess() const {
  if (!fork_guard_.in_child()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this session belongs to the parent process: a forked child cannot use it; open a session of its own, or start "
      "the "
      "child by spawn");
}

absl::Status Session::CheckOpen() const {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  if (leaving_now_.load()) return absl::FailedPreconditionError("the session was shut down");
  if (failure_.any()) return failure();
  return absl::OkStatus();
}

absl::StatusOr<Tensor*> Session::Declare(std::string_view name, uint32_t dtype, std::span<const int64_t> shape,
                                         int32_t mode) {
  if (absl::Status status = CheckOpen(); !status.ok()) return status;
  if (mode == BPS_MODE_ASYNCHRONOUS && !asynchronous_) {
    return absl::FailedPreconditionError(
        absl::StrCat("tensor \"", absl::string_view(name.data(), name.size()),
                     "\" cannot be asynchronous: this job trains synchronously. Asynchronous tensors need servers and "
                     "BYTEPS_ENABLE_ASYNC=1 for all workers and servers"));
  }
  absl::StatusOr<Tensor*> tensor = engine_->tensors().Declare(name, dtype, shape, mode);
  // The declaration travels while the caller goes on.
  if (tensor.ok() && engine_->tensors().HasUndeclared()) driver_.Wake();
  return tensor;
}

// Drives the engine on the caller's thread, where nothing else is under way: `submit(now)` gives it the operation,
// whose request ends then, whatever happens. False: another thread drives, and nothing was submitted.
template <typename Body>
bool Session::SubmitHere(bool callback, const Body& submit) {
  Ended ended;
  bool taken = false;
  const auto drive = [&] {
    const Time now = Now();
    RunCommands(now);  // those before us
    taken = true;
    submit(now);
    engine_->Poll(now);
    CollectEnded();
    TakeQuiet(&ended);
  };
  if (!driver_.TryRun(drive, callback) || !taken) return false;
  driver_.Deliver({ended.data(), ended.size()});
  return true;
}

// `admit` says whether operations are accepted; their timeouts are the session's, where they have none.
template <typename Check>
absl::Status Session::Accept(int64_t operations, bool* alone, const Check& admit) {
  // Counted first, so that Shutdown either sees it or is seen.
  *alone = in_flight_.fetch_add(operations) == 0;
  absl::Status status = CheckOpen();
  if (status.ok()) status = admit();
  if (!status.ok()) in_flight_.fetch_sub(operations);
  return status;
}

absl::Status Session::Enqueue(Command command) {
  commands_.Push(std::move(command));
  driver_.Wake();
  return absl::OkStatus();
}

absl::Status Session::Submit(Submission asked) {
  if (asked.timeout == 0) asked.timeout = operation_timeout_;
  bool alone = false;
  const absl::Status accepted = Accept(1, &alone, [&] { return engine_->Admit(asked); });
  if (!accepted.ok()) return accepted;
  if (timeline_.on()) NoteSubmitted(&asked);
  NoteGpus(asked.gpu);
  const bool small = alone && MayDrive() && asked.tensor->bytes() <= small_bytes_;
  const auto submit = [&](Time now) { SubmitToEngine(now, asked); };
  if (small && SubmitHere(asked.request->has_callback(), submit)) return absl::OkStatus();
  return Enqueue({std::move(asked), nullptr});
}

absl::Status Session::Submit(Collective asked) {
  if (asked.timeout == 0) asked.timeout = operation_timeout_;
  bool alone = false;
  const absl::Status accepted = Accept(1, &alone, [&] { return engine_->collectives()->Admit(asked); });
  if (!accepted.ok()) return accepted;
  if (timeline_.on()) NoteSubmitted(asked);
  NoteGpus(asked.gpu);
  const bool small = alone && MayDrive() && asked.bytes() <= small_bytes_;
  const auto submit = [&](Time now) { SubmitToEngine(now, asked); };
  if (small && SubmitHere(asked.request->has_callback(), submit)) return absl::OkStatus();
  return Enqueue({{}, nullptr, std::make_unique<Collective>(std::move(asked))});
}

absl::Status Session::Submit(JoinAsked asked) {
  if (asked.timeout == 0) asked.timeout = operation_timeout_;
  bool alone = false;
  const absl::Status accepted = Accept(1, &alone, [&] { return engine_->collectives()->joins().Admit(); });
  if (!accepted.ok()) return accepted;
  return Enqueue({{}, nullptr, nullptr, std::make_unique<JoinAsked>(std::move(asked))});
}

absl::Status Session::Admit(Asked* asked) {
  if (auto* submission = std::get_if<Submission>(asked)) {
    if (submission->timeout == 0) submission->timeout = operation_timeout_;
    return engine_->Admit(*submission);
  }
  Collective& collective = std::get<Collective>(*asked);
  if (collective.timeout == 0) collective.timeout = operation_timeout_;
  return engine_->collectives()->Admit(collective);
}

absl::Status Session::SubmitAll(std::vector<Asked> all) {
  bool alone = false;
  const absl::Status accepted = Accept(static_cast<int64_t>(all.size()), &alone, [&] {
    for (size_t admitted = 0; admitted < all.size(); ++admitted) {
      const absl::Status status = Admit(&all[admitted]);
      if (status.ok()) continue;
      for (size_t i = 0; i < admitted; ++i) {
        if (const auto* submission = std::get_if<Submission>(&all[i])) {
          Engine::Withdraw(*submission);
        } else {
          engine_->collectives()->Withdraw(std::get<Collective>(all[i]));
        }
      }
      driver_.Wake();  // another may wait for such a place
      return status;
    }
    return absl::OkStatus();
  });
  if (!accepted.ok()) return accepted;
  for (Asked& asked : all) {
    if (auto* submission = std::get_if<Submission>(&asked)) {
      if (timeline_.on()) NoteSubmitted(submission);
      NoteGpus(submission->gpu);
      commands_.Push({std::move(*submission), nullptr});
    } else {
      if (timeline_.on()) NoteSubmitted(std::get<Collective>(asked));
      NoteGpus(std::get<Collective>(asked).gpu);
      commands_.Push({{}, nullptr, std::make_unique<Collective>(std::move(std::get<Collective>(asked)))});
    }
  }
  driver_.Wake();
  return absl::OkStatus();
}

absl::Status Session::Cancel(std::shared_ptr<Request> request, const absl::Status& cause) {
  if (absl::Status status = CheckProcess(); !status.ok()) return status;
  commands_.Push({{}, std::move(request), nullptr, nullptr, cause});
  driver_.Wake();
  return absl::OkStatus();
}

bool Session::Wait(const Request& request, Time deadline, bool small) {
  if (request.ended()) return true;
  if (small && MayDrive() && in_flight_.load() == 1 && !closed_.load()) {
    // Another caller may drive: then this waits for what that one brings.
    return driver_.DriveUntil(request, deadline) || WaitUntil(request, deadline);
  }
  return WaitUntil(request, deadline);
}

template <typename WaitFor>
bool Session::WaitInSlices(Time deadline, const WaitFor& wait) const {
  while (!stuck()) {
    const Time slice = After(Now(), kStuckLook);
    if (wait(std::min(slice, deadline))) return true;
    if (slice >= deadline) return false;
  }
  return wait(0);
}

bool Session::WaitUntil(const Request& request, Time deadline) const {
  return WaitInSlices(deadline, [&](Time until) { return request.WaitUntil(until); });
}

bool Session::WaitForStream(const Request& request, Time deadline) const {
  return WaitInSlices(deadline, [&](Time until) { return request.WaitForStream(until); });
}

std::string Session::DescribeWait(const Request& request) {
  std::string text;
  if (closed_.load()) return text;
  const auto describe = [&] {
    RunCommands(Now());  // it may be on its way to the engine
    text = engine_->DescribeWait(Now(), &request);
  };
  if (driver_.Run(describe, After(Now(), kDescribeTime))) return text;
  const PluginCalls::Now call = plugin_calls_.Look();
  if (call.number == 0) return "the session's thread is busy";
  return absl::StrCat(call.plugin, " has not returned from ", call.verb);
}

void Session::Look(const Request& request) {
  // A caller that asks again and again instead of waiting moves things itself.
  if (request.ended() || request.has_callback() || closed_.load() || !MayDrive() || in_flight_.load() != 1) return;
  Ended ended;
  driver_.TryRun(
      [&] {
        Step(Now());
        TakeQuiet(&ended);
      },
      false);
  driver_.Deliver({ended.data(), ended.size()});
}

void Session::TakeQuiet(Ended* ended) {
  // Callbacks need a thread of the library, unless they say otherwise; inside of a callback none runs, so that a chain
  // of callbacks that submit is no recursion.
  const bool callbacks = !Driver::InCallback();
  size_t kept = 0;
  for (size_t i = 0; i < completions_.size(); ++i) {
    const Request& request = *completions_[i].request;
    if (!request.has_callback() || (callbacks && request.may_end_in_call())) {
      ended->push_back(std::move(completions_[i]));
    } else if (kept++ != i) {
      completions_[kept - 1] = std::move(completions_[i]);
    }
  }
  completions_.resize(kept);
}

absl::Status Session::Barrier(const std::string& name, Time timeout) {
  if (absl::Status status = CheckOpen(); !status.ok()) return status;
  if (absl::Status status = engine_->collectives()->joins().CheckMaySubmit(); !status.ok()) {
    return Annotate(status, absl::StrCat("barrier \"", name, "\""));
  }
  if (control_ == nullptr) return absl::OkStatus();
  if (timeout == 0) timeout = operation_timeout_;
  auto request = std::make_shared<Request>(nullptr, nullptr);
  driver_.Run([&] {
    // Asked again inside the machine: Shutdown and failures happen there.
    if (absl::Status status = CheckOpen(); !status.ok()) {
      completions_.push_back({request, status});
      return;
    }
    if (absl::Status status = engine_->collectives()->joins().CheckAllPresent(); !status.ok()) {
      completions_.push_back({request, Annotate(status, absl::StrCat("barrier \"", name, "\""))});
      return;
    }
    const uint64_t sequence = control_->client().Barrier(Now(), name, timeout);
    barriers_[{name, sequence}] = request;
  });
  // The client's own fallback comes first.
  if (!WaitUntil(*request, After(Now(), After(timeout, 10 * kSecond)))) {
    if (stuck()) return failure();
    return absl::DeadlineExceededError(absl::StrCat("barrier \"", name, "\": no answer from the coordinator"));
  }
  return request->outcome();
}

bps_info Session::Info() const {
  bps_info info = info_;
  info.failed = failure_.any() ? 1 : 0;
  info.shared_buffers = setup_.shared_buffers() ? 1 : 0;
  return info;
}

// ---- The machine ----

bool Session::Step(Time now) {
  now_ = now;
  bool worked = RunCommands(now);
  if (control_ != nullptr) worked |= DriveControl(now);
  if (engine_->neighbours() != nullptr && engine_->neighbours()->has_side_records()) UseDeviceStages();
  worked |= engine_->Poll(now);
  CheckOpening(now);
  if (leaving_ != nullptr) CheckLeaving(now);
  CollectEnded();
  return worked;
}

bool Session::RunCommands(Time now) {
  now_ = now;
  return commands_.Run(now, engine_.get());
}

// The stages of device memory come with the first tensor that needs them, here or on another worker of this host.
void Session::UseDeviceStages() {
  if (std::exchange(device_stage_, true)) return;
  has_gpus_.store(true);
  if (watchdog_ == nullptr) {
    // A worker alone has had no plugin until now.
    watchdog_ = MakeWatchdog();
    watchdog_->Start();
  }
  const auto lanes = std::make_shared<GpuLanes>(gpus_);
  const auto stock = std::make_shared<PinnedStock>(buffers_);
  engine_->UseStage("", std::make_unique<DeviceStage>(lanes, stock, &log_));
  engine_->collectives()->UseCopies(std::make_unique<StagedCollectives>(lanes, stock, &log_));
  LocalStage* const local = engine_->neighbours();
  absl::StatusOr<GpuGroupOptions> options = ReadGpuGroupOptions(given_.config, given_.place.local_size);
  if (local == nullptr) return;
  if (!options.ok()) {
    const std::string why(options.status().message());
    options = GpuGroupOptions();
    options->refusal = why;
  }
  engine_->UseStage("", std::make_unique<GpuGroupStage>(*std::move(options), gpus_, stock, local, &log_));
}

void Session::SubmitToEngine(Time now, Submission asked) {
  if (asked.gpu != nullptr) UseDeviceStages();
  engine_->Submit(now, std::move(asked));
}

void Session::SubmitToEngine(Time now, Collective asked) {
  if (asked.gpu != nullptr) UseDeviceStages();
  engine_->collectives()->Submit(now, std::move(asked));
}

bool Session::DriveControl(Time now) {
  const Time timer = control_->NextTimer();
  if (now < timer && now - control_at_ < kControlInterval) return false;
  control_at_ = now;
  control_->Drive(now);
  return false;
}

void Session::TakeCompletions(std::vector<Completion>* completions) {
  std::move(completions_.begin(), completions_.end(), std::back_inserter(*completions));
  completions_.clear();
}

Time Session::NextTimer() const {
  Time next = engine_->NextTimer();
  if (control_ != nullptr) next = std::min(next, control_->NextTimer());
  if (opening_ != nullptr) next = std::min(next, open_deadline_);
  if (leaving_ != nullptr && !goodbye_said_) next = std::min(next, leave_deadline_);
  if (setup_.polled_transport() && engine_->failure().ok()) {
    next = std::min(next, now_ + (engine_->in_flight() != 0 ? kBusyPoll : kIdlePoll));
  }
  return next;
}

bool Session::Arm() {
  if (!engine_->failure().ok()) return true;
  for (Endpoint* endpoint : engine_->endpoints()) {
    if (!endpoint->Arm()) return false;
  }
  return true;
}

void Session::Descriptors(std::vector<pollfd>* descriptors) {
  if (control_ != nullptr && control_->fd() >= 0) {
    descriptors->push_back({control_->fd(), control_->events(), 0});
    control_at_ = 0;  // whatever wakes us, look there first
  }
  if (!engine_->failure().ok()) return;
  for (Endpoint* endpoint : engine_->endpoints()) {
    const int fd = endpoint->WaitFd();
    if (fd >= 0) descriptors->push_back({fd, POLLIN, 0});
  }
  for (const int fd : engine_->descriptors()) descriptors->push_back({fd, POLLIN, 0});
}

// ---- The engine's wishes ----

void Session::OnTellPeers(const std::vector<uint32_t>& members, const control::Lane& lane) {
  if (control_ != nullptr) control_->client().TellAddress(now_, members, lane);
}

void Session::OnLost(uint32_t member, const absl::Status& why) {
  if (control_ != nullptr) control_->client().BreakSession(now_, control_->client().session_id(), member, why);
}

void Session::OnFailed(const absl::Status& why) {
  if (control_ != nullptr) control_->client().Fail(now_, why);
  SetFailure(why);
}

// ---- The control plane's news ----

void Session::OnWelcome(const control::Welcome& welcome) {
  BPS_VERBOSE(log_, 1) << "registered as member " << welcome.member() << " of session " << welcome.session_id();
}

void Session::OnOtherRefused(const std::string& why) {
  BPS_LOG(log_, kWarning) << "the coordinator has refused another member: " << why;
}

void Session::OnWaiting(const std::vector<std::string>& missing) {
  BPS_VERBOSE(log_, 1) << "waiting for " << absl::StrJoin(missing, ", ");
}

void Session::OnEpoch(const control::Epoch& epoch) {
  if (info_.epoch != 0) return;
  if (absl::Status status = engine_->Join(now_, epoch, control_->client().member()); !status.ok()) {
    OnFailed(status);
    return;
  }
  asynchronous_ = epoch.asynchronous();
  setup_.OnEpoch(epoch, control_->client().member(), &info_);
  all_ranks_ = ProcessSet::All(static_cast<uint32_t>(info_.size));
  if (log_.Enabled(LogLevel::kDebug)) TellMembers(epoch);
  const std::vector<uint32_t> groups(epoch.group_sizes().begin(), epoch.group_sizes().end());
  BPS_VERBOSE(log_, 1) << "rank " << info_.rank << " of " << info_.size << "; stages: " << engine_->DescribeStages()
                       << "; groups of the reduction: " << GroupRanges(groups);
}

void Session::TellMembers(const control::Epoch& epoch) const {
  for (const auto* members : {&epoch.workers(), &epoch.servers()}) {
    for (const control::Member& member : *members) {
      std::string lanes;
      for (const control::Lane& lane : member.lanes()) {
        absl::StrAppend(&lanes, lanes.empty() ? "" : ", ", lane.transport());
      }
      BPS_LOG(log_, kDebug) << "member " << member.member() << " is "
                            << (member.role() == control::SERVER ? "server " : "worker rank ") << member.rank()
                            << " (host \"" << member.host().name() << "\", " << member.host().address() << ", pid "
                            << member.pid() << ")" << (lanes.empty() ? "" : ", reached by ") << lanes;
    }
  }
}

void Session::OnBarrier(const std::string& name, uint64_t sequence, const absl::Status& status) {
  auto it = barriers_.find({name, sequence});
  if (it == barriers_.end()) return;
  completions_.push_back({std::move(it->second), status});
  barriers_.erase(it);
}

}  // namespace byteps
