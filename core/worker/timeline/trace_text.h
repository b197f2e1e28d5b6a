// trace_text.h - makes Chrome's trace events of timeline records: the lines of a JSON array.
//
//     TraceText text({.rank = 3, .size = 8, .host = "n1", .clock = wall_minus_monotonic});
//     text.Begin();  text.Add(record) ...  text.End(now, dropped);
//     std::string lines = text.Take();        // append them to the file, from time to time
//
// Every operation has a row of its name, every part of it a row below. A name whose operations overlap (receives, say)
// gets as many rows as there are in flight at once. So the events of a row never overlap unless one contains the other.
// Times are whole microseconds of the wall clock, rounded down, so that what follows never begins before what precedes
// has ended. An event is written when it ends. Records of operations whose submission it has not seen are ignored.
//
// Threads: none.
#ifndef BYTEPS_CORE_WORKER_TIMELINE_TRACE_TEXT_H_
#define BYTEPS_CORE_WORKER_TIMELINE_TRACE_TEXT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "core/base/time.h"
#include "core/worker/timeline/timeline_record.h"

namespace byteps {

struct TraceSource {
  int32_t rank = 0;
  int32_t size = 1;
  std::string host;
  Time clock = 0;  // what makes wall-clock time of a record's
};

class TraceText {
 public:
  // That have begun and not ended. One more, and all of them end as "lost": the records of their ends were dropped.
  static constexpr size_t kOpenOperations = 1 << 16;

  explicit TraceText(TraceSource source) : source_(std::move(source)) {}

  void Begin();
  void Add(const TimelineRecord& record);
  // What has not ended ends here, and says so; nothing may follow. `dropped`: records that were lost before they came.
  void End(Time now, uint64_t dropped);
  // Of a file that goes on.
  void TellDropped(Time now, uint64_t dropped);

  // The lines since the last call.
  std::string Take() { return std::exchange(text_, {}); }
  size_t pending_bytes() const { return text_.size(); }

 private:
  using Row = uint32_t;
  // A stage that lasts.
  struct Stage {
    const char* name = nullptr;  // nullptr: none
    Time since = 0;
  };
  struct Part {
    Stage stage;
    uint64_t bytes = 0;
    uint64_t server = 0;
  };
  struct Operation {
    TimelineRecord submitted;
    uint32_t lane = 0;  // among those of its name
    uint64_t parts_told = 0;
    Time last = 0;
    Stage stage;
    std::vector<Part> parts;
  };

  void Submit(const TimelineRecord& record);
  void FinishAll(Time at, std::string_view outcome);
  void Finish(uint64_t id, Operation* operation, Time at, std::string_view outcome);
  void Move(Operation* operation, const char* stage, Time at);
  void MovePart(Operation* operation, const TimelineRecord& record, const char* stage);
  void WritePart(const Operation& operation, uint32_t part, Time at);
  Row RowOf(const std::string* name, uint32_t lane, uint32_t part);
  Row RowOfThread(uint64_t thread);
  void Name(Row row, std::string_view name, uint64_t order);
  void Event(std::string_view name, const char* phase, Time at, Row row);
  void Complete(std::string_view name, Time begin, Time end, Row row);
  int64_t Microseconds(Time at) const { return (at + source_.clock) / 1000; }

  const TraceSource source_;
  std::string text_;
  absl::flat_hash_map<uint64_t, Operation> operations_;
  absl::flat_hash_map<const std::string*, std::pair<uint64_t, std::vector<bool>>> lanes_;  // order; which are taken
  absl::flat_hash_map<std::tuple<const std::string*, uint32_t, uint32_t>, Row> rows_;
  absl::flat_hash_map<uint64_t, Row> threads_;
  absl::flat_hash_map<uint64_t, std::vector<bool>> spans_;  // by thread, those that are open: are they shown?
  Row next_row_ = 1;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_TIMELINE_TRACE_TEXT_H_
