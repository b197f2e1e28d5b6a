#include "tests/transport_plugins/libfabric/device_wire.h"

#include <rdma/fi_domain.h>
#include <rdma/fi_errno.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <set>

namespace byteps::fabric {
namespace {

constexpr size_t kStepBytes = 8192;
constexpr size_t kStepsOfAPoll = 4;  // of each write
constexpr size_t kMostFlights = 64;
constexpr uint64_t kBellMark = 0x42454c4c6465762e;

struct Registration {
  fid_mr fid;  // first
  uintptr_t base;
  size_t size;
  uint64_t access;
};

// Of all endpoints.
struct Registrations {
  std::mutex mutex;
  std::set<const Registration*> all;

  bool Covers(const Registration* at, const void* data, size_t bytes, uint64_t access) const {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(data);
    return (at->access & access) == access && begin >= at->base && bytes <= at->size &&
           begin - at->base <= at->size - bytes;
  }
  bool Local(const void* descriptor, const void* data, size_t bytes, uint64_t access) const {
    const auto* registration = static_cast<const Registration*>(descriptor);
    return all.count(registration) != 0 && Covers(registration, data, bytes, access);
  }
  bool Remote(uint64_t key, const void* data, size_t bytes) const {
    return std::any_of(all.begin(), all.end(), [&](const Registration* each) {
      return each->fid.key == key && Covers(each, data, bytes, FI_REMOTE_WRITE);
    });
  }
};

Registrations& Live() {
  static auto* registrations = new Registrations;
  return *registrations;
}

int CloseRegistration(fid* fid) {
  auto* registration = reinterpret_cast<Registration*>(fid);
  const std::lock_guard lock(Live().mutex);
  Live().all.erase(registration);
  delete registration;
  return 0;
}

fi_ops OpsOfRegistrations() {
  fi_ops ops{};
  ops.size = sizeof ops;
  ops.close = CloseRegistration;
  return ops;
}

int Register(fid*, const void* data, size_t size, uint64_t access, uint64_t, uint64_t key, uint64_t, fid_mr** out,
             void*) {
  static fi_ops ops = OpsOfRegistrations();
  auto* registration = new Registration{{}, reinterpret_cast<uintptr_t>(data), size, access};
  registration->fid.fid.fclass = FI_CLASS_MR;
  registration->fid.fid.ops = &ops;
  registration->fid.mem_desc = registration;
  registration->fid.key = key;
  const std::lock_guard lock(Live().mutex);
  Live().all.insert(registration);
  *out = &registration->fid;
  return 0;
}

fi_ops_mr OpsOfTheDevice() {
  fi_ops_mr ops{};
  ops.size = sizeof ops;
  ops.reg = Register;
  return ops;
}

}  // namespace

DeviceWire::DeviceWire(DatagramEndpoint* endpoint, uint64_t seed) : endpoint_(*endpoint), random_(seed) {
  static fi_ops_mr ops = OpsOfTheDevice();
  endpoint->memory().get()->mr = &ops;
  endpoint->info().domain_attr->mr_mode |= FI_MR_LOCAL | FI_MR_VIRT_ADDR;
}

int DeviceWire::Receive(void* buffer, size_t size, void* descriptor, fi_context2* context) {
  {
    const std::lock_guard lock(Live().mutex);
    if (!Live().Local(descriptor, buffer, size, FI_RECV)) return -FI_EINVAL;
  }
  const int code = endpoint_.Receive(buffer, size, nullptr, context);
  if (code == 0) posted_[context] = {buffer, size};
  return code;
}

int DeviceWire::Send(fi_addr_t to, const void* data, size_t size, void* descriptor, fi_context2* context) {
  {
    const std::lock_guard lock(Live().mutex);
    if (!Live().Local(descriptor, data, size, FI_SEND)) return -FI_EINVAL;
  }
  return endpoint_.Send(to, data, size, nullptr, context);
}

int DeviceWire::Write(fi_addr_t to, const void* data, size_t size, void* descriptor, uint32_t immediate,
                      const RemoteMemory& at, fi_context2* context) {
  if (flights_.size() >= kMostFlights) return -FI_EAGAIN;
  {
    const std::lock_guard lock(Live().mutex);
    if (size != 0 && !Live().Local(descriptor, data, size, FI_WRITE)) return -FI_EINVAL;
  }
  Flight& flight = flights_.emplace_back();
  flight.to = to;
  flight.data = static_cast<const std::byte*>(data);
  flight.size = size;
  flight.descriptor = descriptor;
  flight.at = at;
  flight.context = context;
  flight.bell = {kBellMark, immediate};
  for (size_t offset = 0; offset < size; offset += kStepBytes) flight.steps.push_back(offset);
  std::shuffle(flight.steps.begin(), flight.steps.end(), random_);
  return 0;
}

void DeviceWire::Step(Flight* flight) {
  const std::lock_guard lock(Live().mutex);
  const size_t offset = flight->steps.back(), bytes = std::min(kStepBytes, flight->size - offset);
  auto* target = reinterpret_cast<std::byte*>(flight->at.address) + offset;
  if (!Live().Local(flight->descriptor, flight->data + offset, bytes, FI_WRITE)) {
    flight->error = FI_ECANCELED;
  } else if (!Live().Remote(flight->at.key, target, bytes)) {
    flight->error = FI_EACCES;
  } else {
    std::memcpy(target, flight->data + offset, bytes);
    flight->steps.pop_back();
  }
}

void DeviceWire::Fly() {
  for (Flight& flight : flights_) {
    if (flight.rung) continue;
    for (size_t i = 0; i < kStepsOfAPoll && !flight.steps.empty() && flight.error == 0; ++i) Step(&flight);
    if (!flight.steps.empty() || flight.error != 0) continue;
    const int code = endpoint_.Send(flight.to, &flight.bell, sizeof flight.bell, nullptr, &flight.scratch);
    flight.rung = code == 0;
    if (code != 0 && code != -FI_EAGAIN) flight.error = -code;
  }
}

size_t DeviceWire::Read(WireCompletion* completions, size_t capacity) {
  Fly();
  again_.erase(std::remove_if(again_.begin(), again_.end(),
                              [this](void* context) {
                                const Posted& posted = posted_.at(context);
                                return endpoint_.Receive(posted.buffer, posted.size, nullptr,
                                                         static_cast<fi_context2*>(context)) == 0;
                              }),
               again_.end());
  const size_t count = endpoint_.Read(completions, capacity);
  for (size_t i = 0; i < count; ++i) {
    WireCompletion& completion = completions[i];
    const auto flight = std::find_if(flights_.begin(), flights_.end(),
                                     [&](const Flight& each) { return &each.scratch == completion.context; });
    if (flight != flights_.end()) {
      completion.context = flight->context;
      flights_.erase(flight);
      continue;
    }
    const auto posted = posted_.find(completion.context);
    if (posted == posted_.end()) continue;
    Bell bell{};
    if (completion.error == 0 && completion.size == sizeof bell) {
      std::memcpy(&bell, posted->second.buffer, sizeof bell);
    }
    if (bell.mark != kBellMark) {
      posted_.erase(posted);
      continue;
    }
    again_.push_back(completion.context);
    completion = {};
    completion.remote = true;
    completion.data = bell.immediate;
  }
  size_t given = count;
  for (auto flight = flights_.begin(); flight != flights_.end() && given < capacity;) {
    if (flight->error == 0) {
      ++flight;
      continue;
    }
    completions[given] = {};
    completions[given].context = flight->context;
    completions[given].error = flight->error;
    completions[given++].detail = "the memory is not registered any more";
    flight = flights_.erase(flight);
  }
  return given;
}

bool DeviceWire::Quiet() const {
  return again_.empty() && std::all_of(flights_.begin(), flights_.end(), [](const Flight& each) { return each.rung; });
}

}  // namespace byteps::fabric
