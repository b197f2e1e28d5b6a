#include "server/reducer/ready_rounds.h"

#include <algorithm>

namespace byteps {
namespace {

bool Later(const Round* a, const Round* b) {
  const int64_t theirs = a->header().priority, ours = b->header().priority;
  return theirs != ours ? theirs < ours : a->ready_order > b->ready_order;
}

}  // namespace

void ReadyRounds::Add(Round* round) {
  round->ready_order = orders_++;
  heap_.push_back(round);
  std::push_heap(heap_.begin(), heap_.end(), Later);
}

Round* ReadyRounds::Take() {
  std::pop_heap(heap_.begin(), heap_.end(), Later);
  Round* round = heap_.back();
  heap_.pop_back();
  return round;
}

void ReadyRounds::Remove(Round* round) {
  if (std::erase(heap_, round) != 0) std::make_heap(heap_.begin(), heap_.end(), Later);
}

}  // namespace byteps
