#include "tests/transport/station.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <sstream>
#include <string_view>

#include "abi/byteps.h"
#include "gtest/gtest.h"

#ifndef BPS_PEER_UNKNOWN
#define BPS_PEER_UNKNOWN 0xffffffffu
#endif

namespace byteps::testing {

Station::Station(TransportWorld* world, OpenTransport endpoint) : world_(world), endpoint_(endpoint) {
  caps_.struct_size = sizeof caps_;
  table().caps(transport(), &caps_);
  char address[BPS_TRANSPORT_MAX_ADDRESS];
  size_t size = sizeof address;
  EXPECT_EQ(table().address(transport(), address, &size, nullptr), BPS_OK);
  EXPECT_LE(size, sizeof address);
  address_.assign(address, size);
}

Station::~Station() { Close(); }

void Station::Close() {
  if (closed()) return;
  for (const Held& held : held_) Release(held.lease);
  held_.clear();
  for (bps_region* region : regions_) table().unreg(transport(), region);
  regions_.clear();
  table().close(transport());
  endpoint_.transport = nullptr;
}

void Station::Die() {
  for (const Held& held : held_) Release(held.lease);
  held_.clear();
  for (bps_region* region : regions_) table().unreg(transport(), region);
  regions_.clear();
  if (!world_->Die(endpoint_)) table().close(transport());
  endpoint_.transport = nullptr;
}

void Station::Connect(bps_peer peer, uint32_t local_id, const std::string& address) {
  bps_connect_args args{};
  args.struct_size = sizeof args;
  args.peer = peer;
  args.local_id = local_id;
  args.address = address.data();
  args.address_size = address.size();
  EXPECT_EQ(table().connect(transport(), &args, nullptr), BPS_OK);
  connected_.insert(peer);
}

void Station::Disconnect(bps_peer peer) {
  EXPECT_EQ(table().disconnect(transport(), peer), BPS_OK);
  disconnecting_.insert(peer);
}

bps_region* Station::Register(void* base, size_t size) {
  bps_region* region = nullptr;
  EXPECT_EQ(table().reg(transport(), base, size, &region, nullptr), BPS_OK);
  regions_.insert(region);
  return region;
}

void Station::Unregister(bps_region* region) {
  regions_.erase(region);
  table().unreg(transport(), region);
}

Memory& Station::NewMemory(std::vector<std::byte> bytes) {
  Memory& memory = memory_.emplace_back();
  memory.bytes = std::move(bytes);
  memory.region = Register(memory.bytes.data(), memory.bytes.size());
  return memory;
}

std::string Station::Key(bps_region* region, bps_peer peer) {
  std::string key(caps_.key_size, '\0');
  EXPECT_EQ(table().export_key(transport(), region, peer, key.data()), BPS_OK);
  return key;
}

int32_t Station::Note(int32_t code, uint32_t type, bps_peer peer) {
  if (code == BPS_OK) outstanding_[next_user_++] = {type, peer};
  return code;
}

int32_t Station::Send(bps_peer peer, std::string_view data) {
  // Gone as soon as the call returns: the transport has its own copy.
  std::string copy(data);
  const int32_t code = table().post_send(transport(), peer, copy.data(), copy.size(), next_user_);
  std::fill(copy.begin(), copy.end(), '#');
  return Note(code, BPS_EVENT_SENT, peer);
}

int32_t Station::Write(bps_peer peer, bps_region* region, const void* base, size_t size, const std::string& key,
                       uint64_t offset, uint32_t immediate) {
  const bps_local from{region, const_cast<void*>(base)};
  const bps_remote to{key.data(), key.size(), offset};
  return Note(table().post_write(transport(), peer, &from, size, &to, immediate, next_user_), BPS_EVENT_WRITTEN, peer);
}

int32_t Station::SendAndWrite(bps_peer peer, std::string_view data, bps_region* region, const void* base, size_t size,
                              const std::string& key, uint64_t offset, uint32_t immediate) {
  if (table().post_send_and_write == nullptr) return BPS_UNIMPLEMENTED;
  std::string copy(data);
  const bps_local from{region, const_cast<void*>(base)};
  const bps_remote to{key.data(), key.size(), offset};
  const int32_t code =
      table().post_send_and_write(transport(), peer, copy.data(), copy.size(), &from, size, &to, immediate, next_user_);
  std::fill(copy.begin(), copy.end(), '#');
  return Note(code, BPS_EVENT_WRITTEN, peer);
}

int32_t Station::Read(bps_peer peer, bps_region* region, void* base, size_t size, const std::string& key,
                      uint64_t offset) {
  const bps_local to{region, base};
  const bps_remote from{key.data(), key.size(), offset};
  return Note(table().post_read(transport(), peer, &to, size, &from, next_user_), BPS_EVENT_READ, peer);
}

size_t Station::Poll(size_t capacity) {
  if (closed()) return 0;
  std::vector<bps_event> events(capacity + 1);
  // One beyond the end must stay as it is.
  std::memset(&events[capacity], 0x5a, sizeof(bps_event));
  const bps_event sentinel = events[capacity];
  const size_t n = table().poll(transport(), events.data(), capacity);
  EXPECT_LE(n, capacity);
  EXPECT_EQ(std::memcmp(&events[capacity], &sentinel, sizeof sentinel), 0) << "poll wrote more than its capacity";
  for (size_t i = 0; i < n; ++i) Audit(events[i]);
  return n;
}

bool Station::Ended(uint64_t user, int32_t* code) const {
  auto it = ended_.find(user);
  if (it == ended_.end()) return false;
  if (code != nullptr) *code = it->second;
  return true;
}

std::string Station::Describe() const {
  if (closed()) return "closed";
  std::ostringstream text;
  text << outstanding() << " under way, " << immediates_.size() << " immediates";
  for (const bps_peer peer : connected_) {
    auto down = down_.find(peer);
    auto messages = messages_.find(peer);
    text << "; peer " << peer << ": ";
    if (disconnected(peer)) {
      text << "disconnected";
      continue;
    }
    if (down != down_.end()) text << "down (" << down->second << "), ";
    text << outstanding(peer) << " under way, " << (messages == messages_.end() ? 0 : messages->second.size())
         << " messages";
  }
  return text.str();
}

size_t Station::outstanding(bps_peer peer) const {
  return static_cast<size_t>(std::count_if(outstanding_.begin(), outstanding_.end(),
                                           [&](const auto& entry) { return entry.second.peer == peer; }));
}

void Station::Audit(const bps_event& event) {
  switch (event.type) {
    case BPS_EVENT_SENT:
    case BPS_EVENT_WRITTEN:
    case BPS_EVENT_READ: {
      auto posted = outstanding_.find(event.user);
      if (posted == outstanding_.end()) {
        ADD_FAILURE() << "event " << event.type << " for operation " << event.user
                      << (ended_.count(event.user) != 0 ? ", which has ended already" : ", which was never accepted");
        return;
      }
      EXPECT_EQ(event.type, posted->second.type);
      if (disconnecting_.count(posted->second.peer) != 0 && down_.count(posted->second.peer) == 0) {
        EXPECT_TRUE(event.code == BPS_OK || event.code == BPS_CANCELLED)
            << "operation " << event.user << ", given up by disconnect, ends with " << event.code;
      }
      if (event.code != BPS_OK) failed_[posted->second.peer].insert(event.code);
      ended_[event.user] = event.code;
      outstanding_.erase(posted);
      return;
    }
    case BPS_EVENT_MESSAGE:
      EXPECT_TRUE(connected_.count(event.peer) != 0) << "message of unknown peer " << event.peer;
      EXPECT_FALSE(disconnected(event.peer)) << "message of disconnected peer " << event.peer;
      messages_[event.peer].emplace_back(static_cast<const char*>(event.data), event.size);
      if (hold_) {
        held_.push_back({event.peer, event.lease, static_cast<const char*>(event.data), event.size});
      } else {
        Release(event.lease);
      }
      return;
    case BPS_EVENT_IMMEDIATE:
      if (event.peer != BPS_PEER_UNKNOWN) {
        EXPECT_TRUE(connected_.count(event.peer) != 0) << "immediate of unknown peer " << event.peer;
        EXPECT_FALSE(disconnected(event.peer)) << "immediate of disconnected peer " << event.peer;
      }
      immediates_.push_back(event.immediate);
      if (on_immediate) on_immediate(event.immediate);
      return;
    case BPS_EVENT_PEER_DOWN:
      EXPECT_TRUE(connected_.count(event.peer) != 0) << "PEER_DOWN of unknown peer " << event.peer;
      EXPECT_NE(event.code, BPS_OK);
      EXPECT_TRUE(event.size != 0 || !world_->SaysWhy()) << "PEER_DOWN of peer " << event.peer << " does not say why";
      for (const int32_t code : failed_[event.peer]) {
        EXPECT_TRUE(code == BPS_UNAVAILABLE || code == BPS_CANCELLED)
            << "an operation of peer " << event.peer << ", which is lost, ended with " << code;
      }
      if (world_->MaySayWhy() && event.size != 0) {
        const std::string_view why(static_cast<const char*>(event.data), event.size);
        EXPECT_TRUE(std::all_of(why.begin(), why.end(), [](char c) { return c != 0; })) << "no text: " << why;
      }
      EXPECT_TRUE(down_.emplace(event.peer, event.code).second) << "PEER_DOWN of peer " << event.peer << " twice";
      EXPECT_FALSE(disconnected(event.peer)) << "PEER_DOWN of disconnected peer " << event.peer;
      EXPECT_EQ(outstanding(event.peer), 0u) << "PEER_DOWN before the end of the peer's operations";
      return;
    case BPS_EVENT_DISCONNECTED:
      EXPECT_TRUE(disconnecting_.count(event.peer) != 0) << "DISCONNECTED of peer " << event.peer << " unasked";
      EXPECT_TRUE(disconnected_.insert(event.peer).second) << "DISCONNECTED of peer " << event.peer << " twice";
      EXPECT_EQ(outstanding(event.peer), 0u) << "DISCONNECTED before the end of the peer's operations";
      return;
    default:
      ADD_FAILURE() << "unknown event " << event.type;
  }
}

}  // namespace byteps::testing
