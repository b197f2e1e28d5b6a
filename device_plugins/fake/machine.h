// machine.h - the fake GPUs of a process: streams whose work runs when the schedule says so, and what is counted.
//
//     Machine machine(options);
//     Stream* stream = machine.StreamCreate(0);
//     machine.Enqueue(stream, {.kind = Work::kCopy, .to = to, .from = from, .size = size, .verb = "copy_to_host"});
//     machine.Enqueue(stream, {.kind = Work::kRecord, .record = event->latest});
//     bool ready = machine.Query(*event);         // may run what the event waits for
//
// Nothing here takes time and no thread is added: work runs inside the calls of the program (and of runner.h, for
// members of other processes). How far it gets is the schedule's affair; what a correct program reads is not.
//
// Threads: any; one lock. Errors: throws Error.
#ifndef BYTEPS_DEVICE_PLUGINS_FAKE_MACHINE_H_
#define BYTEPS_DEVICE_PLUGINS_FAKE_MACHINE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device_plugins/fake/clock.h"
#include "device_plugins/fake/control.h"
#include "device_plugins/fake/memory.h"
#include "device_plugins/fake/options.h"
#include "device_plugins/fake/races.h"

namespace byteps::fake {

struct Stream;

// One record of an event: a place in a stream.
struct Record {
  Stream* stream = nullptr;
  bool done = false;
  Clock clock;           // of the stream, there
  int64_t patience = 0;  // queries until a late schedule does what it waits for
};

// What abi/device.h calls bps_device_event.
struct Event {
  int device = 0;
  std::shared_ptr<Record> latest;  // nullptr: never recorded
};

struct Work {
  enum Kind { kCopy, kFill, kRecord, kWait, kKernel, kMeet };
  Kind kind;
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  uint64_t size = 0;
  uint8_t byte = 0;
  std::shared_ptr<Record> record;
  const char* verb = "";
  std::vector<fake_gpu_access> accesses;  // kKernel, kMeet
  std::function<void(void* const* inside)> kernel;
  // kMeet: once, or again and again until it answers true: it may wait for other processes.
  std::function<bool(void* const* inside)> meet;
  bool seen = false;     // kMeet: its accesses are known
  bool overdue = false;  // kMeet: RunOverdue has found it before
  Clock issued;          // of the host, when it was put in; filled in
};

struct Stream {
  size_t actor = 0;
  int device = 0;
  bool capturing = false;
  Clock clock;
  std::deque<Work> queue;
};

class Machine {
 public:
  explicit Machine(const Options& options);
  Machine(const Machine&) = delete;
  Machine& operator=(const Machine&) = delete;

  const Options& options() const { return options_; }

  // Every call of a program begins with this: is the device lost, is this a forked child, is `verb` to fail, or never
  // to return?
  void Begin(int device, const char* verb);

  void* Allocate(int device, uint64_t size);
  void* AllocateHost(uint64_t size);
  void Register(void* base, uint64_t size);
  // Waits for all work, as the driver does.
  void Release(void* base, Memory::Kind kind);
  bps_device_pointer Pointer(const void* address);
  void FlushRemote();
  int DmaBuf(const void* base, uint64_t size);

  Stream* StreamCreate(int device);
  void StreamDestroy(Stream* stream);
  // A stream of the program: INVALID_ARGUMENT if it is none. nullptr and 1 are the default stream of `device`, 2 is
  // that of the calling thread alone.
  Stream* Known(bps_device_stream stream, int device);
  // Work goes into it: it must be of this device and must not be captured.
  void CheckTakes(const Stream& stream, int device);

  std::unique_ptr<Event> EventCreate(int device);
  void Put(Stream* stream, Event* event);         // a record
  void Wait(Stream* stream, const Event& event);  // for its latest record
  bool Query(const Event& event);
  void Copy(Stream* stream, void* to, const void* from, uint64_t size, const char* verb, Memory::Kind to_kind,
            Memory::Kind from_kind);
  void Fill(Stream* stream, void* to, uint8_t byte, uint64_t size);
  // A kernel that reads `from` and writes `to`, of which one may be the host's: then it is counted as a copy.
  void Convert(Stream* stream, void* to, uint64_t to_size, const void* from, uint64_t from_size,
               std::function<void(void* const* inside)> kernel);
  void Launch(Stream* stream, std::function<void(void* const* inside)> kernel, std::vector<fake_gpu_access> accesses);
  // `meet` is called until it answers true: then the stream goes on. NULL for accesses of no bytes.
  void Meet(Stream* stream, std::function<bool(void* const* inside)> meet, std::vector<fake_gpu_access> accesses);
  void Synchronize(Stream* stream);
  // As GPUs by themselves: runs the collectives that an earlier call has found, and what they wait for.
  void RunCollectives();
  // As Synchronize, of the end of an instance: not counted.
  void Drain(Stream* stream);

  // Of control.h.
  fake_gpu_counts counts();
  std::string Race(uint64_t index);
  void HostAccess(const void* address, uint64_t size, bool write);
  bool Peek(const void* address, void* to, uint64_t size);
  void* RemoteAccess(const void* address, uint64_t size, bool read);
  void FailLater(const std::string& verb, uint64_t after, int32_t code);
  void HangLater(const std::string& verb, uint64_t after);
  uint64_t hung();  // calls
  void Lose(int device);
  void Capture(Stream* stream, bool on);

 private:
  struct Failing {
    uint64_t after;
    int32_t code;
  };

  Stream* MakeStream(int device);
  void Enqueue(Stream* stream, Work work);
  void Count(uint64_t size, bool to_host, bool to_device);
  void CheckRange(const void* address, uint64_t size, Memory::Kind kind, int device, const char* verb) const;
  // Runs the first of the stream's queue; false if it has to wait, or there is none.
  bool RunFirst(Stream* stream);
  void Run(Stream* stream, const Work& work);
  void RunKernel(Stream* stream, const Work& work);
  // False: others are waited for.
  bool RunMeeting(Stream* stream, Work* work);
  // Where its accesses can be touched; empty: some of them are of memory that was given back.
  std::vector<void*> Touch(Stream* stream, const Work& work, const char* what);
  // Runs the first of the stream's queue, or what that waits for; false if other processes are waited for.
  bool Advance(Stream* stream);
  // Runs what this place of its stream waits for, and no more.
  void Drive(const Record& record);
  void DriveAll(Stream* stream);
  // The same; waits for other processes, too.
  void Settle(std::unique_lock<std::mutex>* lock, Stream* stream);
  void RunOverdue();
  void RunSome();
  void CheckMine() const;

  const Options options_;
  const int owner_;  // process
  std::mutex mutex_;
  Memory memory_;
  Races races_;
  Clock host_;
  size_t actors_ = 1;
  std::map<Stream*, std::unique_ptr<Stream>> streams_;
  std::vector<Stream*> defaults_;  // by device
  std::map<std::pair<std::thread::id, int>, Stream*> of_threads_;
  std::vector<bool> lost_;  // by device
  std::map<std::string, Failing> failing_;
  std::map<std::string, uint64_t> hanging_;  // behind so many others
  uint64_t hung_ = 0;
  std::mt19937_64 random_;
  fake_gpu_counts counts_ = {};
};

}  // namespace byteps::fake

#endif  // BYTEPS_DEVICE_PLUGINS_FAKE_MACHINE_H_
