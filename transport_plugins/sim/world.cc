#include "transport_plugins/sim/world.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace byteps::sim {

World::World(FabricOptions options) : options_(std::move(options)), random_(options_.seed) {
  const char* trace = std::getenv("BYTEPS_SIM_TRACE");
  if (trace != nullptr && std::strcmp(trace, "1") == 0) options_.trace = true;
}

bool World::Later(const Event& a, const Event& b) {
  if (a.at != b.at) return a.at > b.at;
  if (a.tie != b.tie) return a.tie > b.tie;
  return a.sequence > b.sequence;
}

void World::At(Time at, const char* what, std::function<void()> fn) {
  heap_.push_back({std::max(at, now_), random_.Next(), sequence_++, what, std::move(fn)});
  std::push_heap(heap_.begin(), heap_.end(), Later);
}

bool World::Step() {
  if (heap_.empty()) return false;
  std::pop_heap(heap_.begin(), heap_.end(), Later);
  Event event = std::move(heap_.back());
  heap_.pop_back();
  now_ = event.at;
  ++stats_.steps;
  uint64_t hash = fingerprint_ ^ static_cast<uint64_t>(now_);
  for (const char c : std::string_view(event.what)) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  fingerprint_ = Random(hash).Next();
  if (options_.trace) std::fprintf(stderr, "[sim %12.3f us] %s\n", static_cast<double>(now_) / 1e3, event.what);
  event.fn();
  return true;
}

bool World::Next(Time* at) const {
  if (heap_.empty()) return false;
  *at = heap_.front().at;
  return true;
}

std::pair<std::string, std::string> World::Ordered(const std::string& a, const std::string& b) {
  return a < b ? std::make_pair(a, b) : std::make_pair(b, a);
}

const LinkOptions& World::Link(const std::string& from, const std::string& to) const {
  auto it = links_.find(Ordered(from, to));
  return it == links_.end() ? options_.link : it->second;
}

void World::SetLink(const std::string& a, const std::string& b, const LinkOptions& link) {
  links_[Ordered(a, b)] = link;
}

void World::Arrive(const std::string& from, const std::string& to, Time at, const char* what,
                   std::function<void()> fn) {
  At(at, what, [this, from, to, fn = std::move(fn)]() mutable {
    auto cut = cut_.find(Ordered(from, to));
    if (cut == cut_.end()) return fn();
    cut->second.push_back(std::move(fn));
  });
}

void World::Cut(const std::string& a, const std::string& b) { cut_[Ordered(a, b)]; }

void World::Heal(const std::string& a, const std::string& b) {
  auto cut = cut_.find(Ordered(a, b));
  if (cut == cut_.end()) return;
  auto parcels = std::move(cut->second);
  cut_.erase(cut);
  // At once and in the order of their arrival, so that nothing sent from now on overtakes them.
  for (auto& parcel : parcels) parcel();
}

bool World::DeadSilently(const std::string& node) const {
  auto it = dead_.find(node);
  return it != dead_.end() && it->second == Death::kSilent;
}

Time World::NoticedAt() { return now_ + options_.down_delay + random_.Between(0, options_.down_delay); }

void World::Violation(const std::string& what) const {
  if (options_.violation) return options_.violation(what);
  std::fprintf(stderr,
               "sim: violation of the transport contract at %.3f us: %s\n"
               "sim: replay with BYTEPS_SIM_SEED=%llu (and BYTEPS_SIM_TRACE=1)\n",
               static_cast<double>(now_) / 1e3, what.c_str(), static_cast<unsigned long long>(options_.seed));
  std::abort();
}

}  // namespace byteps::sim
