#include "core/worker/timeline/timeline.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <exception>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/worker/timeline/record_ring.h"
#include "core/worker/timeline/trace_text.h"

namespace byteps {
namespace {

constexpr std::chrono::milliseconds kInterval(10);
// More is not kept in memory before it is written.
constexpr size_t kTextBytes = 1 << 20;
// The longest wait for the reader of a pipe.
constexpr int kPipeMs = 1000;

std::string HostName() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

Time WallClock() {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<Time>(now.tv_sec) * kSecond + now.tv_nsec;
}

// Opens the file, empty, for this process and session alone. Returns 0, or an errno.
int OpenEmpty(const char* path, UniqueFd* file) {
  // A pipe without a reader is an error, not a wait.
  *file = UniqueFd(::open(path, O_WRONLY | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0666));
  if (!*file) return errno;
  // Two that write it would make one heap of lines. A file system without locks is the user's own risk.
  if (::flock(file->get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return errno;
  struct stat status;
  if (::fstat(file->get(), &status) != 0) return errno;
  return S_ISREG(status.st_mode) && ::ftruncate(file->get(), 0) != 0 ? errno : 0;
}

// A forked child has the descriptor, too, and with it the lock: it goes here and not with the last descriptor.
void Close(UniqueFd* file) {
  ::flock(file->get(), LOCK_UN);
  *file = UniqueFd();
}

std::string Reason(int error) { return std::error_code(error, std::generic_category()).message(); }

}  // namespace

Timeline::Timeline(const Logger* log, size_t records) : log_(log), records_(records) {}

Timeline::~Timeline() { (void)Stop(); }

std::string Timeline::PathOf(std::string_view path, int32_t rank) {
  std::filesystem::path file(path);
  if (rank == 0) return file.string();
  const std::string name = absl::StrCat(file.stem().string(), ".rank", rank, file.extension().string());
  return file.replace_filename(name).string();
}

absl::Status Timeline::Start(TimelineOptions options) {
  const std::lock_guard<std::mutex> control(control_mutex_);
  if (thread_.joinable()) {
    return absl::FailedPreconditionError(
        absl::StrCat("a timeline is being written already, to ", options_.path, ": stop it first"));
  }
  const std::filesystem::path path(options.path);
  const auto wrong = [&](const std::string& why) {
    return absl::InvalidArgumentError(absl::StrCat("the timeline cannot be written to ", options.path, ": ", why));
  };
  if (path.has_parent_path()) {
    std::error_code error;
    std::filesystem::create_directories(path.parent_path(), error);
    if (error) return wrong(error.message());
  }
  UniqueFd file;
  if (const int error = OpenEmpty(options.path.c_str(), &file); error != 0) {
    return wrong(error == EWOULDBLOCK ? "another process or session writes its timeline there" : Reason(error));
  }
  file_ = std::move(file);
  options_ = std::move(options);
  text_ = std::make_unique<TraceText>(TraceSource{options_.rank, options_.size, HostName(), WallClock() - Now()});
  text_->Begin();
  written_ = absl::OkStatus();
  dropped_.store(0);
  if (owned_ring_ == nullptr) owned_ring_ = std::make_unique<RecordRing>(records_);
  ring_.store(owned_ring_.get());
  for (TimelineRecord late; owned_ring_->Pop(&late);) continue;
  stop_ = false;
  // Signals belong to the host's own threads.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  absl::Status status;
  try {
    thread_ = std::thread([this] { Run(); });
    pthread_setname_np(thread_.native_handle(), "bps-timeline");
  } catch (const std::system_error& error) {
    status = absl::ResourceExhaustedError(absl::StrCat("no thread for the timeline: ", error.what()));
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!status.ok()) {
    Close(&file_);
    text_.reset();
    return status;
  }
  mark_steps_.store(options_.mark_steps);
  next_step_.store(0);
  first_round_.store(options_.first_round);
  last_round_.store(options_.last_round);
  over_.store(false);
  inside_.store(options_.first_round == 0);
  on_.store(true);
  return absl::OkStatus();
}

absl::Status Timeline::Stop() {
  const std::lock_guard<std::mutex> control(control_mutex_);
  if (!thread_.joinable()) return absl::FailedPreconditionError("no timeline is being written");
  on_.store(false);
  inside_.store(false);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
    changed_.notify_one();
  }
  thread_.join();
  Close(&file_);
  text_.reset();
  if (const uint64_t count = dropped(); count != 0) {
    BPS_LOG(*log_, kWarning) << "timeline " << options_.path << ": " << count
                             << " events were dropped: more came at once than its thread could take";
  }
  if (!written_.ok()) {
    BPS_LOG(*log_, kWarning) << written_.message();
  }
  return written_;
}

bool Timeline::Wants(uint64_t round, Time at) {
  if (round < first_round_.load(std::memory_order_relaxed)) return false;
  if (round > last_round_.load(std::memory_order_relaxed)) {
    over_.store(true, std::memory_order_relaxed);
    inside_.store(false, std::memory_order_relaxed);
    return false;
  }
  // (Names of few rounds, averages of an epoch, neither open the window nor shut it.)
  if (!over_.load(std::memory_order_relaxed)) inside_.store(true, std::memory_order_relaxed);
  if (mark_steps_.load(std::memory_order_relaxed) && round >= next_step_.load(std::memory_order_relaxed)) {
    next_step_.store(round + 1, std::memory_order_relaxed);
    Note({.event = TimelineEvent::kStep, .at = at, .number = round});
  }
  return true;
}

void Timeline::Note(const TimelineRecord& record) {
  if (!on()) return;
  RecordRing* const ring = ring_.load(std::memory_order_acquire);
  if (ring != nullptr && !ring->Push(record)) dropped_.fetch_add(1, std::memory_order_relaxed);
}

const std::string* Timeline::Keep(std::string_view text) {
  const std::lock_guard<std::mutex> lock(names_mutex_);
  auto found = names_.find(text);
  if (found == names_.end()) found = names_.emplace(text).first;
  return &*found;
}

void Timeline::Mark(TimelineEvent event, std::string_view name) {
  // Spans that are not shown are told as well: each end is that of the latest beginning.
  const bool shown = wants_now();
  if (event == TimelineEvent::kMoment ? !shown : !on()) return;
  TimelineRecord record;
  record.event = event;
  record.operation = static_cast<uint64_t>(::syscall(SYS_gettid));
  record.at = Now();
  if (event != TimelineEvent::kSpanEnd && shown) record.name = Keep(name);
  Note(record);
}

void Timeline::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stop_) {
    changed_.wait_for(lock, kInterval, [this] { return stop_; });
    lock.unlock();
    try {
      Drain();
      Write();
    } catch (const std::exception& error) {
      // It goes on with what comes next: a file with a gap is better than none.
      written_.Update(absl::ResourceExhaustedError(absl::StrCat("the timeline has a gap: ", error.what())));
    }
    lock.lock();
  }
  lock.unlock();
  // What was noted before Stop was called is in the ring.
  try {
    Drain();
    text_->End(Now(), dropped());
    Write();
  } catch (const std::exception& error) {
    written_.Update(absl::ResourceExhaustedError(absl::StrCat("the timeline has no end: ", error.what())));
  }
}

void Timeline::Drain() {
  TimelineRecord record;
  // As many as there can be: with writers that never rest it would not end.
  for (size_t i = 0; i < records_ && owned_ring_->Pop(&record); ++i) {
    text_->Add(record);
    if (text_->pending_bytes() >= kTextBytes) Write();
  }
}

void Timeline::Write() {
  const std::string text = text_->Take();
  size_t done = 0;
  while (done < text.size() && written_.ok()) {
    const ssize_t count = ::write(file_.get(), text.data() + done, text.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0 && errno == EAGAIN) {  // a pipe that is full
      pollfd pipe = {file_.get(), POLLOUT, 0};
      if (::poll(&pipe, 1, kPipeMs) > 0) continue;
      errno = EAGAIN;
    }
    if (count < 0) {
      written_ = absl::UnavailableError(
          absl::StrCat("the timeline ", options_.path, " cannot be written on: ", Reason(errno)));
      return;
    }
    done += static_cast<size_t>(count);
  }
}

}  // namespace byteps
