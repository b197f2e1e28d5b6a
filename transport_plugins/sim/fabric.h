// fabric.h - a simulated network: one thread, a virtual clock, one seed.
//
//     SimFabric fabric({.seed = 7});
//     SimTransport a = fabric.Open("worker0");        // a.table and a.transport: as from any plugin
//     fabric.Timer(5 * kMillisecond, [&] { fabric.Kill("server1"); });
//     while (!done && fabric.Step()) ...              // poll the endpoint that was woken
//
// The subtle parts:
//
// Determinism.  Everything that happens is an event on one heap, ordered by time; ties are broken by the seed. The same
//               seed and the same calls give the same run, and the same Fingerprint().
// Nodes.        A node is a name: endpoints, listeners and streams live on one and die with it (Kill). Links between
//               two nodes can be slowed (SetLink) or cut (Cut, Heal): what is under way on a cut link waits.
// Streams.      Beside the transport endpoints, nodes may talk over ordered, reliable byte streams as over TCP: that is
//               the control plane's way.
// Violations.   The fabric watches over the contract of abi/transport.h from outside (see README.md) and ends the run
//               with a clear sentence when its user breaks it.
// Lifetime.     The fabric outlives every endpoint opened on it (closing them is the user's business) and every
// handler. Threads.      One.
#ifndef BYTEPS_TRANSPORT_PLUGINS_SIM_FABRIC_H_
#define BYTEPS_TRANSPORT_PLUGINS_SIM_FABRIC_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "abi/transport.h"
#include "transport_plugins/sim/options.h"
#include "transport_plugins/sim/random.h"

namespace byteps::sim {

// What a plugin's open() would have given. `table` is valid for ever; transport until table->close(transport).
struct SimTransport {
  const bps_transport_table* table = nullptr;
  bps_transport* transport = nullptr;
};

// One end of a byte stream. Never used again.
using StreamId = uint64_t;

// What happens on streams; runs inside Step and may call any function of the fabric but Step.
class StreamHandler {
 public:
  virtual ~StreamHandler() = default;
  // A listener got a connection from `node`.
  virtual void OnAccept(StreamId stream, const std::string& node) = 0;
  // A Dial succeeded.
  virtual void OnConnected(StreamId stream) = 0;
  virtual void OnBytes(StreamId stream, std::string_view bytes) = 0;
  // The other end closed or died, or a Dial failed; said once, and not after CloseStream. `why` is for people.
  virtual void OnClosed(StreamId stream, const std::string& why) = 0;
};

// How a node dies: its peers notice after FabricOptions::down_delay, or never hear anything again.
enum class Death { kNoticed, kSilent };

struct FabricStats {
  uint64_t steps = 0;
  uint64_t messages = 0;                          // delivered
  uint64_t writes = 0;                            // landed
  uint64_t bytes = 0;                             // of both
  uint64_t again = 0;                             // posts answered with AGAIN
  int64_t mapped = 0;                             // what map_remote and begin_write have given, and was not given back
  uint64_t dropped_messages = 0;                  // of senders the receiver did not know (any more)
  uint64_t dropped_writes = 0;                    // to memory that is not exported any more
  std::map<std::string, uint64_t> registrations;  // made, by node
  std::map<std::string, uint64_t> sent_messages;  // delivered, by the node that sent them
};

class SimFabric {
 public:
  explicit SimFabric(FabricOptions options);
  ~SimFabric();
  SimFabric(const SimFabric&) = delete;
  SimFabric& operator=(const SimFabric&) = delete;

  // -- Time --
  Time now() const;
  // Delivers the next event and moves the clock to it. False: nothing is going to happen any more.
  bool Step();
  // Steps until done() (checked after each event) or nothing is left (false), or the clock would pass `deadline`
  // (false).
  bool RunUntil(const std::function<bool()>& done, Time deadline);
  // Runs `fn` at this time, or now if that has passed.
  void Timer(Time at, std::function<void()> fn);

  // -- Transport endpoints --
  SimTransport Open(const std::string& node);
  SimTransport Open(const std::string& node, const EndpointOptions& options);

  // -- Streams --
  void Listen(const std::string& node, uint16_t port, StreamHandler* handler);
  void StopListening(const std::string& node, uint16_t port);
  // OnConnected or OnClosed follows.
  StreamId Dial(const std::string& node, const std::string& to_node, uint16_t port, StreamHandler* handler);
  // What is written to a stream that is closed is lost.
  void WriteStream(StreamId stream, std::string_view bytes);
  // The other end reads what was written, then sees OnClosed.
  void CloseStream(StreamId stream);

  // -- Trouble --
  // Between these nodes, both ways, for what is sent from now on.
  void SetLink(const std::string& a, const std::string& b, const LinkOptions& link);
  void Cut(const std::string& a, const std::string& b);
  void Heal(const std::string& a, const std::string& b);
  // The node stops: what it had handed to the network still arrives, nothing else. Its endpoints may still be closed.
  void Kill(const std::string& node, Death death = Death::kNoticed);
  bool Alive(const std::string& node) const;
  // Every key this node's endpoints have exported becomes void.
  void InvalidateKeys(const std::string& node);
  // The system does not let this node copy from and to memory of the other one any more (what is mapped stays so).
  void RefuseCopies(const std::string& node, const std::string& of_node);
  // Memory of the other one can be mapped by this node to be read, but not to be written any more.
  void RefuseMappedWrites(const std::string& node, const std::string& of_node);

  // -- For tests --
  Random& random();
  uint64_t seed() const;
  const FabricStats& stats() const;
  // A number that differs, but for bad luck, between runs that were not the same.
  uint64_t Fingerprint() const;
  // Reports a breach of the contract (see FabricOptions::violation).
  void Violation(const std::string& what);

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace byteps::sim

#endif  // BYTEPS_TRANSPORT_PLUGINS_SIM_FABRIC_H_
