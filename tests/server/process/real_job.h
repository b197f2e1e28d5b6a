// real_job.h - members and a coordinator for tests that run byteps_server: real processes, real connections.
//
//     CoordinatorProcess coordinator;                          // on a socket that it inherits
//     LinkMember worker(control::WORKER, coordinator.port);    // in the test's own process
//     ASSERT_TRUE(Drive({&worker}, [&] { return !worker.epochs.empty(); }));
//
// The program is named by the variable BYTEPS_SERVER.
#ifndef BYTEPS_TESTS_SERVER_PROCESS_REAL_JOB_H_
#define BYTEPS_TESTS_SERVER_PROCESS_REAL_JOB_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/base/unique_fd.h"
#include "core/control/control_link.h"
#include "tests/server/process/child_process.h"

namespace byteps {

// Until a test gives up; nothing that works comes near it.
inline constexpr Time kPatience = 60 * kSecond;
// Until something that is told "at once" must be told: no timeout of a job is as short.
inline constexpr Time kAtOnce = 10 * kSecond;

int PortOf(const UniqueFd& listener);
// A port that is free, and that the kernel gives to no call that asks for any: so it stays free.
int FreePort();
// The path of byteps_server.
std::string ServerProgram();

// A member on a real connection, and what it was told.
class LinkMember final : public ControlHandler {
 public:
  static control::Hello MakeHello(control::Role role, int32_t local_rank = 0, int32_t local_size = 1);

  LinkMember(control::Hello hello, int port, const std::string& token, Time start_timeout = kPatience,
             const std::string& host = "127.0.0.1");
  LinkMember(control::Role role, int port, const std::string& token = "", Time start_timeout = kPatience)
      : LinkMember(MakeHello(role), port, token, start_timeout) {}

  void Send(const control::Envelope& envelope) override { link_->Send(envelope); }
  void OnEpoch(const control::Epoch& epoch) override { epochs.push_back(epoch); }
  void OnBarrier(const std::string&, uint64_t, const absl::Status& status) override { barriers.push_back(status); }
  void OnGoodbye(const absl::Status& status) override { goodbyes.push_back(status); }
  void OnFailure(const absl::Status& fatal) override { failure = fatal; }
  void OnJobEnded(const std::string& reason) override { job_ended = reason; }

  ControlLink& link() { return *link_; }
  const ControlLink& link() const { return *link_; }
  ControlClient& client() { return link_->client(); }
  ControlState state() const { return link_->client().state(); }
  std::string failure_text() const { return std::string(failure.message().data(), failure.message().size()); }
  // As if its process had been killed.
  void Vanish() { link_.reset(); }
  bool vanished() const { return link_ == nullptr; }

  std::vector<control::Epoch> epochs;
  std::vector<absl::Status> barriers, goodbyes;
  absl::Status failure;
  std::string job_ended;

 private:
  std::unique_ptr<ControlLink> link_;
};

// Drives members until `done`; false at the deadline.
bool Drive(const std::vector<LinkMember*>& members, const std::function<bool()>& done, Time timeout = kPatience);
bool AllAre(const std::vector<LinkMember*>& members, ControlState state);

// The coordinator of the job "job" on a socket that it inherits, as a launcher starts it.
class CoordinatorProcess {
 public:
  // With one more variable.
  explicit CoordinatorProcess(const std::string& name = "", const std::string& value = "");

  int port = 0;
  std::unique_ptr<ChildProcess> child;
};

}  // namespace byteps

#endif  // BYTEPS_TESTS_SERVER_PROCESS_REAL_JOB_H_
