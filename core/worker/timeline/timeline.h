// timeline.h - what becomes of each operation of a session, as a file that people and programs read: off until asked.
//
//     Timeline timeline(&log);
//     if (timeline.on()) ...                                     // any thread: one relaxed load
//     absl::Status status = timeline.Start({.path = "/tmp/timeline.json", .rank = 3, .size = 8});
//     timeline.Note({.event = ..., .operation = 7, .at = now});  // any thread
//     status = timeline.Stop();                                  // the file is whole
//
// The subtle parts:
//
// Cost.      Off, there is no memory and no thread. On, Note copies a record into a ring that has been there since
//            Start; it takes no lock and allocates nothing. What the ring has no room for is dropped, counted, and
//            told: in the file and in the log.
// The file.  A JSON array of Chrome's trace events, one on each line, appended by the timeline's own thread a hundred
//            times a second at most. Where the process ends without Stop, the last bracket is missing, which Chrome and
//            Perfetto accept.
// A window.  With `first_round` and `last_round` only operations of these rounds of their name are recorded, and of
//            what has no rounds (collectives among workers, marks) all between the first and the last of them.
//
// Threads: any, unless it is said otherwise.
#ifndef BYTEPS_CORE_WORKER_TIMELINE_TIMELINE_H_
#define BYTEPS_CORE_WORKER_TIMELINE_TIMELINE_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <thread>

#include "absl/status/status.h"
#include "core/base/log.h"
#include "core/base/time.h"
#include "core/base/unique_fd.h"
#include "core/worker/timeline/timeline_record.h"

namespace byteps {

class RecordRing;
class TraceText;

struct TimelineOptions {
  std::string path;  // its folder is made
  int32_t rank = 0;
  int32_t size = 1;
  uint64_t first_round = 0;
  uint64_t last_round = UINT64_MAX;
  bool mark_steps = false;  // a moment where a round begins that no name has been in
};

class Timeline {
 public:
  // Records that are kept until the thread takes them: some hundredths of a second of more than a worker can do.
  static constexpr size_t kRecords = 1 << 16;

  explicit Timeline(const Logger* log, size_t records = kRecords);
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Is anything recorded?
  bool on() const { return on_.load(std::memory_order_relaxed); }

  // INVALID_ARGUMENT: the file cannot be written; FAILED_PRECONDITION: one is being written.
  absl::Status Start(TimelineOptions options);
  // Ends the file; what is in flight ends there, too. FAILED_PRECONDITION: there is none; UNAVAILABLE,
  // RESOURCE_EXHAUSTED: not all of it could be written.
  absl::Status Stop();

  // Is this round of a name, submitted at `at`, to be recorded? By the thread that drives the engine, for each
  // submission, while on().
  bool Wants(uint64_t round, Time at);
  // Is what has no rounds to be recorded?
  bool wants_now() const { return on() && inside_.load(std::memory_order_relaxed); }
  void Note(const TimelineRecord& record);
  // The same text, for as long as the timeline lives. Takes a lock: not for every record.
  const std::string* Keep(std::string_view text);
  // What the program says of itself: on the row of the thread that calls.
  void Mark(TimelineEvent event, std::string_view name);

  // Records that found no room since Start.
  uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

  // Where a rank writes that was told `path`: rank 0 there, others beside it: "a/b.json" is "a/b.rank3.json".
  static std::string PathOf(std::string_view path, int32_t rank);

 private:
  void Run();
  void Drain();
  void Write();

  const Logger* const log_;
  const size_t records_;
  std::atomic<bool> on_{false};
  std::atomic<bool> inside_{false};
  std::atomic<bool> over_{false};  // a round behind the last one was seen
  std::atomic<uint64_t> first_round_{0};
  std::atomic<uint64_t> last_round_{UINT64_MAX};
  std::atomic<bool> mark_steps_{false};
  std::atomic<uint64_t> next_step_{0};  // rounds before it were seen
  std::atomic<uint64_t> dropped_{0};
  std::atomic<RecordRing*> ring_{nullptr};
  std::unique_ptr<RecordRing> owned_ring_;  // from the first Start on: late writers may still hold it

  std::mutex control_mutex_;  // one caller of Start and Stop at a time
  TimelineOptions options_;
  UniqueFd file_;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false;
  std::thread thread_;

  // The thread's, and once it has ended Stop's.
  std::unique_ptr<TraceText> text_;
  absl::Status written_;

  std::mutex names_mutex_;
  std::set<std::string, std::less<>> names_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_TIMELINE_TIMELINE_H_
