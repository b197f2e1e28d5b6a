#include "device_plugins/fake/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "abi/byteps.h"
#include "device_plugins/common/error.h"

namespace byteps::fake {
namespace {

using devices::Error;
using Lock = std::lock_guard<std::mutex>;

// Handles of CUDA that are no address: the default stream of all threads, and that of the calling one.
const bps_device_stream kLegacyStream = reinterpret_cast<bps_device_stream>(1);
const bps_device_stream kPerThreadStream = reinterpret_cast<bps_device_stream>(2);

uintptr_t AddressOf(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); }

std::string Name(int device) { return "fake device " + std::to_string(device); }

}  // namespace

Machine::Machine(const Options& options)
    : options_(options), owner_(::getpid()), lost_(static_cast<size_t>(options.devices)), random_(options.seed) {
  for (int device = 0; device < options.devices; ++device) defaults_.push_back(StreamCreate(device));
  counts_ = {};
}

void Machine::CheckMine() const {
  if (::getpid() == owner_) return;
  throw Error(BPS_FAILED_PRECONDITION, "this process was forked from one that had used the GPU: it cannot use it");
}

void Machine::Begin(int device, const char* verb) {
  CheckMine();
  std::unique_lock<std::mutex> lock(mutex_);
  if (auto hanging = hanging_.find(verb); hanging != hanging_.end() && hanging->second-- == 0) {
    ++hung_;
    lock.unlock();  // other threads of the program go on
    for (;;) ::pause();
  }
  if (lost_[static_cast<size_t>(device)]) {
    throw Error(BPS_DATA_LOSS, Name(device) + ": an illegal memory access was encountered: its context is lost");
  }
  if (auto failing = failing_.find(verb); failing != failing_.end() && failing->second.after-- == 0) {
    const int32_t code = failing->second.code;
    failing_.erase(failing);
    throw Error(code, Name(device) + ": " + verb + " fails, as the test has asked");
  }
  if (options_.schedule == Schedule::kRandom) RunSome();
}

// ---- Memory ----

void* Machine::Allocate(int device, uint64_t size) {
  const Lock lock(mutex_);
  if (size == 0) throw Error(BPS_INVALID_ARGUMENT, "an allocation of 0 bytes");
  if (size > options_.memory - std::min(options_.memory, memory_.used(device))) {
    throw Error(BPS_RESOURCE_EXHAUSTED, Name(device) + " has no " + std::to_string(size) + " bytes left");
  }
  ++counts_.allocations;
  return memory_.Allocate(device, size);
}

void* Machine::AllocateHost(uint64_t size) {
  const Lock lock(mutex_);
  if (size == 0) throw Error(BPS_INVALID_ARGUMENT, "an allocation of 0 bytes");
  ++counts_.host_allocations;
  return memory_.AllocateHost(size);
}

void Machine::Register(void* base, uint64_t size) {
  const Lock lock(mutex_);
  memory_.Register(base, size);
  ++counts_.registrations;
}

void Machine::Release(void* base, Memory::Kind kind) {
  std::unique_lock<std::mutex> lock(mutex_);
  ++counts_.synchronisations;
  std::vector<Stream*> all;
  for (const auto& [stream, owned] : streams_) all.push_back(stream);
  for (Stream* stream : all) Settle(&lock, stream);
  const Memory::Range* range = memory_.Find(base, 0);
  const uint64_t size = range == nullptr ? 0 : range->size;
  memory_.Release(base, kind);
  races_.Forget(AddressOf(base), AddressOf(base) + size);
}

bps_device_pointer Machine::Pointer(const void* address) {
  const Lock lock(mutex_);
  bps_device_pointer pointer = {};
  pointer.type = BPS_CPU;
  const Memory::Range* range = memory_.Find(address, 0);
  if (range == nullptr) return pointer;
  pointer.type = range->kind == Memory::Kind::kDevice ? BPS_CUDA : BPS_CUDA_HOST;
  pointer.id = range->device;
  pointer.base = range->base;
  pointer.size = range->size;
  if (range->kind == Memory::Kind::kDevice) pointer.identity = range->identity;
  return pointer;
}

void Machine::FlushRemote() {
  const Lock lock(mutex_);
  ++counts_.flushes;
}

int Machine::DmaBuf(const void* base, uint64_t size) {
  const Lock lock(mutex_);
  const Memory::Range* range = memory_.Find(base, size);
  if (range == nullptr || range->kind != Memory::Kind::kDevice || range->base != base || range->size != size) {
    throw Error(BPS_INVALID_ARGUMENT, "a dma-buf is of a whole allocation of device memory");
  }
  return memory_.Export(range->base);
}

// ---- Streams and events ----

Stream* Machine::StreamCreate(int device) {
  const Lock lock(mutex_);
  ++counts_.streams;
  return MakeStream(device);
}

Stream* Machine::MakeStream(int device) {
  auto stream = std::make_unique<Stream>();
  stream->actor = actors_++;
  stream->device = device;
  Stream* made = stream.get();
  streams_.emplace(made, std::move(stream));
  return made;
}

void Machine::StreamDestroy(Stream* stream) {
  std::unique_lock<std::mutex> lock(mutex_);
  Settle(&lock, stream);
  streams_.erase(stream);
}

Stream* Machine::Known(bps_device_stream stream, int device) {
  const Lock lock(mutex_);
  if (stream == nullptr || stream == kLegacyStream) return defaults_[static_cast<size_t>(device)];
  if (stream == kPerThreadStream) {
    Stream*& own = of_threads_[{std::this_thread::get_id(), device}];
    if (own == nullptr) own = MakeStream(device);
    return own;
  }
  const auto found = streams_.find(static_cast<Stream*>(stream));
  if (found == streams_.end()) throw Error(BPS_INVALID_ARGUMENT, "this handle is no stream");
  return found->first;
}

void Machine::CheckTakes(const Stream& stream, int device) {
  const Lock lock(mutex_);
  if (stream.device != device) {
    throw Error(BPS_INVALID_ARGUMENT, "the stream is of " + Name(stream.device) + ", not of " + Name(device));
  }
  if (stream.capturing) throw Error(BPS_FAILED_PRECONDITION, "the stream is being captured into a graph");
}

std::unique_ptr<Event> Machine::EventCreate(int device) {
  const Lock lock(mutex_);
  ++counts_.events;
  auto event = std::make_unique<Event>();
  event->device = device;
  return event;
}

void Machine::Put(Stream* stream, Event* event) {
  const Lock lock(mutex_);
  auto record = std::make_shared<Record>();
  record->stream = stream;
  record->patience = static_cast<int64_t>(random_() % options_.patience);
  event->latest = record;
  Enqueue(stream, {.kind = Work::kRecord, .record = std::move(record), .verb = "event_record"});
}

void Machine::Wait(Stream* stream, const Event& event) {
  const Lock lock(mutex_);
  if (event.latest == nullptr) return;
  Enqueue(stream, {.kind = Work::kWait, .record = event.latest, .verb = "stream_wait"});
}

bool Machine::Query(const Event& event) {
  const Lock lock(mutex_);
  if (event.latest == nullptr) return true;
  Record& record = *event.latest;
  if (!record.done && record.patience-- <= 0) {
    Drive(record);
    // It may wait for members that have their GPUs in this process, too.
    if (!record.done) RunOverdue();
  }
  if (!record.done) return false;
  host_.Join(record.clock);
  return true;
}

void Machine::Synchronize(Stream* stream) {
  std::unique_lock<std::mutex> lock(mutex_);
  ++counts_.synchronisations;
  Settle(&lock, stream);
  host_.Join(stream->clock);
}

void Machine::Drain(Stream* stream) {
  std::unique_lock<std::mutex> lock(mutex_);
  try {
    if (!lost_[static_cast<size_t>(stream->device)]) Settle(&lock, stream);
  } catch (const Error& error) {
    races_.Report(error.what());
  }
  streams_.erase(stream);
}

// ---- Work ----

void Machine::CheckRange(const void* address, uint64_t size, Memory::Kind kind, int device, const char* verb) const {
  const Memory::Range* range = memory_.Find(address, size);
  const bool host = kind != Memory::Kind::kDevice;
  const std::string what = std::string(verb) + ": " + std::to_string(size) + " bytes at an address ";
  if (range == nullptr) {
    throw Error(BPS_INVALID_ARGUMENT, what + (host ? "that is no pinned host memory" : "that is no device memory"));
  }
  if (host == (range->kind == Memory::Kind::kDevice)) {
    throw Error(BPS_INVALID_ARGUMENT, what + (host ? "of a device, not of the host" : "of the host, not of a device"));
  }
  if (!host && range->device != device) {
    throw Error(BPS_INVALID_ARGUMENT, what + "of " + Name(range->device) + ", not of " + Name(device));
  }
}

void Machine::Copy(Stream* stream, void* to, const void* from, uint64_t size, const char* verb, Memory::Kind to_kind,
                   Memory::Kind from_kind) {
  const Lock lock(mutex_);
  if (size == 0) return;
  CheckRange(to, size, to_kind, stream->device, verb);
  CheckRange(from, size, from_kind, stream->device, verb);
  Count(size, to_kind != Memory::Kind::kDevice, from_kind != Memory::Kind::kDevice);
  Enqueue(stream, {.kind = Work::kCopy,
                   .to = static_cast<std::byte*>(to),
                   .from = static_cast<const std::byte*>(from),
                   .size = size,
                   .verb = verb});
}

void Machine::Count(uint64_t size, bool to_host, bool to_device) {
  if (to_host) {
    ++counts_.copies_to_host;
    counts_.bytes_to_host += size;
  } else if (to_device) {
    ++counts_.copies_to_device;
    counts_.bytes_to_device += size;
  } else {
    ++counts_.copies_within;
  }
}

void Machine::Convert(Stream* stream, void* to, uint64_t to_size, const void* from, uint64_t from_size,
                      std::function<void(void* const* inside)> kernel) {
  const Lock lock(mutex_);
  const auto on_host = [&](const void* address, uint64_t size) {
    const Memory::Range* range = memory_.Find(address, size);
    return range != nullptr && range->kind != Memory::Kind::kDevice;
  };
  const bool to_host = on_host(to, to_size), from_host = on_host(from, from_size);
  if (to_host && from_host) throw Error(BPS_INVALID_ARGUMENT, "convert: neither end is memory of a device");
  if (!to_host) CheckRange(to, to_size, Memory::Kind::kDevice, stream->device, "convert");
  if (!from_host) CheckRange(from, from_size, Memory::Kind::kDevice, stream->device, "convert");
  counts_.conversions += to_host || from_host ? 1 : 0;
  if (to_host || from_host) Count(to_host ? to_size : from_size, to_host, from_host);
  Enqueue(stream, {.kind = Work::kKernel,
                   .verb = "convert",
                   .accesses = {{to, to_size, 1, 0}, {from, from_size, 0, 0}},
                   .kernel = std::move(kernel)});
}

void Machine::Fill(Stream* stream, void* to, uint8_t byte, uint64_t size) {
  const Lock lock(mutex_);
  if (size == 0) return;
  CheckRange(to, size, Memory::Kind::kDevice, stream->device, "fill");
  Enqueue(stream, {.kind = Work::kFill, .to = static_cast<std::byte*>(to), .size = size, .byte = byte, .verb = "fill"});
}

void Machine::Launch(Stream* stream, std::function<void(void* const* inside)> kernel,
                     std::vector<fake_gpu_access> accesses) {
  const Lock lock(mutex_);
  for (const fake_gpu_access& access : accesses) {
    CheckRange(access.address, access.size, Memory::Kind::kDevice, stream->device, "launch");
  }
  Enqueue(stream,
          {.kind = Work::kKernel, .verb = "launch", .accesses = std::move(accesses), .kernel = std::move(kernel)});
}

void Machine::Meet(Stream* stream, std::function<bool(void* const* inside)> meet,
                   std::vector<fake_gpu_access> accesses) {
  const Lock lock(mutex_);
  for (const fake_gpu_access& access : accesses) {
    if (access.size == 0) continue;
    CheckRange(access.address, access.size, Memory::Kind::kDevice, stream->device, "a collective");
  }
  Enqueue(stream,
          {.kind = Work::kMeet, .verb = "a collective", .accesses = std::move(accesses), .meet = std::move(meet)});
}

void Machine::Enqueue(Stream* stream, Work work) {
  host_.Tick(0);
  work.issued = host_;
  stream->queue.push_back(std::move(work));
  if (options_.schedule != Schedule::kEarly) return;
  for (bool ran = true; ran;) {
    ran = false;
    for (const auto& [each, owned] : streams_) ran = RunFirst(each) || ran;
  }
}

bool Machine::RunFirst(Stream* stream) {
  if (stream->queue.empty() || lost_[static_cast<size_t>(stream->device)]) return false;
  Work& first = stream->queue.front();
  if (first.kind == Work::kWait && !first.record->done) return false;
  if (first.kind == Work::kMeet) {
    if (!RunMeeting(stream, &first)) return false;
    stream->queue.pop_front();
    return true;
  }
  const Work work = std::move(stream->queue.front());
  stream->queue.pop_front();
  Run(stream, work);
  return true;
}

void Machine::Run(Stream* stream, const Work& work) {
  Clock& clock = stream->clock;
  clock.Join(work.issued);
  clock.Tick(stream->actor);
  if (work.kind == Work::kWait) {
    clock.Join(work.record->clock);
  } else if (work.kind == Work::kRecord) {
    work.record->clock = clock;
    work.record->done = true;
  } else if (work.kind == Work::kKernel) {
    RunKernel(stream, work);
  } else {
    std::byte* to = memory_.At(work.to, work.size);
    const std::byte* from = work.from == nullptr ? nullptr : memory_.At(work.from, work.size);
    if (to == nullptr || (work.kind == Work::kCopy && from == nullptr)) {
      return races_.Report(std::string(work.verb) + " of stream " + std::to_string(stream->actor) +
                           " touches memory that was given back");
    }
    const auto access = [&](const std::byte* begin, bool write) {
      races_.OnAccess({AddressOf(begin), AddressOf(begin) + work.size, write, stream->actor, work.verb}, clock);
    };
    if (from != nullptr) access(work.from, false);
    access(work.to, true);
    from != nullptr ? std::memmove(to, from, work.size) : std::memset(to, work.byte, work.size);
  }
}

std::vector<void*> Machine::Touch(Stream* stream, const Work& work, const char* what) {
  std::vector<void*> inside;
  for (const fake_gpu_access& access : work.accesses) {
    if (access.size == 0 && work.kind == Work::kMeet) {
      inside.push_back(nullptr);
      continue;
    }
    inside.push_back(memory_.At(access.address, access.size));
    if (inside.back() == nullptr) {
      races_.Report(std::string(what) + " of stream " + std::to_string(stream->actor) +
                    " touches memory that was given back");
      return {};
    }
    if (work.seen) continue;
    const uintptr_t begin = AddressOf(access.address);
    races_.OnAccess({begin, begin + access.size, access.write != 0, stream->actor, what}, stream->clock);
  }
  return inside;
}

void Machine::RunKernel(Stream* stream, const Work& work) {
  const std::vector<void*> inside = Touch(stream, work, "a kernel");
  work.kernel(inside.empty() && !work.accesses.empty() ? nullptr : inside.data());
}

bool Machine::RunMeeting(Stream* stream, Work* work) {
  if (!work->seen) {
    stream->clock.Join(work->issued);
    stream->clock.Tick(stream->actor);
  }
  const std::vector<void*> inside = Touch(stream, *work, "a collective");
  work->seen = true;
  return work->meet(inside.empty() ? nullptr : inside.data());
}

bool Machine::Advance(Stream* stream) {
  if (RunFirst(stream)) return true;
  if (stream->queue.empty() || lost_[static_cast<size_t>(stream->device)]) return false;
  const std::shared_ptr<Record> awaited = stream->queue.front().record;
  if (awaited == nullptr) return false;  // other processes
  Drive(*awaited);
  return awaited->done;
}

void Machine::Drive(const Record& record) {
  while (!record.done && Advance(record.stream)) continue;
}

void Machine::DriveAll(Stream* stream) {
  while (!stream->queue.empty() && Advance(stream)) continue;
}

void Machine::RunCollectives() {
  const Lock lock(mutex_);
  RunOverdue();
}

void Machine::RunOverdue() {
  for (const auto& [stream, owned] : streams_) {
    const auto overdue = [](const Work& work) { return work.overdue; };
    std::deque<Work>& queue = stream->queue;
    while (std::any_of(queue.begin(), queue.end(), overdue) && Advance(stream)) continue;
    for (Work& work : queue) work.overdue = work.kind == Work::kMeet;
  }
}

void Machine::Settle(std::unique_lock<std::mutex>* lock, Stream* stream) {
  DriveAll(stream);
  // A process that does not come is waited for, as on hardware; not for ever, so that a test ends.
  const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (!stream->queue.empty() && !lost_[static_cast<size_t>(stream->device)]) {
    if (std::chrono::steady_clock::now() > limit) {
      throw Error(BPS_DEADLINE_EXCEEDED, "a collective in the stream waits for a member that does not come");
    }
    // The members that have their GPUs in this process may have no other thread: devices run by themselves.
    for (bool ran = true; ran;) {
      ran = false;
      for (const auto& [each, owned] : streams_) ran = (each->device != stream->device && RunFirst(each)) || ran;
    }
    DriveAll(stream);
    if (stream->queue.empty()) return;
    lock->unlock();
    ::sched_yield();
    lock->lock();
    DriveAll(stream);
  }
}

void Machine::RunSome() {
  for (uint64_t steps = random_() % 4; steps > 0; --steps) {
    auto chosen = std::next(streams_.begin(), static_cast<std::ptrdiff_t>(random_() % streams_.size()));
    RunFirst(chosen->first);
  }
}

// ---- What tests ask ----

fake_gpu_counts Machine::counts() {
  const Lock lock(mutex_);
  fake_gpu_counts counts = counts_;
  counts.races = races_.reports().size();
  return counts;
}

std::string Machine::Race(uint64_t index) {
  const Lock lock(mutex_);
  return index < races_.reports().size() ? races_.reports()[index] : "";
}

void Machine::HostAccess(const void* address, uint64_t size, bool write) {
  const Lock lock(mutex_);
  host_.Tick(0);
  races_.OnAccess({AddressOf(address), AddressOf(address) + size, write, 0, write ? "a store" : "a load"}, host_);
}

bool Machine::Peek(const void* address, void* to, uint64_t size) {
  const Lock lock(mutex_);
  const std::byte* inside = memory_.At(address, size);
  if (inside != nullptr) std::memcpy(to, inside, size);
  return inside != nullptr;
}

// The host has posted it: what orders the host orders it.
void* Machine::RemoteAccess(const void* address, uint64_t size, bool read) {
  const Lock lock(mutex_);
  const Memory::Range* range = memory_.Find(address, size);
  if (range == nullptr || range->kind != Memory::Kind::kDevice) return nullptr;
  if (read) {
    host_.Tick(0);
    races_.OnAccess({AddressOf(address), AddressOf(address) + size, false, 0, "a network card"}, host_);
    ++counts_.remote_reads;
  }
  return memory_.At(address, size);
}

void Machine::FailLater(const std::string& verb, uint64_t after, int32_t code) {
  const Lock lock(mutex_);
  failing_[verb] = {after, code};
}

void Machine::HangLater(const std::string& verb, uint64_t after) {
  const Lock lock(mutex_);
  hanging_[verb] = after;
}

uint64_t Machine::hung() {
  const Lock lock(mutex_);
  return hung_;
}

void Machine::Lose(int device) {
  const Lock lock(mutex_);
  lost_[static_cast<size_t>(device)] = true;
}

void Machine::Capture(Stream* stream, bool on) {
  const Lock lock(mutex_);
  stream->capturing = on;
}

}  // namespace byteps::fake
