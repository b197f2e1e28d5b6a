// control_job.h - a coordinator and its members in one thread: links are queues, time is a number.
//
//     ControlJob job({.job = "job"});
//     ControlMember& worker = job.AddWorker({.host = 0, .hosts = 1});
//     ControlMember& server = job.AddServer({});
//     job.Settle();                        // until nothing is on its way
//     EXPECT_EQ(worker.client().state(), ControlState::kActive);
//     job.Kill(worker);                    // its connection closes
//     job.Advance(10 * kSecond);           // timers included
#ifndef BYTEPS_TESTS_SERVER_MEMBERSHIP_CONTROL_JOB_H_
#define BYTEPS_TESTS_SERVER_MEMBERSHIP_CONTROL_JOB_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/base/log.h"
#include "core/control/control_client.h"
#include "server/membership/coordinator.h"

namespace byteps {

class ControlJob;

// Where a worker is, and what it is told to be.
struct WorkerSpec {
  int32_t host = 0;
  int32_t hosts = 1;
  int32_t local_rank = 0;
  int32_t local_size = 1;
  int32_t servers = 1;
  int32_t global_rank = -1;
  std::string session;
  std::string transport = "tcp";
  std::string groups;
  uint64_t partition_bytes = 0;
};

struct ServerSpec {
  int32_t servers = 1;
  int32_t preferred_rank = -1;
  int lanes = 2;
  std::string transport = "tcp";
  uint64_t slot_bytes = 512 << 10;
};

// By hand: nothing else decides when the job is over.
inline CoordinatorOptions ByHand() {
  CoordinatorOptions options;
  options.start_timeout = 600 * kSecond;
  return options;
}

// One member, with everything it was told.
class ControlMember final : public ControlHandler {
 public:
  ControlMember(ControlJob* job, control::Hello hello, std::string token, Time now);

  void Send(const control::Envelope& envelope) override;
  void OnWelcome(const control::Welcome& told) override { welcome = told; }
  void OnWaiting(const std::vector<std::string>& missing) override { waiting = missing; }
  void OnOtherRefused(const std::string& why) override { refusals.push_back(why); }
  void OnEpoch(const control::Epoch& epoch) override { epochs.push_back(epoch); }
  void OnAssignment(const control::Assignment& assignment) override { assignments.push_back(assignment); }
  void OnBarrier(const std::string& name, uint64_t sequence, const absl::Status& status) override {
    barriers[name + " " + std::to_string(sequence)] = status;
  }
  void OnGoodbye(const absl::Status& status) override { goodbye = status; }
  void OnFailure(const absl::Status& fatal) override { failure = fatal; }
  void OnSessionEnded(uint64_t session_id, const absl::Status& why) override { ended[session_id] = why; }
  void OnJobEnded(const std::string& reason) override { job_ended = reason; }

  ControlClient& client() { return client_; }
  std::string failure_text() const { return std::string(failure.message().data(), failure.message().size()); }

  ConnectionId connection = 0;  // 0: none

  control::Welcome welcome;
  std::vector<std::string> waiting;
  std::vector<std::string> refusals;  // of others
  std::vector<control::Epoch> epochs;
  std::vector<control::Assignment> assignments;
  std::map<std::string, absl::Status> barriers;
  std::optional<absl::Status> goodbye;
  absl::Status failure;
  std::map<uint64_t, absl::Status> ended;
  std::string job_ended;

 private:
  ControlJob* const job_;
  ControlClient client_;
};

class ControlJob final : public CoordinatorHandler {
 public:
  explicit ControlJob(CoordinatorOptions options = {});

  ControlMember& AddWorker(const WorkerSpec& spec);
  ControlMember& AddServer(const ServerSpec& spec);
  ControlMember& Add(control::Hello hello);
  static control::Hello WorkerHello(const WorkerSpec& spec);
  static control::Hello ServerHello(const ServerSpec& spec);
  // Connects; the address is that of the member as the coordinator sees it.
  void Connect(ControlMember& member, const std::string& address = "127.0.0.1");

  // Delivers everything that is on its way, and what follows from it.
  void Settle();
  // Lets time pass, in the steps that timers ask for.
  void Advance(Time by);
  // The member's process dies: its connection closes.
  void Kill(ControlMember& member);
  // The member's host dies: nothing of it comes any more, and nothing is closed.
  void Freeze(ControlMember& member) { frozen_[member.connection] = true; }
  bool IsFrozen(const ControlMember& member) const { return frozen_.count(member.connection) != 0; }

  // CoordinatorHandler.
  void Send(ConnectionId connection, const control::Envelope& envelope) override;
  void OnRegistered(ConnectionId, const control::Hello&) override {}
  void Close(ConnectionId connection) override;

  void SendToCoordinator(ConnectionId connection, const control::Envelope& envelope);

  Coordinator& coordinator() { return coordinator_; }
  Time now() const { return now_; }
  std::string token;  // that new members have

 private:
  struct Delivery {
    ConnectionId connection;
    bool to_coordinator;
    bool close;
    control::Envelope envelope;
  };

  void Deliver(const Delivery& delivery);
  void TickAll();
  Time NextTimer();

  Logger log_;
  std::mt19937 random_{7};
  Time now_ = 1000 * kSecond;
  Coordinator coordinator_;
  std::vector<std::unique_ptr<ControlMember>> members_;
  std::map<ConnectionId, ControlMember*> connections_;
  std::map<ConnectionId, bool> frozen_;
  std::deque<Delivery> on_the_way_;
  ConnectionId last_connection_ = 0;
};

}  // namespace byteps

#endif  // BYTEPS_TESTS_SERVER_MEMBERSHIP_CONTROL_JOB_H_
