// A real transport with one fault: the plugin at FAULTY_OF, with what FAULTY_FAULT names, in the worker with the local
// rank FAULTY_RANK, or in servers where that is not set. Everywhere else it behaves.
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "abi/transport.h"

namespace {

const bps_plugin_host* library = nullptr;
bps_transport_table real{};   // of the plugin that does the work
bps_transport_table table{};  // with the fault
bps_transport_plugin plugin{};

// So many of what goes wrong are right before: a job is under way by then.
constexpr int kRightBefore = 200;
std::atomic<int> events_seen{0};
std::atomic<int> posts{0};

bool Here() {
  const char* role = std::getenv("DMLC_ROLE");
  const char* rank = std::getenv("FAULTY_RANK");
  const char* own = std::getenv("BYTEPS_LOCAL_RANK");
  if (rank == nullptr) return role != nullptr && std::string_view(role) == "server";
  return own != nullptr && std::string_view(own) == rank;
}

[[noreturn]] void Spin() {
  for (std::atomic<uint64_t> turns{0};; ++turns) {
  }
}

bool Due(size_t count) { return events_seen.fetch_add(static_cast<int>(count)) >= kRightBefore; }

// Polls, and says as what the last event is to be shown once the job is under way.
template <typename Change>
size_t Changed(bps_transport* transport, bps_event* events, size_t capacity, const Change& change) {
  const size_t count = real.poll(transport, events, capacity);
  if (!Due(count)) return count;
  return change(count);
}

size_t UnknownEvent(bps_transport* transport, bps_event* events, size_t capacity) {
  return Changed(transport, events, capacity, [&](size_t count) {
    if (count == capacity) return count;
    events[count] = {};
    events[count].type = 77;
    return count + 1;
  });
}

size_t TooMany(bps_transport* transport, bps_event* events, size_t capacity) {
  return Changed(transport, events, capacity, [&](size_t) { return capacity + 1000; });
}

bool Ends(const bps_event& event) { return event.type == BPS_EVENT_SENT || event.type == BPS_EVENT_WRITTEN; }

size_t Duplicate(bps_transport* transport, bps_event* events, size_t capacity) {
  return Changed(transport, events, capacity, [&](size_t count) {
    if (count == 0 || count == capacity || !Ends(events[count - 1])) return count;
    events[count] = events[count - 1];
    return count + 1;
  });
}

size_t WrongUser(bps_transport* transport, bps_event* events, size_t capacity) {
  return Changed(transport, events, capacity, [&](size_t count) {
    for (size_t i = 0; i < count; ++i) {
      if (Ends(events[i])) events[i].user ^= uint64_t{1} << 63;
    }
    return count;
  });
}

size_t StuckPoll(bps_transport* transport, bps_event* events, size_t capacity) {
  return Changed(transport, events, capacity, [](size_t) -> size_t { Spin(); });
}

int32_t FailingSend(bps_transport* transport, bps_peer peer, const void* data, size_t size, uint64_t user) {
  if (posts.fetch_add(1) < kRightBefore) return real.post_send(transport, peer, data, size, user);
  return library->fail(nullptr, BPS_RESOURCE_EXHAUSTED, "the card has no queue pairs left");
}

int32_t StuckSend(bps_transport* transport, bps_peer peer, const void* data, size_t size, uint64_t user) {
  if (posts.fetch_add(1) < kRightBefore) return real.post_send(transport, peer, data, size, user);
  Spin();
}

void FewBits(bps_transport* transport, bps_transport_caps* caps) {
  real.caps(transport, caps);
  caps->immediate_bits = 8;
}

int32_t NoRegion(bps_transport*, void*, size_t, bps_region** region, bps_failure*) {
  *region = nullptr;
  return BPS_OK;
}

int32_t NoMemory(bps_transport*, size_t, bps_region** region, void**, bps_failure*) {
  *region = nullptr;
  return BPS_OK;
}

struct Fault {
  const char* name;
  void (*put)();
};

constexpr Fault kFaults[] = {
    {"unknown_event", [] { table.poll = UnknownEvent; }},
    {"too_many", [] { table.poll = TooMany; }},
    {"duplicate", [] { table.poll = Duplicate; }},
    {"wrong_user", [] { table.poll = WrongUser; }},
    {"stuck_poll", [] { table.poll = StuckPoll; }},
    {"failing_send",
     [] {
       table.post_send = FailingSend;
       table.post_send_and_write = nullptr;
     }},
    {"stuck_send",
     [] {
       table.post_send = StuckSend;
       table.post_send_and_write = nullptr;
     }},
    {"few_bits", [] { table.caps = FewBits; }},
    {"no_region",
     [] {
       table.reg = NoRegion;
       table.allocate = NoMemory;
     }},
};

}  // namespace

extern "C" BPS_PLUGIN_EXPORT int32_t bps_transport_plugin_v1(const bps_plugin_host* host,
                                                             const bps_transport_plugin** out) {
  library = host;
  const char* of = std::getenv("FAULTY_OF");
  void* file = of == nullptr ? nullptr : dlopen(of, RTLD_NOW | RTLD_LOCAL);
  if (file == nullptr) return host->fail(nullptr, BPS_NOT_FOUND, "FAULTY_OF names no plugin");
  const auto entry = reinterpret_cast<decltype(&bps_transport_plugin_v1)>(dlsym(file, BPS_TRANSPORT_ENTRY));
  const bps_transport_plugin* of_plugin = nullptr;
  if (entry == nullptr || entry(host, &of_plugin) != BPS_OK) return BPS_NOT_FOUND;
  std::memcpy(&real, of_plugin->table, of_plugin->table->struct_size);
  table = real;
  plugin = *of_plugin;
  plugin.info.name = "faulty";
  plugin.table = &table;
  const char* wanted = std::getenv("FAULTY_FAULT");
  if (wanted != nullptr && Here()) {
    for (const Fault& fault : kFaults) {
      if (std::string_view(fault.name) == wanted) fault.put();
    }
  }
  *out = &plugin;
  return BPS_OK;
}
