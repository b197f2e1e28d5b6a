#include "tests/transport/plugin_world.h"

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <deque>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "abi/byteps.h"

namespace byteps::testing {
namespace {

// The text behind a bps_failure of this host.
struct Failure {
  std::string reason;
  bps_failure* handle() { return reinterpret_cast<bps_failure*>(this); }
};

// The last lines that endpoints have logged. Threads: any.
class Journal {
 public:
  void Add(std::string line) {
    std::lock_guard lock(mutex_);
    lines_.push_back(std::move(line));
    if (lines_.size() > kMost) lines_.pop_front();
  }
  std::string Text() const {
    std::lock_guard lock(mutex_);
    std::string text;
    for (const std::string& line : lines_) text += line + "\n";
    return text;
  }

 private:
  static constexpr size_t kMost = 60;
  mutable std::mutex mutex_;
  std::deque<std::string> lines_;
};

void Log(void* journal, int32_t level, const char* file, int32_t line, const char* message) {
  if (level >= BPS_LOG_WARNING) std::fprintf(stderr, "%s:%d: %s\n", file, line, message);
  if (journal != nullptr) static_cast<Journal*>(journal)->Add(message);
}

int32_t Fail(bps_failure* failure, int32_t code, const char* reason) {
  if (failure != nullptr) reinterpret_cast<Failure*>(failure)->reason = reason;
  return code;
}

const char* Config(const void* config, const char* name) {
  if (config == nullptr) return nullptr;
  const auto& values = *static_cast<const std::map<std::string, std::string>*>(config);
  auto value = values.find(name);
  return value == values.end() ? nullptr : value->second.c_str();
}

constexpr bps_plugin_host kHost = {sizeof(bps_plugin_host), Log, Fail, Config};

class PluginWorld : public TransportWorld {
 public:
  PluginWorld(bps_transport_plugin_fn entry, std::map<std::string, std::string> config, std::string local_host,
              bool says_why)
      : config_(std::move(config)), local_host_(std::move(local_host)), says_why_(says_why) {
    Failure failure;
    if (entry(&kHost, &plugin_) != BPS_OK) throw std::runtime_error("the plugin's entry function failed");
    if (plugin_->probe(&config_, failure.handle()) != BPS_OK) throw std::runtime_error("probe: " + failure.reason);
    // A plugin of an earlier minor has a shorter table: what is behind its end is not there.
    std::memcpy(&table_, plugin_->table, std::min(plugin_->table->struct_size, sizeof table_));
    table_.struct_size = sizeof table_;
  }

  OpenTransport Open() override {
    bps_transport_open_args args{};
    args.struct_size = sizeof args;
    args.config = &config_;
    args.log = &journal_;
    args.local_host = local_host_.c_str();
    args.job_key = 42;
    Failure failure;
    OpenTransport opened{&table_, nullptr};
    if (table_.open(&args, &opened.transport, failure.handle()) != BPS_OK) {
      throw std::runtime_error("open: " + failure.reason);
    }
    return opened;
  }

  int64_t Now() override {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
  }

  // Every endpoint is polled between two calls, so giving the CPU away is enough for what other threads may have to do.
  void Pass() override { sched_yield(); }

  bool Die(const OpenTransport& endpoint) override {
    endpoint.table->close(endpoint.transport);
    return true;
  }

  bool RealTime() const override { return true; }

  bool SaysWhy() const override { return says_why_ && MaySayWhy(); }
  bool MaySayWhy() const override { return plugin_->info.abi_minor >= 1; }

  std::string RecentLog() const override { return journal_.Text(); }

 private:
  const std::map<std::string, std::string> config_;
  const std::string local_host_;
  const bool says_why_;
  const bps_transport_plugin* plugin_ = nullptr;
  bps_transport_table table_{};
  Journal journal_;
};

}  // namespace

std::unique_ptr<TransportWorld> MakePluginWorld(bps_transport_plugin_fn entry,
                                                std::map<std::string, std::string> config,
                                                const std::string& local_host, bool says_why) {
  return std::make_unique<PluginWorld>(entry, std::move(config), local_host, says_why);
}

}  // namespace byteps::testing
