#include "transport_plugins/sim/fabric.h"

#include <utility>

#include "transport_plugins/sim/endpoint.h"
#include "transport_plugins/sim/stream.h"
#include "transport_plugins/sim/world.h"

namespace byteps::sim {

struct SimFabric::Impl {
  explicit Impl(FabricOptions options) : world(std::move(options)) {}
  World world;
  EndpointMap endpoints{&world};
  StreamMap streams{&world};
};

SimFabric::SimFabric(FabricOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}
SimFabric::~SimFabric() = default;

Time SimFabric::now() const { return impl_->world.now(); }
bool SimFabric::Step() { return impl_->world.Step(); }

bool SimFabric::RunUntil(const std::function<bool()>& done, Time deadline) {
  while (!done()) {
    Time next = 0;
    if (!impl_->world.Next(&next) || next > deadline) return false;
    Step();
  }
  return true;
}

void SimFabric::Timer(Time at, std::function<void()> fn) { impl_->world.At(at, "timer", std::move(fn)); }

SimTransport SimFabric::Open(const std::string& node) { return Open(node, impl_->world.options().endpoint); }

SimTransport SimFabric::Open(const std::string& node, const EndpointOptions& options) {
  return {EndpointTable(), ToHandle(impl_->endpoints.Open(node, options))};
}

void SimFabric::Listen(const std::string& node, uint16_t port, StreamHandler* handler) {
  impl_->streams.Listen(node, port, handler);
}

void SimFabric::StopListening(const std::string& node, uint16_t port) { impl_->streams.StopListening(node, port); }

StreamId SimFabric::Dial(const std::string& node, const std::string& to_node, uint16_t port, StreamHandler* handler) {
  return impl_->streams.Dial(node, to_node, port, handler);
}

void SimFabric::WriteStream(StreamId stream, std::string_view bytes) { impl_->streams.Write(stream, bytes); }

void SimFabric::CloseStream(StreamId stream) { impl_->streams.Close(stream); }

void SimFabric::SetLink(const std::string& a, const std::string& b, const LinkOptions& link) {
  impl_->world.SetLink(a, b, link);
}

void SimFabric::Cut(const std::string& a, const std::string& b) { impl_->world.Cut(a, b); }
void SimFabric::Heal(const std::string& a, const std::string& b) { impl_->world.Heal(a, b); }

void SimFabric::Kill(const std::string& node, Death death) {
  if (!Alive(node)) return;
  impl_->world.Kill(node, death);
  impl_->endpoints.NodeDied(node, death);
  impl_->streams.NodeDied(node, death);
}

bool SimFabric::Alive(const std::string& node) const { return !impl_->world.Dead(node); }
void SimFabric::InvalidateKeys(const std::string& node) { impl_->endpoints.InvalidateKeys(node); }
void SimFabric::RefuseCopies(const std::string& node, const std::string& of_node) {
  impl_->endpoints.RefuseCopies(node, of_node);
}

void SimFabric::RefuseMappedWrites(const std::string& node, const std::string& of_node) {
  impl_->endpoints.RefuseMappedWrites(node, of_node);
}

Random& SimFabric::random() { return impl_->world.random(); }
uint64_t SimFabric::seed() const { return impl_->world.options().seed; }
const FabricStats& SimFabric::stats() const { return impl_->world.stats(); }
uint64_t SimFabric::Fingerprint() const { return impl_->world.fingerprint(); }
void SimFabric::Violation(const std::string& what) { impl_->world.Violation(what); }

}  // namespace byteps::sim
