// The coordinator and its members, whole, in one thread and in virtual time: who is refused, and who hears of it.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "server/membership/coordinator.h"
#include "tests/server/membership/control_job.h"
#include "tests/server/membership/control_trio.h"
#include "tests/server/membership/says.h"

namespace byteps {
namespace {

TEST(CoordinatorRefusalTest, AWrongTokenIsRefusedAndDisturbsNoMember) {
  ControlJob job({.token = "secret"});
  ControlMember& good = job.AddWorker({.host = 0, .hosts = 2});
  job.Settle();
  job.token = "guess";
  ControlMember& bad = job.AddWorker({.host = 1, .hosts = 2});
  job.Settle();
  EXPECT_EQ(bad.failure.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_TRUE(Says(bad.failure_text(), {"BYTEPS_JOB_TOKEN", "127.0.0.1"}));
  job.token = "";
  ControlMember& none = job.AddWorker({.host = 1, .hosts = 2});
  job.Settle();
  EXPECT_EQ(none.failure.code(), absl::StatusCode::kUnauthenticated);
  job.token = "secret";
  job.AddWorker({.host = 1, .hosts = 2});
  job.AddServer({});
  job.Settle();
  EXPECT_EQ(good.client().state(), ControlState::kActive);
}

TEST(CoordinatorRefusalTest, WithoutATokenOnlyLoopbackIsServed) {
  ControlJob job;
  control::Hello hello = ControlJob::WorkerHello({});
  ControlMember member(&job, hello, "", job.now());
  job.Connect(member, "10.0.0.9");
  job.Settle();
  EXPECT_EQ(member.failure.code(), absl::StatusCode::kUnauthenticated);
  EXPECT_TRUE(Says(member.failure_text(), {"10.0.0.9", "BYTEPS_JOB_TOKEN", "BYTEPS_ALLOW_UNAUTHENTICATED=1"}));

  ControlJob open({.allow_unauthenticated = true});
  ControlMember other(&open, hello, "", open.now());
  open.Connect(other, "10.0.0.9");
  open.Settle();
  EXPECT_EQ(other.client().state(), ControlState::kGathering);
}

struct Refusal {
  const char* name;
  control::Hello newcomer;
  std::vector<std::string> words;
  absl::StatusCode code = absl::StatusCode::kFailedPrecondition;
  bool everybody = true;  // those that gather are told as well
};

TEST(CoordinatorRefusalTest, AMemberThatDoesNotFitIsRefusedAndThoseThatWaitAreTold) {
  const WorkerSpec fits = {.host = 1, .hosts = 2};
  const auto worker = [&](auto change) {
    control::Hello hello = ControlJob::WorkerHello(fits);
    change(&hello);
    return hello;
  };
  const auto server = [&](auto change) {
    control::Hello hello = ControlJob::ServerHello({});
    change(&hello);
    return hello;
  };
  const std::vector<Refusal> refusals = {
      {"hosts",
       worker([](auto* h) { h->set_num_hosts(3); }),
       {"DMLC_NUM_WORKER", "3 at worker host 1", "2 at worker host 0"}},
      {"servers",
       worker([](auto* h) { h->set_num_servers(2); }),
       {"DMLC_NUM_SERVER", "2 at worker host 1", "1 at worker host 0"}},
      {"transport",
       worker([](auto* h) { h->mutable_lanes(0)->set_transport("verbs"); }),
       {"transport", "verbs", "tcp", "pid 1010", "pid 1000"}},
      {"provider", worker([](auto* h) { h->mutable_lanes(0)->set_provider("x"); }), {"transport", "tcp (x)"}},
      {"asynchronous",
       worker([](auto* h) { h->set_asynchronous(true); }),
       {"BYTEPS_ENABLE_ASYNC", "1 at worker host 1", "0 at worker host 0"}},
      {"staleness",
       worker([](auto* h) { h->set_staleness(3); }),
       {"BYTEPS_STALENESS", "2 at worker host 1", "worker host 0"}},
      {"path", worker([](auto* h) { h->set_collective_path("peers"); }), {"BYTEPS_COLLECTIVE_PATH", "peers"}},
      {"groups", worker([](auto* h) { h->set_groups("none"); }), {"BYTEPS_GROUPS", "none"}},
      {"place",
       worker([](auto* h) {
         h->set_host_index(0);
         h->set_pid(99);
       }),
       {"taken", "DMLC_WORKER_ID=0, BYTEPS_LOCAL_RANK=0 is worker host 0", "pid 99", "pid 1000"},
       absl::StatusCode::kAlreadyExists,
       false},
      {"local size",
       worker([](auto* h) {
         h->set_host_index(0);
         h->set_local_size(4);
         h->set_local_rank(3);
       }),
       {"BYTEPS_LOCAL_SIZE", "4", "1"}},
      {"server's servers",
       server([](auto* h) { h->set_num_servers(3); }),
       {"DMLC_NUM_SERVER", "3 at server", "1 at worker"}},
      {"server's training",
       server([](auto* h) { h->set_asynchronous(true); }),
       {"BYTEPS_ENABLE_ASYNC", "1 at server", "0 at worker"}},
      {"server's transport",
       server([](auto* h) {
         for (auto& l : *h->mutable_lanes()) l.set_transport("efa");
       }),
       {"transport", "efa", "tcp"}},
      {"another job",
       worker([](auto* h) { h->set_job("other"); }),
       {"another job", "other", "job"},
       absl::StatusCode::kFailedPrecondition,
       false},
      {"host index",
       worker([](auto* h) { h->set_host_index(2); }),
       {"DMLC_WORKER_ID=2"},
       absl::StatusCode::kInvalidArgument,
       false},
      {"negative",
       worker([](auto* h) { h->set_local_rank(-1); }),
       {"BYTEPS_LOCAL_RANK=-1"},
       absl::StatusCode::kInvalidArgument,
       false},
      {"no hosts",
       worker([](auto* h) { h->set_num_hosts(0); }),
       {"DMLC_NUM_WORKER=0"},
       absl::StatusCode::kInvalidArgument,
       false},
      {"giant",
       worker([](auto* h) { h->set_num_hosts(INT32_MAX); }),
       {"DMLC_NUM_WORKER"},
       absl::StatusCode::kInvalidArgument,
       false},
      {"no lanes", worker([](auto* h) { h->clear_lanes(); }), {"0 lanes"}, absl::StatusCode::kInvalidArgument, false},
      {"long address",
       worker([](auto* h) { h->mutable_lanes(0)->set_address(std::string(513, 'a')); }),
       {"the address of a lane is too long"},
       absl::StatusCode::kInvalidArgument,
       false},
      {"long job",
       worker([](auto* h) { h->set_job(std::string(257, 'a')); }),
       {"BYTEPS_JOB_ID has 257 bytes; at most 256"},
       absl::StatusCode::kInvalidArgument,
       false},
      {"long host",
       worker([](auto* h) { h->mutable_host()->set_name(std::string(300, 'a')); }),
       {"the host's name has 300 bytes"},
       absl::StatusCode::kInvalidArgument,
       false},
      {"role",
       worker([](auto* h) { h->set_role(control::COORDINATOR); }),
       {"role"},
       absl::StatusCode::kInvalidArgument,
       false},
      {"too many lanes",
       server([](auto* h) {
         while (h->lanes_size() < 65) h->add_lanes()->set_transport("tcp");
       }),
       {"65 lanes"},
       absl::StatusCode::kInvalidArgument,
       false},
      {"no slots",
       server([](auto* h) { h->set_slot_bytes(0); }),
       {"landing slots"},
       absl::StatusCode::kInvalidArgument,
       false},
      {"mixed lanes",
       server([](auto* h) { h->mutable_lanes(1)->set_transport("shm"); }),
       {"different transports"},
       absl::StatusCode::kInvalidArgument,
       false},
  };
  for (const Refusal& refusal : refusals) {
    ControlJob job;
    ControlMember& present = job.AddWorker({.host = 0, .hosts = 2});
    job.Settle();
    ControlMember& newcomer = job.Add(refusal.newcomer);
    job.Settle();
    EXPECT_EQ(newcomer.failure.code(), refusal.code) << refusal.name << ": " << newcomer.failure;
    EXPECT_TRUE(Says(newcomer.failure_text(), refusal.words)) << refusal.name;
    if (refusal.everybody) {
      EXPECT_EQ(present.failure, newcomer.failure) << refusal.name;
    } else {
      EXPECT_TRUE(present.failure.ok()) << refusal.name << ": " << present.failure;
    }
    // Whatever happened, the coordinator goes on.
    if (refusal.everybody) job.AddWorker({.host = 0, .hosts = 2});
    ControlMember& right = job.AddWorker(fits);
    job.AddServer({});
    job.Settle();
    EXPECT_EQ(right.client().state(), ControlState::kActive) << refusal.name << ": " << right.failure;
  }
}

TEST(CoordinatorRefusalTest, WorkersThatNeedNoNetworkAreToldNoDifferentOnes) {
  const auto hello = [](int32_t local_rank, const char* transport) {
    control::Hello worker = ControlJob::WorkerHello({.local_rank = local_rank, .local_size = 3, .servers = 0});
    worker.clear_lanes();
    worker.set_named_transport(transport);
    worker.mutable_local()->set_transport("shm");
    for (std::string* each : {worker.mutable_host()->mutable_boot_id(), worker.mutable_host()->mutable_ipc_namespace(),
                              worker.mutable_host()->mutable_pid_namespace()}) {
      *each = "1";
    }
    return worker;
  };
  ControlJob job;
  ControlMember& any = job.Add(hello(0, ""));
  ControlMember& shm = job.Add(hello(1, "shm"));
  job.Settle();
  EXPECT_TRUE(any.failure.ok() && shm.failure.ok()) << any.failure << shm.failure;
  ControlMember& tcp = job.Add(hello(2, "tcp"));
  job.Settle();
  for (const ControlMember* each : {&any, &shm, &tcp}) {
    EXPECT_TRUE(Says(each->failure_text(), {"the transport differs: tcp at worker host 0 local rank 2",
                                            "shm at worker host 0 local rank 1", "BYTEPS_TRANSPORT"}));
  }
  std::vector<ControlMember*> again;
  for (int32_t rank = 0; rank < 3; ++rank) again.push_back(&job.Add(hello(rank, rank == 1 ? "" : "shm")));
  job.Settle();
  for (ControlMember* each : again) EXPECT_EQ(each->client().state(), ControlState::kActive) << each->failure;
}

TEST(CoordinatorRefusalTest, CountsAreComparedWithTheCoordinatorsOwn) {
  ControlJob job({.num_hosts = 2, .num_servers = 1});
  ControlMember& hosts = job.AddWorker({.host = 0, .hosts = 3});
  ControlMember& servers = job.AddServer({.servers = 2});
  job.Settle();
  EXPECT_TRUE(Says(hosts.failure_text(), {"DMLC_NUM_WORKER", "3 at worker", "2 at the coordinator"}));
  EXPECT_TRUE(Says(servers.failure_text(), {"DMLC_NUM_SERVER", "2 at server", "1 at the coordinator"}));
}

TEST(CoordinatorRefusalTest, NoServersAtTheCoordinatorIsANumberToo) {
  ControlJob job({.num_servers = 0});
  ControlMember& server = job.AddServer({.servers = 1});
  ControlMember& worker = job.AddWorker({.servers = 1});
  job.Settle();
  for (const ControlMember* each : {&server, &worker}) {
    EXPECT_TRUE(Says(each->failure_text(), {"DMLC_NUM_SERVER differs: 1 at ", "0 at the coordinator"}));
  }
}

TEST(CoordinatorRefusalTest, AServerMayKnowTheNumberOfWorkerHosts) {
  const auto server = [](int32_t hosts) {
    control::Hello hello = ControlJob::ServerHello({});
    hello.set_num_hosts(hosts);
    return hello;
  };
  ControlJob with_coordinator({.num_hosts = 1});
  ControlMember& refused = with_coordinator.Add(server(3));
  with_coordinator.Settle();
  EXPECT_TRUE(Says(refused.failure_text(), {"DMLC_NUM_WORKER differs: 3 at server", "1 at the coordinator"}));

  ControlJob with_worker;
  ControlMember& worker = with_worker.AddWorker({.host = 0, .hosts = 2});
  with_worker.Settle();
  ControlMember& other = with_worker.Add(server(3));
  with_worker.Settle();
  EXPECT_TRUE(Says(other.failure_text(), {"DMLC_NUM_WORKER differs: 3 at server", "2 at worker host 0"}));
  EXPECT_EQ(worker.failure, other.failure);

  ControlJob same({.num_hosts = 1});
  same.Add(server(1));
  ControlMember& fits = same.AddWorker({});
  same.Settle();
  EXPECT_EQ(fits.client().state(), ControlState::kActive) << fits.failure;
}

TEST(CoordinatorRefusalTest, BesideASessionANewcomerIsInTheWrongAlone) {
  ControlJob job(ByHand());
  ControlMember& server = job.AddServer({});
  ControlMember& worker = job.AddWorker({});
  job.Settle();
  ControlMember& stranger = job.AddWorker({.session = "other", .transport = "verbs"});
  job.Settle();
  job.Advance(120 * kSecond);
  EXPECT_TRUE(Says(stranger.failure_text(), {"the transport differs"})) << stranger.failure;
  EXPECT_TRUE(server.failure.ok() && worker.failure.ok()) << server.failure << worker.failure;
  EXPECT_FALSE(job.coordinator().over());
}

TEST(CoordinatorRefusalTest, TheCoordinatorMayBeTheOneThatDiffers) {
  CoordinatorOptions options = ByHand();
  options.transport = "Verbs";
  options.self = "the coordinator (host \"c\", 10.0.0.9:9000, pid 5)";
  ControlJob job(options);
  ControlMember& server = job.AddServer({});
  ControlMember& worker = job.AddWorker({});
  job.Settle();
  job.Advance(kSecond);
  for (const ControlMember* each : {&server, &worker}) {
    EXPECT_TRUE(Says(each->failure_text(), {"the transport differs: tcp at server", "Verbs at the coordinator (host"}));
  }
  EXPECT_TRUE(job.coordinator().over());
  EXPECT_EQ(job.coordinator().outcome(), worker.failure);

  options.transport = "TCP";
  ControlJob same(options);
  same.AddServer({});
  ControlMember& right = same.AddWorker({});
  same.Settle();
  EXPECT_EQ(right.client().state(), ControlState::kActive) << right.failure;
}

TEST(CoordinatorRefusalTest, ATransportOfOneHostDoesNotLeadToAnother) {
  ControlJob job;
  const auto hello = [](int32_t host) {
    control::Hello worker = ControlJob::WorkerHello({.host = host, .hosts = 2, .transport = "shm"});
    worker.mutable_lanes(0)->set_provider("shm;host-" + std::to_string(host));
    return worker;
  };
  job.Add(hello(0));
  ControlMember& second = job.Add(hello(1));
  job.Settle();
  EXPECT_TRUE(Says(second.failure_text(), {"the transport shm does not lead from one host to another", "worker host 0",
                                           "worker host 1", "BYTEPS_TRANSPORT to tcp"}));
}

TEST(CoordinatorRefusalTest, AStrangerBesideARunningSessionIsNotRemembered) {
  ControlJob job;
  job.AddServer({});
  ControlMember& worker = job.AddWorker({});
  job.Settle();
  ASSERT_EQ(worker.client().state(), ControlState::kActive) << worker.failure;
  ControlMember& stranger = job.AddWorker({.local_rank = 1, .local_size = 2, .transport = "verbs"});
  job.Settle();
  EXPECT_TRUE(Says(stranger.failure_text(), {"the transport differs"})) << stranger.failure;
  job.Kill(worker);
  job.Settle();
  ControlMember& next = job.AddWorker({});
  job.Settle();
  EXPECT_EQ(next.client().state(), ControlState::kActive) << next.failure;
}

TEST(CoordinatorRefusalTest, OneServerTooManyIsRefused) {
  ControlJob job;
  job.AddServer({});
  ControlMember& second = job.AddServer({});
  job.Settle();
  EXPECT_EQ(second.failure.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(Says(second.failure_text(), {"DMLC_NUM_SERVER=1", "serverhost", "another job",
                                           "beside the coordinator: another DMLC_PS_ROOT_PORT"}));

  ControlMember& worker = job.AddWorker({});
  job.Settle();
  EXPECT_EQ(worker.client().state(), ControlState::kActive) << worker.failure;

  ControlJob two;
  ControlMember& waiting = two.AddWorker({.servers = 2});
  two.AddServer({.servers = 2, .preferred_rank = 0});
  ControlMember& same = two.AddServer({.servers = 2, .preferred_rank = 0});
  two.Settle();
  EXPECT_EQ(same.failure.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(Says(same.failure_text(), {"taken: DMLC_RANK=0 is server 0"}));
  EXPECT_TRUE(waiting.failure.ok()) << waiting.failure;
  two.AddServer({.servers = 2, .preferred_rank = 1});
  two.Settle();
  EXPECT_EQ(waiting.client().state(), ControlState::kActive) << waiting.failure;
}

TEST(CoordinatorRefusalTest, AMemberThatWantsATakenPlaceIsRefusedAloneAndTheSessionStarts) {
  for (const bool by_rank : {false, true}) {
    SCOPED_TRACE(by_rank);
    ControlJob job;
    const auto hello = [&](int32_t host, int32_t rank, int64_t pid) {
      control::Hello made = ControlJob::WorkerHello({.host = host, .hosts = 3});
      if (by_rank) made.set_preferred_rank(rank);
      made.set_pid(pid);
      return made;
    };
    ControlMember& first = job.Add(hello(0, 2, 10));
    job.Settle();
    ControlMember& second = job.Add(by_rank ? hello(1, 2, 20) : hello(0, 2, 20));
    job.Settle();
    EXPECT_EQ(second.failure.code(), absl::StatusCode::kAlreadyExists) << second.failure;
    EXPECT_TRUE(
        Says(second.failure_text(), {by_rank ? "BYTEPS_GLOBAL_RANK=2 is" : "DMLC_WORKER_ID=0", "pid 10", "pid 20"}));
    EXPECT_TRUE(first.failure.ok()) << first.failure;
    // A waiting member hears of it, should no other come.
    job.Advance(kSecond);
    EXPECT_TRUE(Says(first.waiting, {"all workers of host 1", "refused", "pid 20"}));
    // And the session starts when the right ones come.
    ControlMember& third = job.Add(hello(1, 0, 30));
    ControlMember& fourth = job.Add(hello(2, 1, 40));
    job.AddServer({});
    job.Settle();
    for (ControlMember* worker : {&first, &third, &fourth}) {
      EXPECT_EQ(worker->client().state(), ControlState::kActive) << worker->failure;
    }
  }
}

TEST(CoordinatorRefusalTest, ANewcomerDoesNotDisturbARunningSession) {
  ControlJob job;
  Trio trio(&job);
  ControlMember& duplicate = job.AddWorker({.host = 0, .hosts = 2});
  ControlMember& wrong = job.AddWorker({.host = 5, .hosts = 9, .transport = "verbs"});
  ControlMember& server = job.AddServer({.servers = 4});
  job.Settle();
  EXPECT_TRUE(Says(duplicate.failure_text(), {"taken", "rank 0", "pid 1000", "another job", "DMLC_PS_ROOT_PORT"}));
  EXPECT_FALSE(wrong.failure.ok());
  EXPECT_FALSE(server.failure.ok());
  EXPECT_EQ(trio.a.client().state(), ControlState::kActive);
  EXPECT_EQ(trio.server.client().state(), ControlState::kActive);
}

// Two jobs that were told of the same coordinator: those of the second who find no place taken would wait for the
// others of theirs, and the first one could not open its next session beside them.
TEST(CoordinatorRefusalTest, AMemberThatCannotBeOfTheRunningSessionIsRefusedAtOnceAndTheNextOneStarts) {
  for (const auto& [spec, words] : std::vector<std::pair<WorkerSpec, std::vector<std::string>>>{
           {{.host = 0, .hosts = 2, .local_rank = 1, .local_size = 2}, {"BYTEPS_LOCAL_SIZE", "2 at worker host 0"}},
           {{.host = 2, .hosts = 3}, {"DMLC_NUM_WORKER", "3 at worker host 2"}}}) {
    ControlJob job;
    Trio trio(&job);
    ControlMember& stranger = job.AddWorker(spec);
    job.Settle();
    std::vector<std::string> told = words;
    told.insert(told.end(), {"a session is running", "rank 0", "DMLC_PS_ROOT_PORT"});
    EXPECT_TRUE(Says(stranger.failure_text(), told)) << stranger.failure;
    for (ControlMember* each : {&trio.a, &trio.b, &trio.c}) each->client().Goodbye(job.now(), kSecond);
    job.Settle();
    ControlMember& first = job.AddWorker({.host = 0, .hosts = 1});
    job.Settle();
    EXPECT_EQ(first.client().state(), ControlState::kActive) << first.failure;
  }
}

// A member that has left it may open the next one, which may be another: those that are still there will come, too.
TEST(CoordinatorRefusalTest, BesideASessionThatEndsANewcomerIsOfTheNextOne) {
  ControlJob job;
  Trio trio(&job);
  trio.a.client().Goodbye(job.now(), kSecond);
  job.Advance(kSecond);  // left alone: a timeout
  ControlMember& again = job.AddWorker({.host = 0, .hosts = 3});
  job.Settle();
  EXPECT_EQ(again.client().state(), ControlState::kGathering) << again.failure;
  EXPECT_EQ(trio.b.client().state(), ControlState::kActive);
}

TEST(CoordinatorRefusalTest, AnotherVersionIsNamed) {
  ControlJob job;
  ControlMember& member = job.AddWorker({});
  // Its hello, as a later release would send it.
  control::Hello hello = ControlJob::WorkerHello({});
  hello.set_control_version(9);
  hello.set_wire_version(8);
  hello.set_release("9.9.9");
  control::Envelope envelope;
  *envelope.mutable_hello() = hello;
  job.coordinator().OnFrame(job.now(), member.connection, envelope);
  job.Settle();
  EXPECT_TRUE(Says(member.failure_text(), {"another version", "BytePS 9.9.9", "protocol 9", "protocol 8"}));
}

TEST(CoordinatorRefusalTest, AnotherVersionIsToldToAll) {
  for (const bool worker : {true, false}) {
    SCOPED_TRACE(worker);
    ControlJob job(ByHand());
    std::vector<ControlMember*> members = {&job.AddServer({.servers = 2}), &job.AddWorker({.hosts = 2, .servers = 2})};
    job.Settle();
    control::Hello odd = worker ? ControlJob::WorkerHello({.host = 1, .hosts = 2, .servers = 2})
                                : ControlJob::ServerHello({.servers = 2, .preferred_rank = 1});
    odd.set_wire_version(wire::kVersion + 1);
    odd.set_release("9.9.9");
    members.push_back(&job.Add(odd));
    job.Settle();
    members.push_back(worker ? &job.AddServer({.servers = 2}) : &job.AddWorker({.host = 1, .hosts = 2, .servers = 2}));
    job.Settle();
    job.Advance(kSecond);
    const std::string who = worker ? "worker host 1 local rank 0 (host" : "server 1 (host";
    for (const ControlMember* each : members) {
      EXPECT_TRUE(Says(each->failure_text(),
                       {"a role of another version: " + who,
                        "is BytePS 9.9.9 (control protocol 1, data protocol " + std::to_string(wire::kVersion + 1),
                        "the coordinator is BytePS", "install the same BytePS everywhere"}));
      EXPECT_EQ(each->failure, members.front()->failure);
    }
    EXPECT_TRUE(job.coordinator().over());
    EXPECT_EQ(job.coordinator().outcome(), members.front()->failure);
  }
}

TEST(CoordinatorRefusalTest, AStrangerOfAnotherVersionDisturbsNoMember) {
  CoordinatorOptions options = ByHand();
  options.token = "a token";
  ControlJob job(options);
  ControlMember& server = job.AddServer({});
  ControlMember& worker = job.AddWorker({.hosts = 2});
  job.Settle();
  control::Hello odd = ControlJob::WorkerHello({.host = 1, .hosts = 2});
  odd.set_wire_version(wire::kVersion + 1);
  job.token = "another one";
  ControlMember& stranger = job.Add(odd);
  job.Settle();
  job.Advance(kSecond);
  EXPECT_TRUE(Says(stranger.failure_text(), {"another version"})) << stranger.failure;
  EXPECT_TRUE(server.failure.ok() && worker.failure.ok()) << server.failure << worker.failure;
  EXPECT_FALSE(job.coordinator().over());
}

TEST(CoordinatorRefusalTest, AMemberThatCannotTakePartSaysSoToAll) {
  const std::string why = "this host has no RDMA device";
  for (const bool worker : {true, false}) {
    for (const std::string named : {"verbs", "tcp", ""}) {
      SCOPED_TRACE(named + (worker ? " worker" : " server"));
      ControlJob job(ByHand());
      std::vector<ControlMember*> members = {&job.AddServer({.servers = 2}),
                                             &job.AddWorker({.hosts = 2, .servers = 2})};
      job.Settle();
      control::Hello unable = worker ? ControlJob::WorkerHello({.host = 1, .hosts = 2, .servers = 2})
                                     : ControlJob::ServerHello({.servers = 2, .preferred_rank = 1});
      unable.clear_lanes();
      unable.clear_slot_bytes();
      unable.set_named_transport(named);
      unable.set_refusal(why);
      members.push_back(&job.Add(unable));
      job.Settle();
      const std::string who = worker ? "worker host 1 local rank 0 (host" : "server 1 (host";
      for (const ControlMember* each : members) {
        if (named == "verbs") {
          EXPECT_TRUE(Says(each->failure_text(), {"the transport differs: verbs at " + who, "tcp at ",
                                                  "; verbs cannot be used there: " + why}));
        } else {
          EXPECT_TRUE(Says(each->failure_text(), {who, "cannot take part: " + why}));
        }
        EXPECT_EQ(each->failure, members.front()->failure);
      }
    }
  }
}

// What could not be read is as if it were not set: the cause is told, not what comes of it.
TEST(CoordinatorRefusalTest, AMemberThatCouldNotReadItsCountsOrItsPlaceIsNotJudgedByThem) {
  const std::string why = "DMLC_NUM_SERVER=some: a number is expected";
  for (const bool worker : {true, false}) {
    SCOPED_TRACE(worker);
    ControlJob job(ByHand());
    std::vector<ControlMember*> members = {&job.AddServer({.servers = 2}), &job.AddWorker({.hosts = 2, .servers = 2})};
    job.Settle();
    control::Hello unable = worker ? ControlJob::WorkerHello({.host = 5, .hosts = 1}) : ControlJob::ServerHello({});
    unable.clear_lanes();
    unable.clear_slot_bytes();
    unable.set_num_servers(0);
    unable.set_refusal(why);
    members.push_back(&job.Add(unable));
    job.Settle();
    for (const ControlMember* each : members) {
      EXPECT_TRUE(Says(each->failure_text(), {"cannot take part: " + why})) << each->failure;
    }
  }
  // Its place is another member's: that is its own error, and those that wait see it in their list.
  ControlJob job(ByHand());
  ControlMember& waits = job.AddWorker({.hosts = 2, .servers = 2});
  control::Hello unable = ControlJob::WorkerHello({.hosts = 2, .servers = 2});
  unable.set_refusal("DMLC_WORKER_ID=one: a number is expected");
  ControlMember& refused = job.Add(unable);
  job.Settle();
  job.Advance(kSecond);
  EXPECT_TRUE(Says(refused.failure_text(), {"cannot take part: DMLC_WORKER_ID=one"})) << refused.failure;
  EXPECT_TRUE(waits.failure.ok()) << waits.failure;
  std::string missing;
  for (const std::string& each : waits.client().missing()) missing += each + "\n";
  EXPECT_TRUE(Says(missing, {"DMLC_WORKER_ID=one"}));
}

TEST(CoordinatorRefusalTest, AMemberThatSaysNothingIsClosed) {
  ControlJob job;
  job.coordinator().OnOpened(job.now(), 77, "127.0.0.1");
  EXPECT_EQ(job.coordinator().connections(), 1u);
  job.Advance(9 * kSecond);
  EXPECT_EQ(job.coordinator().connections(), 1u);
  job.Advance(2 * kSecond);
  EXPECT_EQ(job.coordinator().connections(), 0u);
}

}  // namespace
}  // namespace byteps
