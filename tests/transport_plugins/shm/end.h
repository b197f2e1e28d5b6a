// end.h - one endpoint of shm with a host of its own, for tests whose endpoints are in processes of their own.
//
//     End end({{"BYTEPS_LAUNCHER_PID", "42"}});
//     end.Connect(address_of_the_other);
//     end.Until([&] { return !end.messages.empty(); });       // polls; false after kPatience
//     end.log()                                              // what it has said
#ifndef BYTEPS_TESTS_TRANSPORT_PLUGINS_SHM_END_H_
#define BYTEPS_TESTS_TRANSPORT_PLUGINS_SHM_END_H_

#include <sched.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "abi/transport.h"

extern "C" int32_t bps_transport_plugin_v1_shm(const bps_plugin_host* host, const bps_transport_plugin** plugin);

namespace byteps::testing {

using Clock = std::chrono::steady_clock;
inline constexpr auto kPatience = std::chrono::seconds(60);
inline constexpr bps_peer kOther = 1;  // each end calls the other so

// One endpoint with a host of its own.
class End {
 public:
  explicit End(std::map<std::string, std::string> config = {}) : config_(std::move(config)) {
    static constexpr bps_plugin_host kHost = {sizeof(bps_plugin_host), Log, Fail, Config};
    const bps_transport_plugin* plugin = nullptr;
    if (bps_transport_plugin_v1_shm(&kHost, &plugin) != BPS_OK) std::abort();
    table_ = plugin->table;
    bps_transport_open_args args{};
    args.struct_size = sizeof args;
    args.config = args.log = this;
    if (table_->open(&args, &transport_, Handle()) != BPS_OK) throw std::runtime_error(failure_);
    address_.resize(BPS_TRANSPORT_MAX_ADDRESS);
    size_t size = address_.size();
    table_->address(transport_, address_.data(), &size, nullptr);
    address_.resize(size);
    caps_.struct_size = sizeof caps_;
    table_->caps(transport_, &caps_);
  }
  ~End() { table_->close(transport_); }
  End(const End&) = delete;
  End& operator=(const End&) = delete;

  const bps_transport_table& table() const { return *table_; }
  bps_transport* transport() { return transport_; }
  const std::string& address() const { return address_; }
  const std::string& failure() const { return failure_; }
  const std::string& log() const { return log_; }

  // `called`: what the other calls us.
  int32_t Connect(const std::string& address, bps_peer peer = kOther, bps_peer called = kOther) {
    const bps_connect_args args{sizeof args, peer, called, address.data(), address.size(), nullptr};
    return table_->connect(transport_, &args, Handle());
  }
  bps_region* Reg(void* base, size_t size) {
    bps_region* region = nullptr;
    if (table_->reg(transport_, base, size, &region, Handle()) != BPS_OK) throw std::runtime_error(failure_);
    return region;
  }
  size_t key_size() const { return caps_.key_size; }
  std::string Key(bps_region* region, bps_peer peer = kOther) {
    std::string key(caps_.key_size, '\0');
    if (table_->export_key(transport_, region, peer, key.data()) != BPS_OK) throw std::runtime_error("export_key");
    return key;
  }
  int32_t Send(const std::string& text, bps_peer peer = kOther) {
    return table_->post_send(transport_, peer, text.data(), text.size(), 0);
  }
  int32_t Write(const void* from, size_t size, const std::string& key, uint32_t immediate, bps_peer peer = kOther) {
    const bps_local local{nullptr, const_cast<void*>(from)};
    const bps_remote remote{key.data(), key.size(), 0};
    return table_->post_write(transport_, peer, &local, size, &remote, immediate, 0);
  }

  size_t Poll() {
    bps_event events[16];
    const size_t count = table_->poll(transport_, events, 16);
    for (size_t i = 0; i < count; ++i) {
      ++heard[events[i].type];
      last = events[i];
      if (last.type == BPS_EVENT_PEER_DOWN) {
        down = last.code;
        why.assign(static_cast<const char*>(last.data), last.size);
      }
      if (events[i].type != BPS_EVENT_MESSAGE) continue;
      messages.emplace_back(static_cast<const char*>(events[i].data), events[i].size);
      table_->release(transport_, events[i].lease);
    }
    return count;
  }
  bool Until(const std::function<bool()>& done, Clock::duration patience = kPatience) {
    const auto end = Clock::now() + patience;
    while (!done()) {
      if (Clock::now() > end) return false;
      if (Poll() == 0) sched_yield();
    }
    return true;
  }

  std::map<uint32_t, size_t> heard;
  bps_event last{};
  int32_t down = BPS_OK;  // of PEER_DOWN
  std::string why;        // the same
  std::vector<std::string> messages;

 private:
  bps_failure* Handle() { return reinterpret_cast<bps_failure*>(&failure_); }
  static void Log(void* log, int32_t level, const char*, int32_t, const char* message) {
    if (log == nullptr) return;
    std::string& lines = static_cast<End*>(log)->log_;
    lines += level == BPS_LOG_INFO ? "INFO: " : "level " + std::to_string(level) + ": ";
    lines += std::string(message) + "\n";
  }
  static int32_t Fail(bps_failure* failure, int32_t code, const char* reason) {
    if (failure != nullptr) *reinterpret_cast<std::string*>(failure) = reason;
    return code;
  }
  static const char* Config(const void* config, const char* name) {
    if (config == nullptr) return nullptr;
    const auto& values = static_cast<const End*>(config)->config_;
    const auto value = values.find(name);
    return value == values.end() ? nullptr : value->second.c_str();
  }

  const std::map<std::string, std::string> config_;
  std::string address_, failure_, log_;
  const bps_transport_table* table_ = nullptr;
  bps_transport* transport_ = nullptr;
  bps_transport_caps caps_{};
};

}  // namespace byteps::testing

#endif  // BYTEPS_TESTS_TRANSPORT_PLUGINS_SHM_END_H_
