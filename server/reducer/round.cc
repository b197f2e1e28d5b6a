#include "server/reducer/round.h"

#include <cstring>
#include <stdexcept>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/reduce/dtype.h"
#include "core/wire/push_head.h"

namespace byteps {

const char* RoundStateName(RoundState state) {
  switch (state) {
    case RoundState::kGathering:
      return "gathering";
    case RoundState::kReady:
      return "ready";
    case RoundState::kAwaitingMemory:
      return "starved";
    case RoundState::kRecalling:
      return "recalling";
    case RoundState::kOver:
      return "over";
    case RoundState::kFailed:
      return "failed";
  }
  return "unknown";
}

const char* ContributionStateName(ContributionState state) {
  switch (state) {
    case ContributionState::kAbsent:
      return "absent";
    case ContributionState::kComing:
      return "coming";
    case ContributionState::kInSlot:
      return "in slot";
    case ContributionState::kParked:
      return "parked";
    case ContributionState::kDropped:
      return "dropped";
    case ContributionState::kAsked:
      return "asked";
    case ContributionState::kFolded:
      return "folded";
    case ContributionState::kPresent:
      return "present";
    case ContributionState::kAtWorker:
      return "at its worker";
  }
  return "unknown";
}

bool RoundMayMove(RoundState from, RoundState to) {
  switch (to) {
    case RoundState::kGathering:
      return false;  // Begin alone
    case RoundState::kReady:
      return from == RoundState::kGathering;
    case RoundState::kAwaitingMemory:
      return from == RoundState::kGathering || from == RoundState::kReady;
    case RoundState::kRecalling:
      return from == RoundState::kAwaitingMemory;
    case RoundState::kOver:
      return from == RoundState::kGathering || from == RoundState::kReady || from == RoundState::kRecalling;
    case RoundState::kFailed:
      return from != RoundState::kFailed && from != RoundState::kOver;
  }
  return false;
}

void Round::Begin(Time now, ServedSession* session, Part* part, const wire::DataHeader& header, const Contributors& who,
                  std::span<const std::byte> shape) {
  state_ = RoundState::kGathering;
  session_ = session;
  part_ = part;
  header_ = header;
  header_.way = wire::PayloadWay::kNone;
  header_.payload_bytes = 0;
  header_.immediate = 0;
  header_.checksum = 0;
  header_.timeout_ms = 0;
  header_.memory = {};
  header_.shape = 0;
  told_shape_ = header.shape;
  extents_.assign(shape.begin(), shape.end());
  header_.rank = who.count();  // RESULT: the number of contributors
  bytes_ = header.elements * DtypeSize(header.dtype);
  contributions_.resize(who.count());
  counts_[static_cast<size_t>(ContributionState::kAbsent)] = who.count();
  if (broadcast()) {
    // The fold over one input, bit by bit.
    first_ = who.of(static_cast<uint32_t>(header.root));
    last_ = first_ + 1;
    reduction_ = {BPS_INT8, BPS_SUM};
    groups_ = {};
    elements_ = bytes_;
  } else {
    first_ = 0;
    last_ = who.count();
    reduction_ = {header.dtype, header.reduction, who.workers()};
    groups_ = who.groups();
    elements_ = header.elements;
  }
  opened_ = now;
  deadline_ = kNever;
  pending_error_ = absl::OkStatus();
  kept = nullptr;
}

void Round::End() {
  for (Contribution& contribution : contributions_) {
    contribution.block.Reset();
    contribution.in_place = false;
    contribution.state = ContributionState::kAbsent;
  }
  for (uint32_t& count : counts_) count = 0;
  accumulator_.reset();
  memory_.Reset();
  state_ = RoundState::kOver;
  session_ = nullptr;
  part_ = nullptr;
}

void Round::Move(RoundState to) {
  if (!RoundMayMove(state_, to)) {
    throw std::logic_error(absl::StrCat("a round cannot go from ", RoundStateName(state_), " to ", RoundStateName(to)));
  }
  state_ = to;
}

void Round::SetState(uint32_t index, ContributionState state) {
  Contribution& contribution = contributions_[index];
  --counts_[static_cast<size_t>(contribution.state)];
  contribution.state = state;
  ++counts_[static_cast<size_t>(state)];
}

void Round::StartAccumulator(Block memory) {
  memory_ = std::move(memory);
  accumulator_.emplace(reduction_, groups_, last_ - first_, elements_, memory_.data());
}

Block Round::TakeAccumulator() {
  accumulator_.reset();
  return std::move(memory_);
}

uint32_t Round::prefix() const {
  uint32_t index = next();
  while (index < last_ && contributions_[index].waiting()) ++index;
  return index - next();
}

std::string Round::Describe() const {
  std::string text = absl::StrCat("round ", header_.round, " of part ", header_.part, " of key ",
                                  absl::Hex(header_.key), " ", RoundStateName(state_), ":");
  for (size_t state = 0; state < std::size(counts_); ++state) {
    if (counts_[state] == 0) continue;
    absl::StrAppend(&text, " ", counts_[state], " ", ContributionStateName(static_cast<ContributionState>(state)));
  }
  return text;
}

std::string Round::DescribeAsked() const {
  wire::DataHeader header = header_;
  header.shape = told_shape_;
  return DescribeRequest(header, extents_);
}

std::string DescribeRequest(const wire::DataHeader& header, std::span<const std::byte> shape) {
  const std::string what = header.operation == wire::Operation::kBroadcast
                               ? absl::StrCat("broadcast from rank ", header.root)
                               : absl::StrCat("push_pull (", OpName(header.reduction), ")");
  if (header.shape == 0) {
    return absl::StrCat(what, " of ", DtypeName(header.dtype), ", part ", header.part, " of ", header.parts, " with ",
                        header.elements, " elements");
  }
  std::vector<int64_t> extents(shape.size() / sizeof(int64_t));
  if (!extents.empty()) std::memcpy(extents.data(), shape.data(), extents.size() * sizeof(int64_t));
  return absl::StrCat(what, " of ", DtypeName(header.dtype), ", ", DescribeShape(extents));
}

bool SameRequest(const wire::DataHeader& a, const wire::DataHeader& b) {
  return a.key == b.key && a.fingerprint == b.fingerprint && a.offset == b.offset && a.elements == b.elements &&
         a.parts == b.parts && a.dtype == b.dtype && a.root == b.root && a.operation == b.operation &&
         a.reduction == b.reduction;
}

wire::RoundBody BodyOf(const wire::DataHeader& header) {
  wire::RoundBody body{};
  body.key = header.key;
  body.fingerprint = header.fingerprint;
  body.round = header.round;
  body.part = header.part;
  body.process_set = header.process_set;
  if (header.operation == wire::Operation::kAsynchronous) body.flags = wire::kFlagAsynchronous;
  return body;
}

}  // namespace byteps
