// comm.h - one member of the collectives among fake GPUs of several processes.
//
//     Comm comm(machine, device, id, rank, size);
//     comm.Begin();
//     comm.AllReduce(from, to, count, BPS_FLOAT32, BPS_SUM, stream);
//     comm.End();                                    // one unit: it goes into the stream
//     comm.State()                                   // true: the next may be put in
//
// Units meet by their number in the comm: what a member has put in as its seventh meets the seventh of all others. If
// they ask for different things the comm fails, on all members, with what two of them asked. A member that does not
// come is waited for without an end, as on hardware: deadlines are the caller's. All members take part in every unit,
// also if it consists of sends and receives of others.
//
// Reductions are added in another order than that of the ranks, so that no caller relies on it.
//
// Threads: calls for one comm come one at a time; units run inside calls of the machine. Errors: throws Error.
#ifndef BYTEPS_DEVICE_PLUGINS_FAKE_COMM_H_
#define BYTEPS_DEVICE_PLUGINS_FAKE_COMM_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "abi/device.h"
#include "device_plugins/fake/machine.h"
#include "device_plugins/fake/meeting.h"
#include "device_plugins/fake/runner.h"

namespace byteps::fake {

struct Collective {
  enum Kind : int32_t { kReduceScatter, kAllGather, kAllReduce, kReduce, kBroadcast, kSend, kReceive };
  Kind kind;
  const void* from = nullptr;
  void* to = nullptr;
  uint64_t count = 0;
  uint32_t dtype = 0;
  int32_t reduction = 0;
  int32_t root = 0;  // or the peer
  Stream* stream = nullptr;
};

class Comm {
 public:
  Comm(std::shared_ptr<Machine> machine, int device, const std::string& id, int rank, int size);
  // Aborts.
  ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  // May something be put in? Not at once after a unit, as NCCL, whose own threads take it. Throws Error if it has
  // failed.
  bool State();
  void Begin();
  void End();
  void ReduceScatter(const void* from, void* to, uint64_t count, uint32_t dtype, int32_t reduction,
                     bps_device_stream stream);
  void AllGather(const void* from, void* to, uint64_t count, uint32_t dtype, bps_device_stream stream);
  void AllReduce(const void* from, void* to, uint64_t count, uint32_t dtype, int32_t reduction,
                 bps_device_stream stream);
  void Reduce(const void* from, void* to, uint64_t count, uint32_t dtype, int32_t reduction, int32_t root,
              bps_device_stream stream);
  void Broadcast(const void* from, void* to, uint64_t count, uint32_t dtype, int32_t root, bps_device_stream stream);
  void Send(const void* from, uint64_t count, uint32_t dtype, int32_t peer, bps_device_stream stream);
  void Receive(void* to, uint64_t count, uint32_t dtype, int32_t peer, bps_device_stream stream);
  // Waits for what was put in.
  void Leave();

 private:
  struct Unit;
  struct Inside;

  void Add(Collective collective);
  // The stream, checked.
  Stream* StreamOf(bps_device_stream stream);

  const std::shared_ptr<Machine> machine_;
  const int device_;
  const std::shared_ptr<Inside> inside_;  // units outlive the comm
  std::vector<Collective> unit_;
  std::vector<Stream*> streams_;
  std::unique_ptr<Runner> runner_;  // if there are members in other processes
  int depth_ = 0;
  int busy_ = 0;  // answers of State() that are still "not yet"
};

}  // namespace byteps::fake

#endif  // BYTEPS_DEVICE_PLUGINS_FAKE_COMM_H_
