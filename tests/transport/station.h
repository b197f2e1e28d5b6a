// station.h - one endpoint under test, with an audit of everything it says.
//
//     Station a(world, world->Open());
//     a.Connect(7, 3, b.address());
//     if (a.Send(7, "hello") == BPS_OK) ...
//     a.Poll();                           // events are kept, and held against the contract
//     a.messages(7)                       // what peer 7 has sent so far
//
// The audit fails the test when an event answers no accepted post or answers it twice, when PEER_DOWN or DISCONNECTED
// comes twice, too early (operations of that peer are still out) or for nothing, and when a disconnected peer is heard.
#ifndef BYTEPS_TESTS_TRANSPORT_STATION_H_
#define BYTEPS_TESTS_TRANSPORT_STATION_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "abi/transport.h"
#include "tests/transport/transport_world.h"

namespace byteps::testing {

// Memory of a test and its registration.
struct Memory {
  std::vector<std::byte> bytes;
  bps_region* region = nullptr;
  std::byte* at(size_t offset) { return bytes.data() + offset; }
};

class Station {
 public:
  Station(TransportWorld* world, OpenTransport endpoint);
  // Gives leases and regions back and closes.
  ~Station();
  Station(const Station&) = delete;
  Station& operator=(const Station&) = delete;

  const bps_transport_caps& caps() const { return caps_; }
  bool has(uint32_t flag) const { return (caps_.flags & flag) != 0; }
  const bps_transport_table& table() const { return *endpoint_.table; }
  bps_transport* transport() const { return endpoint_.transport; }
  const std::string& address() const { return address_; }
  bool closed() const { return endpoint_.transport == nullptr; }

  // A number no peer had here.
  bps_peer NewPeer() { return next_peer_++; }
  void Connect(bps_peer peer, uint32_t local_id, const std::string& address);
  void Disconnect(bps_peer peer);
  // Ends as after a crash; nothing but the destructor may be called any more.
  void Die();
  // Closes with whatever is under way.
  void Close();

  bps_region* Register(void* base, size_t size);
  void Unregister(bps_region* region);
  // Memory that lives as long as the station, registered until Unregister.
  Memory& NewMemory(std::vector<std::byte> bytes);
  Memory& NewMemory(size_t size, std::byte value = std::byte{0}) {
    return NewMemory(std::vector<std::byte>(size, value));
  }
  std::string Key(bps_region* region, bps_peer peer);

  // Posts; the answer is the transport's. `user` is chosen here and noted when accepted (last_user()).
  int32_t Send(bps_peer peer, std::string_view data);
  int32_t Write(bps_peer peer, bps_region* region, const void* base, size_t size, const std::string& key,
                uint64_t offset, uint32_t immediate);
  // UNIMPLEMENTED also where the transport has no such function.
  int32_t SendAndWrite(bps_peer peer, std::string_view data, bps_region* region, const void* base, size_t size,
                       const std::string& key, uint64_t offset, uint32_t immediate);
  int32_t Read(bps_peer peer, bps_region* region, void* base, size_t size, const std::string& key, uint64_t offset);
  uint64_t last_user() const { return next_user_ - 1; }

  // Fetches what there is (up to `capacity` events). Returns how many.
  size_t Poll(size_t capacity = 16);

  // What has happened so far.
  const std::vector<std::string>& messages(bps_peer peer) { return messages_[peer]; }
  const std::vector<uint32_t>& immediates() const { return immediates_; }
  // The code an operation ended with; false while it is out.
  bool Ended(uint64_t user, int32_t* code = nullptr) const;
  size_t outstanding() const { return outstanding_.size(); }
  size_t outstanding(bps_peer peer) const;
  size_t completed() const { return ended_.size(); }
  bool down(bps_peer peer) const { return down_.count(peer) != 0; }
  // Where each peer stands, and what is under way: for the message of a wait that was in vain.
  std::string Describe() const;
  bool disconnected(bps_peer peer) const { return disconnected_.count(peer) != 0; }

  // While set, messages keep their buffers: see held().
  void Hold(bool hold) { hold_ = hold; }
  struct Held {
    bps_peer peer;
    uint64_t lease;
    const char* data;
    size_t size;
  };
  std::vector<Held>& held() { return held_; }
  void Release(uint64_t lease) { table().release(transport(), lease); }

  // Runs at each IMMEDIATE, inside Poll.
  std::function<void(uint32_t immediate)> on_immediate;

 private:
  struct Posted {
    uint32_t type;
    bps_peer peer;
  };
  int32_t Note(int32_t code, uint32_t type, bps_peer peer);
  void Audit(const bps_event& event);

  TransportWorld* const world_;
  OpenTransport endpoint_;
  bps_transport_caps caps_{};
  std::string address_;
  bps_peer next_peer_ = 1;
  uint64_t next_user_ = 1000;
  bool hold_ = false;
  std::map<uint64_t, Posted> outstanding_;
  std::map<uint64_t, int32_t> ended_;
  std::map<bps_peer, std::set<int32_t>> failed_;  // the codes of operations that failed
  std::map<bps_peer, std::vector<std::string>> messages_;
  std::vector<uint32_t> immediates_;
  std::vector<Held> held_;
  std::set<bps_peer> connected_, disconnecting_, disconnected_;
  std::map<bps_peer, int32_t> down_;  // and the code
  std::set<bps_region*> regions_;
  std::deque<Memory> memory_;
};

}  // namespace byteps::testing

#endif  // BYTEPS_TESTS_TRANSPORT_STATION_H_
