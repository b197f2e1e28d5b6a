#include "scheduler_plugins/credit/restart.h"

#include <algorithm>

namespace byteps::credit {

void Restart::Started(int64_t now, uint32_t peer, uint64_t bytes) {
  ++sources_[peer].under_way;
  if (now - started_ >= kSilence) {
    gently_until_ = now + kGently;
    // All of that burst went gently, and told nothing else.
    if (gentle_ && !confirmed_) ClearWindow();
    // No higher than where nothing is held back in any case.
    doubt_ = confirmed_ ? 1 : std::min(kDoubt * doubt_, kFastest);
    confirmed_ = false;
    gentle_rate_ = doubt_ * rate();
  }
  started_ = now;
  gentle_ = now < gently_until_ && gentle_rate_ > 0 && gentle_rate_ <= kFastest;
  if (!gentle_) return;
  link_until_ =
      std::max(link_until_, now) + static_cast<int64_t>(static_cast<double>(bytes) * 1e9 / (kGain * gentle_rate_));
}

void Restart::Home(int64_t now, uint32_t peer, uint64_t bytes, int64_t waits_since) {
  Source& source = sources_[peer];
  const bool counts = source.busy && source.home >= waits_since;
  if (counts) {
    source.bytes += bytes;
    source.time += now - source.home;
    ++window_results_;
  }
  source.home = now;
  Lost(peer);
  source.busy = source.under_way > 0;
  if (counts && window_results_ >= kWindow && source.time >= kWindowTime) CloseWindow();
}

void Restart::Lost(uint32_t peer) {
  Source& source = sources_[peer];
  if (source.under_way > 0) --source.under_way;
  source.busy = source.busy && source.under_way > 0;
}

void Restart::CloseWindow() {
  double& sum = rates_[next_rate_];
  sum = 0;
  for (auto& [peer, source] : sources_) {
    if (source.time > 0) sum += static_cast<double>(source.bytes) * 1e9 / static_cast<double>(source.time);
  }
  ClearWindow();
  next_rate_ = (next_rate_ + 1) % kWindows;
  confirmed_ = true;
  doubt_ = 1;
}

void Restart::ClearWindow() {
  for (auto& [peer, source] : sources_) source.bytes = 0, source.time = 0;
  window_results_ = 0;
}

// What is under way stays so, whichever worker has come or gone.
void Restart::Forget() {
  std::erase_if(sources_, [](const auto& source) { return source.second.under_way == 0; });
  for (auto& [peer, source] : sources_) source = {.under_way = source.under_way};
  window_results_ = 0;
  rates_ = {};
  gentle_rate_ = 0;
  confirmed_ = false;
  doubt_ = 1;
}

double Restart::rate() const { return *std::max_element(rates_.begin(), rates_.end()); }

}  // namespace byteps::credit
