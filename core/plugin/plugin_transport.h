// plugin_transport.h - one endpoint of a transport plugin, driven through its table of C functions.
//
//     absl::StatusOr<std::unique_ptr<PluginTransport>> transport = PluginTransport::Open(plugin, args);
//     PluginTransport simulated(table, handle);        // an endpoint that was opened elsewhere
//
// A plugin is held to its contract (transport_audit.h): one that breaks it, or throws, is named in the cause with which
// all its peers go down. An endpoint that was opened elsewhere is not. `calls`, which outlives the endpoint, tells
// which function of the plugin runs.
#ifndef BYTEPS_CORE_PLUGIN_PLUGIN_TRANSPORT_H_
#define BYTEPS_CORE_PLUGIN_PLUGIN_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "abi/transport.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/plugin/plugin_calls.h"
#include "core/plugin/transport_audit.h"
#include "core/plugin/transport_verbs.h"

namespace byteps {

class PluginTransport final : public TransportVerbs {
  // A call of the plugin, which may last for ever.
  template <typename Call>
  auto Watched(const char* verb, const Call& call) {
    const PluginCalls::Scope scope(calls_, title_.c_str(), verb);
    return call();
  }

 public:
  static absl::StatusOr<std::unique_ptr<PluginTransport>> Open(const bps_transport_plugin& plugin,
                                                               const bps_transport_open_args& args,
                                                               PluginCalls* calls = nullptr);
  // Takes over `handle`, which `table` drives. `table` must outlive it.
  PluginTransport(const bps_transport_table* table, bps_transport* handle);
  ~PluginTransport() override {
    Watched("close", [&] { handle_.reset(); });
  }

  const bps_transport_caps& caps() const override { return caps_; }
  bool shares() const override { return shares_; }

  absl::StatusOr<std::string> Address() override;
  absl::Status Connect(const bps_connect_args& args) override;
  int32_t Disconnect(bps_peer peer) override;

  absl::Status Reg(void* base, size_t size, bps_region** region) override;
  absl::Status Allocate(size_t size, bps_region** region, void** base) override;
  absl::Status RegDevice(const bps_device_memory& memory, bps_region** region) override;
  absl::Status RegShared(void* base, size_t size, int fd, bps_region** region) override;
  void Unreg(bps_region* region) override {
    Watched("unreg", [&] { table_->unreg(handle(), region); });
  }
  int32_t ExportKey(bps_region* region, bps_peer peer, void* key) override {
    return Guarded("export_key", [&] { return table_->export_key(handle(), region, peer, key); });
  }

  int32_t PostSend(bps_peer peer, const void* data, size_t size, uint64_t user) override {
    return Post(BPS_EVENT_SENT, "post_send", user, [&] { return table_->post_send(handle(), peer, data, size, user); });
  }
  int32_t PostWrite(bps_peer peer, const bps_local& from, size_t size, const bps_remote& to, uint32_t immediate,
                    uint64_t user) override {
    return Post(BPS_EVENT_WRITTEN, "post_write", user,
                [&] { return table_->post_write(handle(), peer, &from, size, &to, immediate, user); });
  }
  int32_t PostSendAndWrite(bps_peer peer, std::span<const std::byte> message, const bps_local& from, size_t size,
                           const bps_remote& to, uint32_t immediate, uint64_t user) override {
    if (!sends_and_writes_) return BPS_UNIMPLEMENTED;
    return Post(BPS_EVENT_WRITTEN, "post_send_and_write", user, [&] {
      return table_->post_send_and_write(handle(), peer, message.data(), message.size(), &from, size, &to, immediate,
                                         user);
    });
  }
  int32_t PostRead(bps_peer peer, const bps_local& to, size_t size, const bps_remote& from, uint64_t user) override {
    return Post(BPS_EVENT_READ, "post_read", user,
                [&] { return table_->post_read(handle(), peer, &to, size, &from, user); });
  }

  int32_t MapRemote(bps_peer peer, const bps_remote& remote, size_t size, void** base) override {
    return Guarded("map_remote", [&] { return table_->map_remote(handle(), peer, &remote, size, base); });
  }
  void UnmapRemote(bps_peer peer, const bps_remote& remote) override {
    if (unmaps_) Watched("unmap_remote", [&] { table_->unmap_remote(handle(), peer, &remote); });
  }
  int32_t BeginWrite(bps_peer peer, const bps_remote& remote, size_t size, void** base) override {
    if (!writes_) return BPS_UNIMPLEMENTED;
    return Guarded("begin_write", [&] { return table_->begin_write(handle(), peer, &remote, size, base); });
  }
  void EndWrite(bps_peer peer, const bps_remote& remote) override {
    Watched("end_write", [&] { table_->end_write(handle(), peer, &remote); });
  }
  int32_t CopyFrom(bps_peer peer, const bps_remote& from, void* to, size_t size) override {
    return Guarded("copy_from", [&] { return table_->copy_from(handle(), peer, &from, to, size); });
  }
  int32_t CopyTo(bps_peer peer, const bps_remote& to, const void* from, size_t size) override {
    return Guarded("copy_to", [&] { return table_->copy_to(handle(), peer, &to, from, size); });
  }

  size_t Poll(bps_event* events, size_t capacity) override;
  void Release(uint64_t lease) override {
    Watched("release", [&] { table_->release(handle(), lease); });
  }
  int WaitFd() override {
    return Watched("wait_fd", [&] { return table_->wait_fd(handle()); });
  }
  bool Arm() override {
    return Watched("arm", [&] { return table_->arm(handle()) == BPS_OK; });
  }

 private:
  struct Closer {
    const bps_transport_table* table;
    void operator()(bps_transport* transport) const { table->close(transport); }
  };

  // The same; a broken one is not called any more, and one that throws is broken.
  template <typename Call>
  int32_t Guarded(const char* verb, const Call& call) {
    if (audit_ == nullptr) return call();
    if (audit_->broken()) return BPS_UNAVAILABLE;
    try {
      return Watched(verb, call);
    } catch (...) {
      Thrown(verb);
    }
    return BPS_UNAVAILABLE;
  }
  template <typename Call>
  int32_t Post(uint32_t type, const char* verb, uint64_t user, const Call& call) {
    const int32_t code = Guarded(verb, call);
    if (code == BPS_OK && audit_ != nullptr) audit_->OnPosted(type, user);
    return code;
  }
  // Inside a handler: breaks the audit.
  void Thrown(const char* verb);
  // The region that the plugin has answered with success; there must be one.
  absl::Status Registered(const char* verb, const bps_region* region);
  static absl::Status CheckCaps(const std::string& subject, const bps_transport_caps& caps);
  bps_transport* handle() const { return handle_.get(); }

  PluginCalls* calls_ = nullptr;
  const bps_transport_table* table_;
  std::unique_ptr<bps_transport, Closer> handle_;
  bps_transport_caps caps_{};
  bool shares_ = false;  // functions that a plugin may lack
  bool unmaps_ = false;
  bool writes_ = false;
  bool sends_and_writes_ = false;
  bool says_why_ = true;                   // with PEER_DOWN
  std::string title_;                      // "transport "x"": of a plugin that was opened here
  std::unique_ptr<TransportAudit> audit_;  // likewise
};

}  // namespace byteps

#endif  // BYTEPS_CORE_PLUGIN_PLUGIN_TRANSPORT_H_
