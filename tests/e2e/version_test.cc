// A member of another version joins a job of real processes: every waiting member hears which member is of which
// version.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "core/wire/wire.h"
#include "tests/e2e/job.h"
#include "tests/server/process/real_job.h"

namespace byteps {
namespace {

class OtherVersion : public testing::TestWithParam<control::Role> {};

TEST_P(OtherVersion, EveryRoleEndsWithOneErrorThatNamesIt) {
  const bool worker = GetParam() == control::WORKER;
  Job job({.workers = 2,
           .hosts = {1, 1},
           .servers = 2,
           .environment = {{"BYTEPS_START_TIMEOUT", "600"}, {"BYTEPS_LOG_LEVEL", "INFO"}, {"BYTEPS_JOB_ID", "job"}},
           .by_hand = true});
  job.StartCoordinator();
  job.StartWorker(0, "sums");
  job.StartServer(0);
  ASSERT_TRUE(job.coordinator().WaitForOutput("member 2 is", kPatience)) << job.Output();
  // In this process: what a later release would say.
  control::Hello hello = LinkMember::MakeHello(GetParam());
  hello.set_release("9.9.9");
  hello.set_wire_version(wire::kVersion + 1);
  hello.set_num_hosts(2);
  hello.set_host_index(worker ? 1 : 0);
  hello.set_num_servers(2);
  if (!worker) hello.set_preferred_rank(1);
  LinkMember other(hello, job.port(), "");
  ASSERT_TRUE(Drive({&other}, [&] { return !other.failure.ok(); })) << job.Output();
  // One that comes too late to be among those that wait.
  if (worker) {
    job.StartServer(1);
  } else {
    job.StartWorker(1, "sums");
  }
  const std::vector<std::string> parts = {
      "a role of another version: ", worker ? "worker host 1 local rank 0 (host " : "server 1 (host ",
      "is BytePS 9.9.9 (control protocol 1, data protocol " + std::to_string(wire::kVersion + 1),
      "the coordinator (host ", "install the same BytePS everywhere"};
  for (ChildProcess* each :
       {&job.worker(0), &job.server(0), worker ? &job.server(1) : &job.worker(1), &job.coordinator()}) {
    const std::optional<int> status = each->Wait(kPatience);
    EXPECT_TRUE(status.has_value() && *status != 0) << job.Output();
    for (const std::string& part : parts)
      EXPECT_NE(each->Output().find(part), std::string::npos) << part << job.Output();
  }
  for (const std::string& part : parts) EXPECT_NE(other.failure_text().find(part), std::string::npos) << part;
}

INSTANTIATE_TEST_SUITE_P(Roles, OtherVersion, testing::Values(control::WORKER, control::SERVER),
                         [](const auto& role) { return role.param == control::WORKER ? "worker" : "server"; });

}  // namespace
}  // namespace byteps
