#include "device_plugins/fake/device.h"

#include <string>
#include <utility>
#include <vector>

#include "abi/byteps.h"
#include "device_plugins/common/convert.h"
#include "device_plugins/common/error.h"
#include "device_plugins/common/fold.h"
#include "device_plugins/fake/control.h"

namespace byteps::fake {
namespace {

using devices::Error;
using Kind = Memory::Kind;

Event* Of(bps_device_event* event) { return reinterpret_cast<Event*>(event); }

}  // namespace

Device::Device(std::shared_ptr<Machine> machine, int32_t index) : machine_(std::move(machine)), index_(index) {
  const int devices = machine_->options().devices;
  if (index < 0 || index >= devices) {
    throw Error(BPS_INVALID_ARGUMENT,
                "there is no fake device " + std::to_string(index) + "; there are " + std::to_string(devices));
  }
  machine_->Begin(index_, "open");
}

Device::~Device() {
  for (Stream* stream : own_) machine_->Drain(stream);
}

Stream* Device::Of(bps_device_stream stream) {
  Stream* known = machine_->Known(stream, index_);
  machine_->CheckTakes(*known, index_);
  return known;
}

void* Device::Allocate(uint64_t size) {
  machine_->Begin(index_, "allocate");
  return machine_->Allocate(index_, size);
}

void Device::Release(void* base) {
  machine_->Begin(index_, "release");
  machine_->Release(base, Kind::kDevice);
}

void* Device::AllocateHost(uint64_t size) {
  machine_->Begin(index_, "allocate_host");
  return machine_->AllocateHost(size);
}

void Device::ReleaseHost(void* base) {
  machine_->Begin(index_, "release_host");
  machine_->Release(base, Kind::kPinned);
}

void Device::RegisterHost(void* base, uint64_t size) {
  machine_->Begin(index_, "register_host");
  machine_->Register(base, size);
}

void Device::UnregisterHost(void* base) {
  machine_->Begin(index_, "unregister_host");
  machine_->Release(base, Kind::kRegistered);
}

bps_device_pointer Device::Pointer(const void* address) {
  machine_->Begin(index_, "pointer");
  return machine_->Pointer(address);
}

bps_device_stream Device::StreamCreate(int32_t) {
  machine_->Begin(index_, "stream_create");
  Stream* stream = machine_->StreamCreate(index_);
  const std::lock_guard<std::mutex> lock(mutex_);
  own_.insert(stream);
  return stream;
}

void Device::StreamDestroy(bps_device_stream stream) {
  machine_->Begin(index_, "stream_destroy");
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (own_.erase(static_cast<Stream*>(stream)) == 0) {
      throw Error(BPS_INVALID_ARGUMENT, "this stream was not made here");
    }
  }
  machine_->StreamDestroy(static_cast<Stream*>(stream));
}

bps_device_stream_state Device::StreamState(bps_device_stream stream) {
  machine_->Begin(index_, "stream_state");
  const Stream* known = machine_->Known(stream, index_);
  bps_device_stream_state state = {};
  state.id = known->device;
  state.capturing = known->capturing ? 1 : 0;
  return state;
}

void Device::StreamWait(bps_device_stream stream, bps_device_event* event) {
  machine_->Begin(index_, "stream_wait");
  // It may be another device's, as with CUDA: a group of operations has results on several.
  Stream* known = machine_->Known(stream, index_);
  machine_->CheckTakes(*known, known->device);
  machine_->Wait(known, *fake::Of(event));
}

bps_device_event* Device::EventCreate() {
  machine_->Begin(index_, "event_create");
  return reinterpret_cast<bps_device_event*>(machine_->EventCreate(index_).release());
}

void Device::EventDestroy(bps_device_event* event) { delete fake::Of(event); }

void Device::EventRecord(bps_device_event* event, bps_device_stream stream) {
  machine_->Begin(index_, "event_record");
  if (fake::Of(event)->device != index_) {
    throw Error(BPS_INVALID_ARGUMENT, "the event is of another device than the stream");
  }
  machine_->Put(Of(stream), fake::Of(event));
}

bool Device::EventQuery(bps_device_event* event) {
  machine_->Begin(index_, "event_query");
  return machine_->Query(*fake::Of(event));
}

void Device::CopyToHost(void* to, const void* from, uint64_t size, bps_device_stream stream) {
  machine_->Begin(index_, "copy_to_host");
  machine_->Copy(Of(stream), to, from, size, "copy_to_host", Kind::kPinned, Kind::kDevice);
}

void Device::CopyToDevice(void* to, const void* from, uint64_t size, bps_device_stream stream) {
  machine_->Begin(index_, "copy_to_device");
  machine_->Copy(Of(stream), to, from, size, "copy_to_device", Kind::kDevice, Kind::kPinned);
}

void Device::CopyWithin(void* to, const void* from, uint64_t size, bps_device_stream stream) {
  machine_->Begin(index_, "copy_within");
  machine_->Copy(Of(stream), to, from, size, "copy_within", Kind::kDevice, Kind::kDevice);
}

void Device::Fill(void* to, uint8_t byte, uint64_t size, bps_device_stream stream) {
  machine_->Begin(index_, "fill");
  machine_->Fill(Of(stream), to, byte, size);
}

void Device::Synchronize(bps_device_stream stream) {
  machine_->Begin(index_, "synchronize");
  machine_->Synchronize(Of(stream));
}

void Device::Fold(void* to, const void* const* sources, uint32_t n, uint64_t count, uint32_t dtype, int32_t reduction,
                  bps_device_stream stream) {
  machine_->Begin(index_, "fold");
  devices::CheckFold(dtype, reduction);
  if (n == 0) throw Error(BPS_INVALID_ARGUMENT, "a fold of no arrays");
  if (count == 0) return;
  const uint64_t bytes = count * devices::ElementBytes(dtype);
  std::vector<fake_gpu_access> accesses = {{to, bytes, 1, 0}};
  for (uint32_t i = 0; i < n; ++i) accesses.push_back({sources[i], bytes, 0, 0});
  const auto kernel = [n, count, dtype, reduction](void* const* inside) {
    if (inside == nullptr) return;
    const std::vector<const void*> from(inside + 1, inside + 1 + n);
    devices::Fold(inside[0], from, count, dtype, reduction);
  };
  machine_->Launch(Of(stream), kernel, std::move(accesses));
}

void Device::Convert(void* to, uint32_t to_dtype, const void* from, uint32_t from_dtype, uint64_t count, double factor,
                     bps_device_stream stream) {
  machine_->Begin(index_, "convert");
  devices::CheckConvert(to_dtype, from_dtype);
  if (count == 0) return;
  const auto kernel = [to_dtype, from_dtype, count, factor](void* const* inside) {
    if (inside == nullptr) return;
    devices::Convert(inside[0], to_dtype, inside[1], from_dtype, count, factor);
  };
  machine_->Convert(Of(stream), to, count * devices::ElementBytes(to_dtype), from,
                    count * devices::ElementBytes(from_dtype), kernel);
}

void Device::FlushRemote() {
  machine_->Begin(index_, "flush_remote");
  machine_->FlushRemote();
}

int32_t Device::DmaBuf(const void* base, uint64_t size) {
  machine_->Begin(index_, "dmabuf");
  return machine_->DmaBuf(base, size);
}

}  // namespace byteps::fake
