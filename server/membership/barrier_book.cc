#include "server/membership/barrier_book.h"

#include <algorithm>
#include <iterator>

#include "core/base/status.h"
#include "core/base/time_text.h"

namespace byteps {
namespace {

// Names in an error; a job of thousands shall not answer with pages.
constexpr size_t kMaxNamed = 8;

}  // namespace

BarrierAnswer BarrierBook::Answer(uint32_t rank, const Key& key, const absl::Status& status) {
  BarrierAnswer answer;
  answer.rank = rank;
  answer.reply.set_name(key.first);
  answer.reply.set_sequence(key.second);
  answer.reply.set_code(StatusCode(status));
  answer.reply.set_error(std::string(status.message().data(), status.message().size()));
  return answer;
}

std::string BarrierBook::Missing(const Barrier& barrier) const {
  std::string text;
  size_t missing = 0;
  for (uint32_t rank = 0; rank < size_; ++rank) {
    if (barrier.arrived.count(rank) != 0) continue;
    if (++missing > kMaxNamed) continue;
    text += (missing == 1 ? "" : ", ") + describe_(rank);
    if (left_.count(rank) != 0) text += " (has left the session)";
  }
  if (missing > kMaxNamed) text += " and " + std::to_string(missing - kMaxNamed) + " more";
  return text;
}

bool BarrierBook::Finished(const Barrier& barrier) const {
  // All workers have met it, or never will.
  size_t met = barrier.arrived.size();
  for (const uint32_t rank : left_) met += 1 - barrier.arrived.count(rank);
  return met >= size_;
}

void BarrierBook::Fail(const Key& key, Barrier* barrier, const absl::Status& why, std::vector<BarrierAnswer>* answers) {
  barrier->failed = why;
  barrier->deadline = kNever;
  for (const uint32_t rank : barrier->arrived) {
    if (left_.count(rank) == 0) answers->push_back(Answer(rank, key, why));
  }
}

std::vector<BarrierAnswer> BarrierBook::Arrive(Time now, uint32_t rank, const control::BarrierRequest& request) {
  const Key key(request.name(), request.sequence());
  std::vector<BarrierAnswer> answers;
  if (request.name().size() > kMaxNameBytes || request.sequence() == 0) {
    answers.push_back(Answer(rank, key, absl::InvalidArgumentError("a barrier's name is too long, or its call is 0")));
    return answers;
  }
  auto found = barriers_.find(key);
  if (found == barriers_.end()) {
    if (barriers_.size() >= kMaxOpen) {
      // The oldest failures are forgotten first: a worker that comes to one of them waits for its own deadline.
      const auto failed =
          std::find_if(barriers_.begin(), barriers_.end(), [](const auto& each) { return !each.second.failed.ok(); });
      if (failed == barriers_.end()) {
        answers.push_back(
            Answer(rank, key, absl::ResourceExhaustedError(std::to_string(kMaxOpen) + " barriers are open")));
        return answers;
      }
      barriers_.erase(failed);
    }
    found = barriers_.emplace(key, Barrier{}).first;
  }
  Barrier& barrier = found->second;
  if (!barrier.arrived.insert(rank).second) {
    answers.push_back(Answer(rank, key, absl::AlreadyExistsError("this rank has come to this barrier before")));
    return answers;
  }
  if (!barrier.failed.ok()) {
    answers.push_back(Answer(rank, key, barrier.failed));
    if (Finished(barrier)) barriers_.erase(found);
    return answers;
  }
  if (barrier.arrived.size() == size_) {
    for (const uint32_t each : barrier.arrived) {
      if (left_.count(each) == 0) answers.push_back(Answer(each, key, absl::OkStatus()));
    }
    barriers_.erase(found);
    return answers;
  }
  const Time deadline = After(now, FromMilliseconds(std::max<int64_t>(request.timeout_ms(), 0)));
  if (deadline < barrier.deadline) {
    barrier.deadline = deadline;
    barrier.impatient = rank;
    barrier.timeout_ms = request.timeout_ms();
  }
  const bool hopeless =
      std::any_of(left_.begin(), left_.end(), [&](uint32_t each) { return barrier.arrived.count(each) == 0; });
  if (hopeless) {
    Fail(key, &barrier,
         absl::FailedPreconditionError("barrier \"" + key.first + "\" cannot be met by " + Missing(barrier)), &answers);
    if (Finished(barrier)) barriers_.erase(found);
  }
  return answers;
}

std::vector<BarrierAnswer> BarrierBook::Leave(uint32_t rank) {
  std::vector<BarrierAnswer> answers;
  left_.insert(rank);
  for (auto each = barriers_.begin(); each != barriers_.end();) {
    Barrier& barrier = each->second;
    if (barrier.failed.ok() && barrier.arrived.count(rank) == 0) {
      Fail(each->first, &barrier,
           absl::FailedPreconditionError("barrier \"" + each->first.first + "\" cannot be met by " + Missing(barrier)),
           &answers);
    }
    each = Finished(barrier) ? barriers_.erase(each) : std::next(each);
  }
  return answers;
}

std::vector<BarrierAnswer> BarrierBook::Tick(Time now) {
  std::vector<BarrierAnswer> answers;
  for (auto& [key, barrier] : barriers_) {
    if (now < barrier.deadline) continue;
    Fail(key, &barrier,
         absl::DeadlineExceededError("barrier \"" + key.first + "\": not met within the " +
                                     SecondsText(FromMilliseconds(barrier.timeout_ms)) + " of " +
                                     describe_(barrier.impatient) + "; missing: " + Missing(barrier)),
         &answers);
  }
  return answers;
}

Time BarrierBook::NextTimer() const {
  Time next = kNever;
  for (const auto& [key, barrier] : barriers_) next = std::min(next, barrier.deadline);
  return next;
}

}  // namespace byteps
