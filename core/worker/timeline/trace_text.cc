#include "core/worker/timeline/trace_text.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "core/base/status.h"

namespace byteps {
namespace {

constexpr uint32_t kProcessRow = 0;     // rows of names and threads have higher numbers
constexpr uint32_t kWhole = 0;          // as a part: the row of the operation itself
constexpr uint64_t kThreadsOrder = 0;   // threads of the program come first
constexpr uint64_t kPartsOrder = 1024;  // of a name: rows of further parts share the last place in the order

// `text` is UTF-8.
void AppendQuoted(std::string* to, std::string_view text) {
  to->push_back('"');
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      to->push_back('\\');
      to->push_back(c);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppendFormat(to, "\\u%04x", static_cast<int>(c));
    } else {
      to->push_back(c);
    }
  }
  to->push_back('"');
}

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace

void TraceText::Begin() {
  absl::StrAppend(&text_, "[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":", source_.rank, ",\"args\":{\"name\":");
  AppendQuoted(&text_, absl::StrCat("rank ", source_.rank, " of ", source_.size, " (", source_.host, ")"));
  absl::StrAppend(&text_, "}},\n{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":", source_.rank,
                  ",\"args\":{\"sort_index\":", source_.rank, "}}");
}

void TraceText::Add(const TimelineRecord& record) {
  switch (record.event) {
    case TimelineEvent::kSubmitted:
      return Submit(record);
    case TimelineEvent::kStep:
      Event("STEP", "i", record.at, kProcessRow);
      absl::StrAppend(&text_, ",\"s\":\"p\",\"args\":{\"round\":", record.number, "}}");
      return;
    case TimelineEvent::kMoment:
      Event(*record.name, "i", record.at, RowOfThread(record.operation));
      absl::StrAppend(&text_, ",\"s\":\"p\"}");
      return;
    case TimelineEvent::kSpanBegin: {
      spans_[record.operation].push_back(record.name != nullptr);
      if (record.name == nullptr) return;
      Event(*record.name, "B", record.at, RowOfThread(record.operation));
      text_.push_back('}');
      return;
    }
    case TimelineEvent::kSpanEnd: {
      // One that began before the timeline did.
      const auto open = spans_.find(record.operation);
      if (open == spans_.end() || open->second.empty()) return;
      const bool shown = open->second.back();
      open->second.pop_back();
      if (!shown) return;
      Event("", "E", record.at, RowOfThread(record.operation));
      text_.push_back('}');
      return;
    }
    default:
      break;
  }
  const auto found = operations_.find(record.operation);
  if (found == operations_.end()) return;
  Operation* const operation = &found->second;
  operation->last = std::max(operation->last, record.at);
  switch (record.event) {
    case TimelineEvent::kBegun:
      operation->parts_told = record.number;
      return Move(operation, nullptr, record.at);
    case TimelineEvent::kGathering:
      return Move(operation, "GATHER", record.at);
    case TimelineEvent::kWorking:
      return Move(operation, "LOCAL", record.at);
    case TimelineEvent::kFinishing:
      return Move(operation, "FINISH", record.at);
    case TimelineEvent::kQueued:
      return MovePart(operation, record, "QUEUE");
    case TimelineEvent::kPosted:
      return MovePart(operation, record, "PUSH");
    case TimelineEvent::kPushed:
      return MovePart(operation, record, "SERVER");
    case TimelineEvent::kHome:
    case TimelineEvent::kFailed:
      return MovePart(operation, record, nullptr);
    case TimelineEvent::kEnded:
      Finish(record.operation, operation, record.at, StatusCodeName(static_cast<int32_t>(record.number)));
      operations_.erase(record.operation);
      return;
    default:
      return;
  }
}

void TraceText::Submit(const TimelineRecord& record) {
  if (operations_.size() == kOpenOperations) FinishAll(record.at, "lost");
  Operation operation;
  operation.submitted = record;
  operation.last = record.at;
  operation.stage = {"SUBMIT", record.at};
  auto& [order, taken] = lanes_.try_emplace(record.name, lanes_.size() + 1, std::vector<bool>()).first->second;
  operation.lane = static_cast<uint32_t>(std::find(taken.begin(), taken.end(), false) - taken.begin());
  if (operation.lane == taken.size()) taken.push_back(false);
  taken[operation.lane] = true;
  operations_.insert_or_assign(record.operation, std::move(operation));
}

// The times of one operation come from several threads: none goes back.
void TraceText::Move(Operation* operation, const char* stage, Time at) {
  at = std::max(at, operation->stage.since);
  if (operation->stage.name != nullptr) {
    const Row row = RowOf(operation->submitted.name, operation->lane, kWhole);
    Complete(operation->stage.name, operation->stage.since, at, row);
    absl::StrAppend(&text_, ",\"args\":{\"round\":", operation->submitted.number, "}}");
  }
  operation->stage = {stage, at};
}

void TraceText::MovePart(Operation* operation, const TimelineRecord& record, const char* stage) {
  if (operation->parts.size() <= record.part) operation->parts.resize(record.part + 1);
  Part& part = operation->parts[record.part];
  // No part is on its way before the operation is with the stages.
  const Time at = std::max({record.at, part.stage.since, operation->stage.since});
  if (record.event == TimelineEvent::kQueued) {
    part.bytes = record.bytes;
    part.server = record.number;
  }
  WritePart(*operation, record.part, at);
  part.stage = {stage, at};
  operation->last = std::max(operation->last, at);
}

void TraceText::WritePart(const Operation& operation, uint32_t number, Time at) {
  const Part& part = operation.parts[number];
  if (part.stage.name == nullptr) return;
  Complete(part.stage.name, part.stage.since, at, RowOf(operation.submitted.name, operation.lane, number + 1));
  absl::StrAppend(&text_, ",\"args\":{\"tensor\":");
  AppendQuoted(&text_, *operation.submitted.name);
  absl::StrAppend(&text_, ",\"round\":", operation.submitted.number, ",\"part\":", number, ",\"bytes\":", part.bytes,
                  ",\"server\":", part.server, "}}");
}

void TraceText::Finish(uint64_t, Operation* operation, Time at, std::string_view outcome) {
  at = std::max({at, operation->last, operation->stage.since});
  for (uint32_t part = 0; part < operation->parts.size(); ++part) WritePart(*operation, part, at);
  Move(operation, nullptr, at);
  const TimelineRecord& submitted = operation->submitted;
  Complete(submitted.label, submitted.at, at, RowOf(submitted.name, operation->lane, kWhole));
  absl::StrAppend(&text_, ",\"args\":{\"tensor\":");
  AppendQuoted(&text_, *submitted.name);
  absl::StrAppend(&text_, ",\"round\":", submitted.number, ",\"bytes\":", submitted.bytes,
                  ",\"parts\":", operation->parts_told, ",\"priority\":", submitted.priority, ",\"outcome\":\"",
                  View(outcome), "\"}}");
  lanes_[submitted.name].second[operation->lane] = false;
}

void TraceText::FinishAll(Time at, std::string_view outcome) {
  std::vector<uint64_t> left;
  for (const auto& [id, operation] : operations_) left.push_back(id);
  std::sort(left.begin(), left.end());
  for (const uint64_t id : left) Finish(id, &operations_.at(id), at, outcome);
  operations_.clear();
}

void TraceText::End(Time now, uint64_t dropped) {
  FinishAll(now, "in flight");
  for (const auto& [thread, open] : spans_) {
    for (const bool shown : open) {
      if (!shown) continue;
      Event("", "E", now, RowOfThread(thread));
      text_.push_back('}');
    }
  }
  TellDropped(now, dropped);
  absl::StrAppend(&text_, "\n]\n");
}

void TraceText::TellDropped(Time now, uint64_t dropped) {
  if (dropped == 0) return;
  Event(absl::StrCat(dropped, " events were dropped"), "i", now, kProcessRow);
  absl::StrAppend(&text_, ",\"s\":\"p\",\"args\":{\"dropped\":", dropped, "}}");
}

TraceText::Row TraceText::RowOf(const std::string* name, uint32_t lane, uint32_t part) {
  const auto [row, fresh] = rows_.try_emplace({name, lane, part}, next_row_);
  if (!fresh) return row->second;
  const Row number = next_row_++;
  std::string text = lane == 0 ? *name : absl::StrCat(*name, " (", lane + 1, ")");
  if (part != kWhole) absl::StrAppend(&text, ", part ", part - 1);
  Name(number, text, lanes_[name].first * kPartsOrder + std::min<uint64_t>(part, kPartsOrder - 1));
  return number;
}

TraceText::Row TraceText::RowOfThread(uint64_t thread) {
  const auto [row, fresh] = threads_.try_emplace(thread, next_row_);
  if (!fresh) return row->second;
  Name(next_row_, absl::StrCat("thread ", thread), kThreadsOrder);
  return next_row_++;
}

void TraceText::Name(Row row, std::string_view name, uint64_t order) {
  absl::StrAppend(&text_, ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":", source_.rank, ",\"tid\":", row,
                  ",\"args\":{\"name\":");
  AppendQuoted(&text_, name);
  absl::StrAppend(&text_, "}},\n{\"name\":\"thread_sort_index\",\"ph\":\"M\",\"pid\":", source_.rank, ",\"tid\":", row,
                  ",\"args\":{\"sort_index\":", order, "}}");
}

// The event is open: its last brace is missing.
void TraceText::Event(std::string_view name, const char* phase, Time at, Row row) {
  absl::StrAppend(&text_, ",\n{\"name\":");
  AppendQuoted(&text_, name);
  absl::StrAppend(&text_, ",\"ph\":\"", phase, "\",\"ts\":", Microseconds(at), ",\"pid\":", source_.rank,
                  ",\"tid\":", row);
}

void TraceText::Complete(std::string_view name, Time begin, Time end, Row row) {
  Event(name, "X", begin, row);
  absl::StrAppend(&text_, ",\"dur\":", Microseconds(end) - Microseconds(begin), ",\"cat\":\"Comm\"");
}

}  // namespace byteps
