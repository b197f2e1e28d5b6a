// The coordinator and its members, whole, in one thread and in virtual time.
#include "server/coordinator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "abi/byteps.h"
#include "core/control_codec.h"
#include "server/membership.h"
#include "tests/server/control_job.h"

namespace byteps {
namespace {

using testing::Test;

::testing::AssertionResult Says(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    if (text.find(part) == std::string::npos) {
      return ::testing::AssertionFailure() << "\"" << part << "\" is not in: " << text;
    }
  }
  return ::testing::AssertionSuccess();
}

std::string Join(const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items) text += item + "; ";
  return text;
}

control::TensorSpec Spec(const std::string& name, std::vector<int64_t> shape, uint32_t dtype = BPS_FLOAT32) {
  control::TensorSpec spec;
  spec.set_name(name);
  spec.set_dtype(dtype);
  for (const int64_t extent : shape) spec.add_shape(extent);
  return spec;
}

// Two hosts with one and two workers, one server: started.
struct Trio {
  explicit Trio(ControlJob* job, const std::string& session = "")
      : server(job->AddServer({})),
        a(job->AddWorker({.host = 0, .hosts = 2, .session = session})),
        b(job->AddWorker({.host = 1, .hosts = 2, .local_rank = 0, .local_size = 2, .session = session})),
        c(job->AddWorker({.host = 1, .hosts = 2, .local_rank = 1, .local_size = 2, .session = session})) {
    job->Settle();
  }
  ControlMember &server, &a, &b, &c;
};

TEST(CoordinatorTest, StartsWhateverTheOrderOfArrival) {
  // Four workers on two hosts of different sizes, two servers: all orders of six arrivals.
  std::vector<int> order = {0, 1, 2, 3, 4, 5};
  do {
    ControlJob job;
    std::vector<ControlMember*> workers(4);
    for (const int each : order) {
      if (each == 0) workers[0] = &job.AddWorker({.host = 0, .hosts = 2, .servers = 2});
      if (each >= 1 && each <= 3) {
        workers[static_cast<size_t>(each)] =
            &job.AddWorker({.host = 1, .hosts = 2, .local_rank = each - 1, .local_size = 3, .servers = 2});
      }
      if (each >= 4) job.AddServer({.servers = 2, .preferred_rank = each - 4, .lanes = each});
    }
    job.Settle();
    for (size_t rank = 0; rank < 4; ++rank) {
      ASSERT_EQ(workers[rank]->epochs.size(), 1u);
      const control::Epoch& epoch = workers[rank]->epochs[0];
      ASSERT_EQ(epoch.workers_size(), 4);
      EXPECT_EQ(epoch.workers(static_cast<int>(rank)).member(), workers[rank]->welcome.member());
      EXPECT_EQ(epoch.workers(static_cast<int>(rank)).rank(), static_cast<int>(rank));
      ASSERT_EQ(epoch.servers_size(), 2);
      EXPECT_EQ(epoch.servers(0).lanes_size(), 4);
      EXPECT_EQ(epoch.servers(1).lanes_size(), 5);
      ASSERT_EQ(epoch.group_sizes_size(), 2);
      EXPECT_EQ(epoch.group_sizes(0), 1u);
      EXPECT_EQ(epoch.group_sizes(1), 3u);
      EXPECT_EQ(epoch.nonce().size(), 16u);
      EXPECT_EQ(epoch.slot_bytes(), 512u << 10);
      EXPECT_EQ(epoch.SerializeAsString(), workers[0]->epochs[0].SerializeAsString());
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(CoordinatorTest, WaitingNamesWhoIsMissing) {
  ControlJob job;
  ControlMember& worker = job.AddWorker({.host = 1, .hosts = 3, .local_rank = 1, .local_size = 2, .servers = 2});
  ControlMember& server = job.AddServer({.servers = 2});
  job.Advance(kSecond);
  EXPECT_TRUE(Says(Join(worker.waiting),
                   {"all workers of host 0", "all workers of host 2", "worker host 1 local rank 0", "1 of 2 servers"}));
  EXPECT_TRUE(Says(Join(server.waiting), {"1 of 2 servers"}));
  // The start timeout of the client names them, too.
  job.Advance(60 * kSecond);
  EXPECT_EQ(worker.failure.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Says(worker.failure_text(), {"127.0.0.1:9000", "worker host 1 local rank 0", "1 of 2 servers"}));
  EXPECT_TRUE(server.failure.ok());
}

TEST(CoordinatorTest, LongListsOfTheMissingAreCut) {
  ControlJob job;
  ControlMember& worker = job.AddWorker({.host = 0, .hosts = 1 << 20});
  job.AddServer({});
  job.Advance(kSecond);
  ASSERT_EQ(worker.waiting.size(), kMaxMissing + 1);
  EXPECT_EQ(worker.waiting.back(), "and 1048559 more");
}

TEST(CoordinatorTest, OneWhoGoesWhileOthersGatherIsMissingAgain) {
  ControlJob job;
  ControlMember& a = job.AddWorker({.host = 0, .hosts = 2});
  ControlMember& b = job.AddWorker({.host = 1, .hosts = 2});
  job.Settle();
  job.Kill(b);
  job.Advance(kSecond);
  EXPECT_TRUE(a.failure.ok());
  EXPECT_TRUE(Says(Join(a.waiting), {"all workers of host 1", "pid 1010", "was here"}));
  ControlMember& again = job.AddWorker({.host = 1, .hosts = 2});
  job.AddServer({});
  job.Settle();
  EXPECT_EQ(a.client().state(), ControlState::kActive);
  EXPECT_EQ(again.client().state(), ControlState::kActive);
}

TEST(CoordinatorTest, AServerThatGoesBeforeTheStartCanBeReplaced) {
  ControlJob job;
  ControlMember& worker = job.AddWorker({.servers = 2});
  ControlMember& first = job.AddServer({.servers = 2, .preferred_rank = 1});
  job.Settle();
  job.Kill(first);
  job.AddServer({.servers = 2});
  job.AddServer({.servers = 2, .preferred_rank = 1});
  job.Settle();
  EXPECT_EQ(worker.client().state(), ControlState::kActive);
}

// ---- Who is refused ----

TEST(CoordinatorTest, AWrongTokenIsRefusedAndDisturbsNobody) {
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

TEST(CoordinatorTest, WithoutATokenOnlyLoopbackIsServed) {
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
  bool everybody = true;  // those who gather are told as well
};

TEST(CoordinatorTest, WhoDoesNotFitIsRefusedAndThoseWhoWaitAreTold) {
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
       {"too long"},
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

TEST(CoordinatorTest, CountsAreComparedWithTheCoordinatorsOwn) {
  ControlJob job({.num_hosts = 2, .num_servers = 1});
  ControlMember& hosts = job.AddWorker({.host = 0, .hosts = 3});
  ControlMember& servers = job.AddServer({.servers = 2});
  job.Settle();
  EXPECT_TRUE(Says(hosts.failure_text(), {"DMLC_NUM_WORKER", "3 at worker", "2 at the coordinator"}));
  EXPECT_TRUE(Says(servers.failure_text(), {"DMLC_NUM_SERVER", "2 at server", "1 at the coordinator"}));
}

TEST(CoordinatorTest, WhoComesLateForAStartThatFailedHearsWhy) {
  ControlJob job;
  ControlMember& first = job.AddWorker({.host = 0, .hosts = 3});
  job.Settle();
  ControlMember& other = job.AddWorker({.host = 1, .hosts = 3, .transport = "verbs"});
  job.Settle();
  EXPECT_TRUE(Says(other.failure_text(), {"the transport differs", "verbs", "tcp"}));
  EXPECT_EQ(first.failure, other.failure);
  job.Advance(20 * kSecond);
  ControlMember& late = job.AddWorker({.host = 2, .hosts = 3});
  job.Settle();
  EXPECT_EQ(late.failure, other.failure);
  // Another session has nothing to do with it.
  ControlMember& elsewhere = job.AddWorker({.host = 2, .hosts = 3, .session = "elsewhere"});
  job.Settle();
  EXPECT_TRUE(elsewhere.failure.ok()) << elsewhere.failure;
  // Started anew, whoever comes first.
  std::vector<ControlMember*> again;
  for (const int host : {2, 0, 1}) again.push_back(&job.AddWorker({.host = host, .hosts = 3}));
  job.AddServer({});
  job.Settle();
  for (ControlMember* worker : again) EXPECT_EQ(worker->client().state(), ControlState::kActive) << worker->failure;
}

TEST(CoordinatorTest, WhoComesMuchLaterIsNoLatecomer) {
  ControlJob job;
  job.AddWorker({.host = 0, .hosts = 3});
  job.AddWorker({.host = 1, .hosts = 3, .transport = "verbs"});
  job.Settle();
  job.Advance(61 * kSecond);
  ControlMember& fresh = job.AddWorker({.host = 2, .hosts = 3});
  job.Settle();
  EXPECT_TRUE(fresh.failure.ok()) << fresh.failure;
}

TEST(CoordinatorTest, WorkersHearOfServersThatDisagreed) {
  ControlJob job;
  job.AddServer({.servers = 2, .preferred_rank = 0});
  ControlMember& wrong = job.AddServer({.servers = 2, .preferred_rank = 1, .transport = "verbs"});
  job.Settle();
  ControlMember& late = job.AddWorker({.servers = 2});
  job.Settle();
  EXPECT_TRUE(Says(wrong.failure_text(), {"the transport differs", "verbs", "tcp"}));
  EXPECT_EQ(late.failure, wrong.failure);
  job.AddServer({.servers = 2, .preferred_rank = 1});
  ControlMember& again = job.AddWorker({.servers = 2});
  job.Settle();
  EXPECT_EQ(again.client().state(), ControlState::kActive) << again.failure;
}

TEST(CoordinatorTest, AStrangerBesideARunningSessionIsNotRemembered) {
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

TEST(CoordinatorTest, OneServerTooManyIsRefused) {
  ControlJob job;
  job.AddServer({});
  ControlMember& second = job.AddServer({});
  job.Settle();
  EXPECT_EQ(second.failure.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_TRUE(Says(second.failure_text(), {"DMLC_NUM_SERVER=1", "serverhost"}));

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

TEST(CoordinatorTest, WhoWantsATakenPlaceIsRefusedAloneAndTheSessionStarts) {
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
    // Who waits hears of it, should nobody else come.
    job.Advance(kSecond);
    EXPECT_TRUE(Says(Join(first.waiting), {"all workers of host 1", "refused", "pid 20"}));
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

TEST(CoordinatorTest, ANewcomerDoesNotDisturbARunningSession) {
  ControlJob job;
  Trio trio(&job);
  ControlMember& duplicate = job.AddWorker({.host = 0, .hosts = 2});
  ControlMember& wrong = job.AddWorker({.host = 5, .hosts = 9, .transport = "verbs"});
  ControlMember& server = job.AddServer({.servers = 4});
  job.Settle();
  EXPECT_TRUE(Says(duplicate.failure_text(), {"taken", "rank 0", "pid 1000"}));
  EXPECT_FALSE(wrong.failure.ok());
  EXPECT_FALSE(server.failure.ok());
  EXPECT_EQ(trio.a.client().state(), ControlState::kActive);
  EXPECT_EQ(trio.server.client().state(), ControlState::kActive);
}

TEST(CoordinatorTest, AnotherVersionIsNamed) {
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

TEST(CoordinatorTest, WhoSaysNothingIsClosed) {
  ControlJob job;
  job.coordinator().OnOpened(job.now(), 77, "127.0.0.1");
  EXPECT_EQ(job.coordinator().connections(), 1u);
  job.Advance(9 * kSecond);
  EXPECT_EQ(job.coordinator().connections(), 1u);
  job.Advance(2 * kSecond);
  EXPECT_EQ(job.coordinator().connections(), 0u);
}

// ---- Ranks and groups ----

TEST(CoordinatorTest, GlobalRanksOverrideThePlaces) {
  ControlJob job;
  ControlMember& a = job.AddWorker({.host = 0, .hosts = 3, .global_rank = 2});
  job.AddWorker({.host = 1, .hosts = 3, .global_rank = 0});
  job.AddWorker({.host = 2, .hosts = 3, .global_rank = 1});
  job.AddServer({});
  job.Settle();
  ASSERT_EQ(a.epochs.size(), 1u);
  EXPECT_EQ(a.epochs[0].workers(2).member(), a.welcome.member());

  for (const auto& [rank, words] : std::map<int, std::string>{{-1, "but not at"}, {7, "there are 2 workers"}}) {
    ControlJob wrong;
    ControlMember& one = wrong.AddWorker({.host = 0, .hosts = 2, .global_rank = 0});
    ControlMember& other = wrong.AddWorker({.host = 1, .hosts = 2, .global_rank = rank});
    wrong.AddServer({});
    wrong.Settle();
    EXPECT_TRUE(Says(one.failure_text(), {"BYTEPS_GLOBAL_RANK", words}));
    EXPECT_EQ(one.failure, other.failure);
  }
}

TEST(CoordinatorTest, ServersAreOrderedByTheHostsThatWereNamed) {
  // By name and by address; one has a rank of its own, one is on a host that was not named.
  const std::vector<std::string> hosts = {"c", "x", "a", "b", "d"};
  std::vector<size_t> arrival = {0, 1, 2, 3, 4};
  do {
    ControlJob job({.ordered_hosts = {"a", "10.0.0.3", "c"}});
    std::vector<ControlMember*> members(hosts.size());
    for (const size_t each : arrival) {
      control::Hello hello = ControlJob::ServerHello({.servers = 5, .preferred_rank = hosts[each] == "d" ? 1 : -1});
      hello.mutable_host()->set_name(hosts[each]);
      hello.mutable_host()->set_address("10.0.0." + std::to_string(each));
      members[each] = &job.Add(hello);
    }
    ControlMember& worker = job.AddWorker({.servers = 5});
    job.Settle();
    ASSERT_EQ(worker.epochs.size(), 1u) << worker.failure;
    std::string order;
    for (const control::Member& server : worker.epochs[0].servers()) order += server.host().name();
    EXPECT_EQ(order, "adbcx");
  } while (std::next_permutation(arrival.begin(), arrival.end()));
}

TEST(CoordinatorTest, GroupsAreHostsOrWhatWasSaid) {
  const auto groups = [](const std::string& text) {
    ControlJob job;
    ControlMember& first = job.AddWorker({.host = 0, .hosts = 2, .local_rank = 0, .local_size = 2, .groups = text});
    job.AddWorker({.host = 0, .hosts = 2, .local_rank = 1, .local_size = 2, .groups = text});
    job.AddWorker({.host = 1, .hosts = 2, .local_rank = 0, .local_size = 2, .groups = text});
    job.AddWorker({.host = 1, .hosts = 2, .local_rank = 1, .local_size = 2, .groups = text});
    job.AddServer({});
    job.Settle();
    std::string sizes;
    if (first.epochs.empty()) return first.failure_text();
    for (const uint32_t size : first.epochs[0].group_sizes()) sizes += std::to_string(size) + " ";
    return sizes;
  };
  EXPECT_EQ(groups(""), "2 2 ");
  EXPECT_EQ(groups("Host"), "2 2 ");
  EXPECT_EQ(groups("none"), "4 ");
  EXPECT_EQ(groups("0-2,3"), "3 1 ");
  EXPECT_EQ(groups("0,1-2,3"), "1 2 1 ");
  for (const char* wrong : {"0-1", "0-1,3", "0-1,1-3", "0-4", "x", "0-1,2-3,", "1-3", "0-,1", "0-1 2-3", "3-0"}) {
    EXPECT_TRUE(Says(groups(wrong), {std::string("BYTEPS_GROUPS=") + wrong, "ranks 0 to 3"})) << wrong;
  }
}

// ---- Deaths ----

TEST(CoordinatorTest, AWorkersDeathIsToldToAllWithItsName) {
  ControlJob job;
  Trio trio(&job);
  const uint64_t session = trio.a.welcome.session_id();
  job.Kill(trio.b);
  for (ControlMember* member : {&trio.a, &trio.c}) {
    EXPECT_EQ(member->failure.code(), absl::StatusCode::kUnavailable);
    EXPECT_TRUE(Says(member->failure_text(), {"worker rank 1", "host1", "10.0.0.1", "pid 1010", "closed"}));
  }
  ASSERT_EQ(trio.server.ended.count(session), 1u);
  EXPECT_TRUE(Says(trio.server.ended[session].ToString(), {"worker rank 1"}));
  EXPECT_TRUE(trio.server.failure.ok());
  EXPECT_EQ(job.coordinator().sessions(), 0u);
  EXPECT_EQ(job.coordinator().connections(), 1u);
}

TEST(CoordinatorTest, ASilentWorkerIsDead) {
  ControlJob job({.heartbeat = kSecond, .peer_timeout = 10 * kSecond});
  Trio trio(&job);
  job.Freeze(trio.c);
  job.Advance(9 * kSecond);
  EXPECT_TRUE(trio.a.failure.ok());
  job.Advance(2 * kSecond);
  EXPECT_TRUE(Says(trio.a.failure_text(), {"worker rank 2", "pid 1011", "silent for 10 s"}));
  EXPECT_TRUE(trio.server.failure.ok());
}

TEST(CoordinatorTest, ManyIdleHoursAreNoSilence) {
  ControlJob job;
  Trio trio(&job);
  job.Advance(3600 * kSecond);
  EXPECT_EQ(trio.a.client().state(), ControlState::kActive);
  EXPECT_EQ(trio.server.client().state(), ControlState::kActive);
}

TEST(CoordinatorTest, AServersDeathFailsEverySession) {
  ControlJob job;
  Trio one(&job, "one");
  ControlMember& other = job.AddWorker({.session = "two"});
  ControlMember& gathering = job.AddWorker({.host = 0, .hosts = 2, .session = "three"});
  job.Settle();
  ASSERT_EQ(other.client().state(), ControlState::kActive);
  job.Kill(one.server);
  for (ControlMember* member : {&one.a, &one.b, &one.c, &other}) {
    EXPECT_TRUE(Says(member->failure_text(), {"server rank 0", "serverhost", "pid 7"}));
  }
  EXPECT_TRUE(gathering.failure.ok());
  job.Advance(kSecond);
  EXPECT_TRUE(Says(Join(gathering.waiting), {"1 of 1 server"}));
  // A new server takes its place.
  job.AddServer({});
  job.AddWorker({.host = 1, .hosts = 2, .session = "three"});
  job.Settle();
  EXPECT_EQ(gathering.client().state(), ControlState::kActive);
}

TEST(CoordinatorTest, OneWhoGivesUpSaysWhy) {
  ControlJob job;
  Trio trio(&job);
  trio.b.client().Fail(job.now(), absl::DataLossError("the disk is full"));
  job.Settle();
  EXPECT_TRUE(Says(trio.a.failure_text(), {"worker rank 1", "gave up", "the disk is full"}));
}

TEST(CoordinatorTest, AServerMayReportALostWorker) {
  ControlJob job;
  Trio trio(&job);
  ControlMember& other = job.AddWorker({.session = "two"});
  job.Settle();
  const uint64_t session = trio.a.welcome.session_id();
  trio.server.client().BreakSession(job.now(), session, trio.b.welcome.member(),
                                    absl::UnavailableError("no answer for 30 s"));
  // Once more, as another lane would; and a session that there is not.
  trio.server.client().BreakSession(job.now(), session, 0, absl::UnavailableError("again"));
  trio.server.client().BreakSession(job.now(), session + 1000, 0, absl::UnavailableError("unknown"));
  job.Settle();
  for (ControlMember* member : {&trio.a, &trio.b, &trio.c}) {
    EXPECT_TRUE(Says(member->failure_text(), {"worker rank 1", "pid 1010", "server rank 0", "no answer for 30 s"}));
  }
  EXPECT_EQ(trio.server.ended.size(), 1u);
  EXPECT_EQ(trio.server.client().state(), ControlState::kActive);
  EXPECT_EQ(other.client().state(), ControlState::kActive);
  EXPECT_EQ(job.coordinator().connections(), 2u);
}

TEST(CoordinatorTest, OneWhoBreaksTheProtocolIsDead) {
  control::Envelope envelope;
  envelope.mutable_epoch();
  ControlJob job;
  Trio trio(&job);
  job.coordinator().OnFrame(job.now(), trio.b.connection, envelope);
  job.Settle();
  EXPECT_TRUE(Says(trio.b.failure_text(), {"does not keep to the protocol", "epoch"}));
  EXPECT_TRUE(Says(trio.a.failure_text(), {"worker rank 1", "does not keep to the protocol"}));
}

TEST(CoordinatorTest, OtherSessionsGoOnWhenOneFails) {
  ControlJob job;
  Trio one(&job, "one");
  ControlMember& other = job.AddWorker({.session = "two"});
  job.Settle();
  job.Kill(one.a);
  EXPECT_FALSE(one.b.failure.ok());
  EXPECT_EQ(other.client().state(), ControlState::kActive);
  EXPECT_EQ(one.server.epochs.size(), 2u);
  EXPECT_EQ(one.server.ended.size(), 1u);
}

// ---- Tensors ----

TEST(CoordinatorTest, TheAnswerToADeclareIsTheSameForEverybody) {
  ControlJob job;
  Trio trio(&job);
  trio.a.client().Declare(job.now(), {Spec("x", {1000, 1000}), Spec("y", {3})});
  job.Settle();
  trio.c.client().Declare(job.now(), {Spec("y", {3}), Spec("x", {1000, 1000}), Spec("x", {10})});
  job.Settle();
  ASSERT_EQ(trio.a.assignments.size(), 2u);
  ASSERT_EQ(trio.c.assignments.size(), 3u);
  EXPECT_EQ(trio.a.assignments[0].SerializeAsString(), trio.c.assignments[1].SerializeAsString());
  EXPECT_EQ(trio.a.assignments[1].SerializeAsString(), trio.c.assignments[0].SerializeAsString());
  const control::Assignment& x = trio.a.assignments[0];
  const control::Assignment& other_shape = trio.c.assignments[2];
  EXPECT_EQ(x.key() >> 16, other_shape.key() >> 16);
  EXPECT_NE(x.key(), other_shape.key());
  EXPECT_NE(x.key() >> 16, trio.a.assignments[1].key() >> 16);
  // One home for all shapes of a name.
  EXPECT_EQ(x.runs(0).server(), other_shape.runs(0).server());
  EXPECT_EQ(x.runs(0).lane(), other_shape.runs(0).lane());
}

// n worker hosts named "w0", "w1", ... with a server each, and k servers on hosts of their own: what each server gets
// of a large tensor, in parts.
std::vector<uint64_t> PartsOfServers(ControlJob* job, int n, int k) {
  ControlMember* worker = nullptr;
  for (int server = 0; server < n + k; ++server) {
    control::Hello hello = ControlJob::ServerHello({.servers = n + k, .preferred_rank = server});
    hello.mutable_host()->set_id((server < n ? "w" : "s") + std::to_string(server));
    job->Add(hello);
  }
  for (int host = 0; host < n; ++host) {
    control::Hello hello = ControlJob::WorkerHello({.host = host, .hosts = n, .servers = n + k});
    hello.mutable_host()->set_id("w" + std::to_string(host));
    worker = &job->Add(hello);
  }
  job->Settle();
  worker->client().Declare(job->now(), {Spec("x", {1 << 20, 100})});
  job->Settle();
  std::vector<uint64_t> parts(static_cast<size_t>(n + k));
  if (worker->assignments.size() != 1) return parts;
  for (const control::Assignment::Run& run : worker->assignments[0].runs()) parts[run.server()] += run.parts();
  return parts;
}

TEST(CoordinatorTest, MixedModeGivesTheSharesOfTheOptimum) {
  // n = 4, k = 2: 6/20 for a dedicated server, 2/20 for a colocated one; 800 parts.
  for (const MixedMode mode : {MixedMode::kAuto, MixedMode::kOn, MixedMode::kOff}) {
    CoordinatorOptions options;
    options.mixed_mode = mode;
    ControlJob job(options);
    const std::vector<uint64_t> parts = PartsOfServers(&job, 4, 2);
    for (size_t server = 0; server < 6; ++server) {
      const double share = mode == MixedMode::kOff ? 1.0 / 6 : server < 4 ? 0.1 : 0.3;
      EXPECT_NEAR(static_cast<double>(parts[server]), 800 * share, 3) << server;
    }
  }
}

TEST(CoordinatorTest, AKeyHashPlacesByNameAndPart) {
  CoordinatorOptions options;
  options.hash.function = KeyHash::Function::kNaive;
  ControlJob job(options);
  // Parts 0, 1, 2, ... of the first name: 9973 is 1 modulo 3.
  ControlMember* worker = nullptr;
  for (int server = 0; server < 3; ++server) job.AddServer({.servers = 3, .preferred_rank = server});
  worker = &job.AddWorker({.servers = 3, .partition_bytes = 1024});
  job.Settle();
  worker->client().Declare(job.now(), {Spec("x", {256 * 6}), Spec("y", {256 * 3})});
  job.Settle();
  ASSERT_EQ(worker->assignments.size(), 2u);
  for (int name = 0; name < 2; ++name) {
    uint32_t part = 0;
    for (const control::Assignment::Run& run : worker->assignments[static_cast<size_t>(name)].runs()) {
      for (uint32_t i = 0; i < run.parts(); ++i, ++part) {
        EXPECT_EQ(run.server(), (static_cast<uint32_t>(name) + part) * 9973 % 3);
      }
    }
    EXPECT_EQ(part, name == 0 ? 6u : 3u);
  }
}

TEST(CoordinatorTest, ServersMayChangeBetweenTwoOpens) {
  ControlJob job;
  job.AddServer({.servers = 2, .preferred_rank = 0, .lanes = 1});
  ControlMember& leaving = job.AddServer({.servers = 2, .preferred_rank = 1, .lanes = 1});
  ControlMember& first = job.AddWorker({.servers = 2});
  job.Settle();
  first.client().Declare(job.now(), {Spec("x", {1 << 20})});
  job.Settle();
  first.client().Goodbye(job.now(), kSecond);
  job.Settle();
  job.Kill(leaving);
  // The next generation waits for a second server, and is placed on those that are there: other lanes, other slots.
  ControlMember& second = job.AddWorker({.servers = 2});
  job.Advance(kSecond);
  EXPECT_TRUE(Says(Join(second.waiting), {"1 of 2 servers"}));
  job.AddServer({.servers = 2, .lanes = 3, .slot_bytes = 128 << 10});
  job.Settle();
  ASSERT_EQ(second.epochs.size(), 1u);
  EXPECT_EQ(second.epochs[0].servers(1).lanes_size(), 3);
  second.client().Declare(job.now(), {Spec("x", {1 << 20})});
  job.Settle();
  ASSERT_EQ(first.assignments.size(), 1u);
  ASSERT_EQ(second.assignments.size(), 1u);
  EXPECT_GT(4 * first.assignments[0].part_elements(), uint64_t{128} << 10);
  EXPECT_LE(4 * second.assignments[0].part_elements(), uint64_t{128} << 10);
  std::set<uint32_t> lanes;
  for (const control::Assignment::Run& run : second.assignments[0].runs()) {
    if (run.server() == 1) lanes.insert(run.lane());
  }
  EXPECT_EQ(lanes.size(), 3u);
}

TEST(CoordinatorTest, SessionsHaveTensorsOfTheirOwn) {
  ControlJob job;
  job.AddServer({});
  ControlMember& one = job.AddWorker({.session = "one", .partition_bytes = 1024});
  ControlMember& two = job.AddWorker({.session = "two"});
  job.Settle();
  one.client().Declare(job.now(), {Spec("a", {100000})});
  two.client().Declare(job.now(), {Spec("a", {100000})});
  job.Settle();
  ASSERT_EQ(one.assignments.size(), 1u);
  ASSERT_EQ(two.assignments.size(), 1u);
  EXPECT_EQ(one.assignments[0].part_elements(), 256u);
  EXPECT_GT(two.assignments[0].part_elements(), 256u);
}

TEST(CoordinatorTest, LongRepliesAreCut) {
  ControlJob job;
  job.AddServer({.lanes = 64});
  ControlMember& worker = job.AddWorker({.partition_bytes = 4});
  job.Settle();
  std::vector<control::TensorSpec> specs;
  for (int i = 0; i < 20; ++i) specs.push_back(Spec("t" + std::to_string(i), {100000}));
  worker.client().Declare(job.now(), specs);
  job.Settle();
  EXPECT_EQ(worker.assignments.size(), 20u);
}

// ---- Barriers ----

TEST(CoordinatorTest, BarriersMeetByNameAndCall) {
  ControlJob job;
  Trio trio(&job);
  trio.a.client().Barrier(job.now(), "x", 10 * kSecond);
  trio.a.client().Barrier(job.now(), "x", 10 * kSecond);
  trio.b.client().Barrier(job.now(), "x", 10 * kSecond);
  trio.b.client().Barrier(job.now(), "y", 10 * kSecond);
  job.Settle();
  EXPECT_TRUE(trio.a.barriers.empty());
  trio.c.client().Barrier(job.now(), "x", 10 * kSecond);
  job.Settle();
  for (ControlMember* member : {&trio.a, &trio.b, &trio.c}) {
    ASSERT_EQ(member->barriers.size(), 1u);
    EXPECT_TRUE(member->barriers.at("x 1").ok());
  }
}

TEST(CoordinatorTest, ABarriersDeadlineNamesWhoIsMissingAndTheSessionGoesOn) {
  ControlJob job;
  Trio trio(&job);
  trio.a.client().Barrier(job.now(), "x", 100 * kSecond);
  job.Advance(kSecond);
  trio.c.client().Barrier(job.now(), "x", 5 * kSecond);
  job.Advance(4 * kSecond);
  EXPECT_TRUE(trio.a.barriers.empty());
  job.Advance(1 * kSecond);
  for (ControlMember* member : {&trio.a, &trio.c}) {
    const absl::Status& status = member->barriers.at("x 1");
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_TRUE(Says(status.ToString(), {"\"x\"", "5 s", "rank 1 (host \"host1\", 10.0.0.1, pid 1010)", "rank 2"}));
  }
  // The late one is told at once, and the next call meets.
  trio.b.client().Barrier(job.now(), "x", 100 * kSecond);
  job.Settle();
  EXPECT_EQ(trio.b.barriers.at("x 1").code(), absl::StatusCode::kDeadlineExceeded);
  for (ControlMember* member : {&trio.a, &trio.b, &trio.c}) member->client().Barrier(job.now(), "x", 5 * kSecond);
  job.Settle();
  for (ControlMember* member : {&trio.a, &trio.b, &trio.c}) EXPECT_TRUE(member->barriers.at("x 2").ok());
}

TEST(CoordinatorTest, ABarrierThatSomebodyCannotMeetFailsAtOnce) {
  ControlJob job;
  Trio trio(&job);
  trio.a.client().Barrier(job.now(), "x", 100 * kSecond);
  trio.b.client().Goodbye(job.now(), 100 * kSecond);
  job.Settle();
  EXPECT_TRUE(Says(trio.a.barriers.at("x 1").ToString(), {"rank 1", "has left", "rank 2"}));
  trio.c.client().Barrier(job.now(), "z", 100 * kSecond);
  job.Settle();
  EXPECT_TRUE(Says(trio.c.barriers.at("z 1").ToString(), {"rank 1", "has left"}));
}

// ---- The end ----

TEST(CoordinatorTest, AServerThatIsToldToEndLeavesInOrder) {
  ControlJob job;
  Trio trio(&job);
  trio.server.client().Goodbye(job.now(), kSecond);
  job.Settle();
  EXPECT_TRUE(trio.server.goodbye.has_value() && trio.server.goodbye->ok());
  EXPECT_TRUE(Says(trio.a.failure_text(), {"server rank 0", "told to end"}));
}

TEST(CoordinatorTest, GoodbyeOfAllEndsTheSessionInOrder) {
  ControlJob job;
  Trio trio(&job);
  const uint64_t session = trio.a.welcome.session_id();
  trio.a.client().Goodbye(job.now(), 10 * kSecond);
  trio.b.client().Goodbye(job.now(), 10 * kSecond);
  job.Advance(5 * kSecond);
  EXPECT_FALSE(trio.a.goodbye.has_value());
  trio.c.client().Goodbye(job.now(), 10 * kSecond);
  job.Settle();
  for (ControlMember* member : {&trio.a, &trio.b, &trio.c}) {
    ASSERT_TRUE(member->goodbye.has_value());
    EXPECT_TRUE(member->goodbye->ok()) << *member->goodbye;
    EXPECT_EQ(member->client().state(), ControlState::kLeft);
    EXPECT_TRUE(member->failure.ok());
  }
  EXPECT_TRUE(trio.server.ended.at(session).ok());
  EXPECT_EQ(trio.server.client().state(), ControlState::kActive);
}

TEST(CoordinatorTest, ALateGoodbyeNamesWhoStays) {
  ControlJob job;
  Trio trio(&job);
  trio.a.client().Goodbye(job.now(), 3 * kSecond);
  job.Advance(3 * kSecond);
  ASSERT_TRUE(trio.a.goodbye.has_value());
  EXPECT_EQ(trio.a.goodbye->code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Says(trio.a.goodbye->ToString(), {"3000 ms", "rank 1", "rank 2", "pid 1011"}));
  // The others go on, and end without it.
  EXPECT_EQ(trio.b.client().state(), ControlState::kActive);
  trio.b.client().Goodbye(job.now(), 3 * kSecond);
  trio.c.client().Goodbye(job.now(), 3 * kSecond);
  job.Settle();
  EXPECT_TRUE(trio.b.goodbye->ok());
  EXPECT_TRUE(trio.c.goodbye->ok());
}

// To the servers it looks like a death; the others hear what it was.
TEST(CoordinatorTest, WhoHasLeftBeforeTheOthersIsNamedWhenItIsMissed) {
  ControlJob job;
  Trio trio(&job);
  trio.a.client().Goodbye(job.now(), kSecond);
  job.Advance(kSecond);
  ASSERT_TRUE(trio.a.goodbye.has_value());
  const uint64_t session = trio.a.welcome.session_id();
  trio.server.client().BreakSession(job.now(), session, trio.a.welcome.member(),
                                    absl::UnavailableError("the connection to rank 0 is lost"));
  job.Settle();
  // Perhaps nobody needs it any more.
  EXPECT_TRUE(trio.b.failure.ok());
  EXPECT_TRUE(trio.c.failure.ok());
  trio.b.client().BreakSession(job.now(), session, 0, absl::UnavailableError("the server says so"));
  job.Settle();
  for (const ControlMember* member : {&trio.b, &trio.c}) {
    EXPECT_TRUE(Says(member->failure_text(), {"worker rank 0", "has left the session before the others"}));
  }
  EXPECT_FALSE(trio.server.ended.at(session).ok());
}

TEST(CoordinatorTest, WhoHasLeftBeforeTheOthersIsNamedToWhoeverWasFasterThanTheServer) {
  ControlJob job;
  Trio trio(&job);
  const uint64_t session = trio.a.welcome.session_id();
  // Of somebody who is there, nothing follows: if he has died, that is seen here.
  trio.c.client().BreakSession(job.now(), session, trio.b.welcome.member(), absl::UnavailableError("lost"));
  job.Settle();
  EXPECT_TRUE(trio.b.failure.ok());
  trio.a.client().Goodbye(job.now(), kSecond);
  job.Advance(kSecond);
  trio.b.client().BreakSession(job.now(), session, 0, absl::UnavailableError("the server says so"));
  job.Settle();
  EXPECT_TRUE(trio.b.failure.ok());
  trio.server.client().BreakSession(job.now(), session, trio.a.welcome.member(),
                                    absl::UnavailableError("the connection to rank 0 is lost"));
  job.Settle();
  EXPECT_TRUE(Says(trio.b.failure_text(), {"worker rank 0", "has left the session before the others"}));
}

TEST(CoordinatorTest, ANeighbourThatHasLeftBeforeTheOthersIsNamedToWhoMissesIt) {
  ControlJob job;
  Trio trio(&job);
  trio.a.client().Goodbye(job.now(), kSecond);
  job.Advance(kSecond);
  trio.b.client().BreakSession(job.now(), trio.a.welcome.session_id(), trio.a.welcome.member(),
                               absl::UnavailableError("the connection to rank 0 is lost"));
  job.Settle();
  for (const ControlMember* member : {&trio.b, &trio.c}) {
    EXPECT_TRUE(Says(member->failure_text(), {"worker rank 0", "has left the session before the others"}));
  }
}

TEST(CoordinatorTest, LeavingAfterGoodbyeIsNoDeath) {
  ControlJob job;
  Trio trio(&job);
  trio.a.client().Goodbye(job.now(), 100 * kSecond);
  job.Settle();
  job.Kill(trio.a);
  EXPECT_TRUE(trio.b.failure.ok());
  trio.b.client().Goodbye(job.now(), 100 * kSecond);
  trio.c.client().Goodbye(job.now(), 100 * kSecond);
  job.Settle();
  EXPECT_TRUE(trio.b.goodbye->ok());
}

TEST(CoordinatorTest, TheNextGenerationMayGatherWhileTheLastOneEnds) {
  ControlJob job;
  Trio trio(&job);
  trio.a.client().Goodbye(job.now(), kSecond);
  job.Advance(kSecond);  // left alone: a timeout
  ControlMember& again = job.AddWorker({.host = 0, .hosts = 2});
  job.Settle();
  EXPECT_EQ(again.client().state(), ControlState::kGathering);
  EXPECT_EQ(again.welcome.generation(), 2u);
  EXPECT_EQ(trio.b.client().state(), ControlState::kActive);
}

TEST(CoordinatorTest, HundredsOfGenerationsLeaveNothingBehind) {
  ControlJob job;
  ControlMember& server = job.AddServer({});
  uint64_t last_session = 0;
  uint32_t last_member = 0;
  for (uint64_t generation = 1; generation <= 300; ++generation) {
    ControlMember& a = job.AddWorker({.local_rank = 0, .local_size = 2});
    ControlMember& b = job.AddWorker({.local_rank = 1, .local_size = 2});
    job.Settle();
    ASSERT_EQ(a.client().state(), ControlState::kActive) << generation << ": " << a.failure;
    EXPECT_EQ(a.epochs[0].generation(), generation);
    EXPECT_GT(a.welcome.session_id(), last_session);
    EXPECT_GT(a.welcome.member(), last_member);
    last_session = a.welcome.session_id();
    last_member = b.welcome.member();
    a.client().Declare(job.now(), {Spec("t", {10})});
    a.client().Barrier(job.now(), "x", 5 * kSecond);
    if (generation % 3 == 0) {
      job.Kill(b);
      EXPECT_FALSE(a.failure.ok());
    } else {
      a.client().Goodbye(job.now(), 5 * kSecond);
      b.client().Goodbye(job.now(), 5 * kSecond);
      job.Settle();
      EXPECT_TRUE(a.goodbye->ok());
    }
    EXPECT_EQ(job.coordinator().sessions(), 0u);
    EXPECT_EQ(job.coordinator().connections(), 1u);
    EXPECT_EQ(server.ended.count(last_session), 1u);
  }
  EXPECT_EQ(server.client().state(), ControlState::kActive);
}

TEST(CoordinatorTest, TheJobEndsWhenNoSessionIsOpenForTheLinger) {
  ControlJob job({.linger = 20 * kSecond});
  ControlMember& server = job.AddServer({});
  job.Advance(1000 * kSecond);
  EXPECT_TRUE(server.job_ended.empty()) << "nobody has come yet";
  for (int life = 0; life < 2; ++life) {
    ControlMember& worker = job.AddWorker({});
    job.Settle();
    job.Advance(100 * kSecond);
    worker.client().Goodbye(job.now(), kSecond);
    job.Advance(19 * kSecond);
    EXPECT_FALSE(job.coordinator().over());
  }
  job.Advance(2 * kSecond);
  EXPECT_TRUE(job.coordinator().over());
  EXPECT_TRUE(Says(server.job_ended, {"20 s"}));
  EXPECT_EQ(server.client().state(), ControlState::kOver);
  EXPECT_EQ(job.coordinator().connections(), 0u);
}

TEST(CoordinatorTest, WithoutLingerLimitItStays) {
  ControlJob job({.linger = kNever});
  ControlMember& server = job.AddServer({});
  ControlMember& worker = job.AddWorker({});
  job.Settle();
  worker.client().Goodbye(job.now(), kSecond);
  job.Advance(36000 * kSecond);
  EXPECT_FALSE(job.coordinator().over());
  EXPECT_TRUE(server.job_ended.empty());
}

TEST(CoordinatorTest, StoppingTellsEverybody) {
  ControlJob job;
  Trio trio(&job);
  job.coordinator().Stop(job.now(), absl::UnavailableError("the coordinator was ended by SIGTERM"));
  job.Settle();
  EXPECT_TRUE(Says(trio.a.failure_text(), {"SIGTERM"}));
  EXPECT_TRUE(Says(trio.server.job_ended, {"SIGTERM"}));
  EXPECT_TRUE(job.coordinator().over());
  EXPECT_EQ(job.coordinator().NextTimer(), kNever);
}

// ---- Anything, in any order ----

TEST(CoordinatorTest, NothingIsLostInARandomLife) {
  for (uint32_t seed = 0; seed < 100; ++seed) {
    std::mt19937 random(seed);
    ControlJob job({.heartbeat = kSecond, .peer_timeout = 5 * kSecond});
    std::vector<ControlMember*> members;
    for (int step = 0; step < 60; ++step) {
      const uint32_t what = random() % 10;
      ControlMember* some = members.empty() ? nullptr : members[random() % members.size()];
      if (what < 4) {
        members.push_back(&job.AddWorker({.host = static_cast<int32_t>(random() % 2), .hosts = 2}));
      } else if (what == 4) {
        members.push_back(&job.AddServer({}));
      } else if (some == nullptr || some->connection == 0) {
        job.Advance(random() % (3 * kSecond));
      } else if (what == 5) {
        job.Kill(*some);
      } else if (what == 6) {
        job.Freeze(*some);
      } else if (what == 7) {
        some->client().Goodbye(job.now(), random() % (4 * kSecond));
      } else if (what == 8) {
        some->client().Barrier(job.now(), "b", random() % (4 * kSecond));
        some->client().Declare(job.now(), {Spec("t", {5})});
      } else {
        some->client().Fail(job.now(), absl::InternalError("enough"));
      }
      if (random() % 2 == 0) job.Settle();
    }
    // All workers have a deadline, a death or an end.
    job.Advance(120 * kSecond);
    for (ControlMember* member : members) {
      if (member->connection == 0 || job.IsFrozen(*member)) continue;
      EXPECT_EQ(member->client().state(), ControlState::kActive)
          << "seed " << seed << ": " << member->client().Describe();
    }
  }
}

TEST(CoordinatorTest, WhateverAMemberSaysOthersAreServed) {
  for (uint32_t seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    ControlJob job;
    Trio trio(&job, "good");
    std::vector<ControlMember*> liars;
    for (int step = 0; step < 60; ++step) {
      if (liars.empty() || liars.back()->connection == 0) {
        liars.push_back(&job.AddWorker({.session = "bad"}));
        job.Settle();
      }
      control::Envelope envelope;
      const auto number = [&] { return static_cast<int64_t>(random()) << (random() % 33) >> (random() % 60); };
      switch (random() % 8) {
        case 0:
          for (uint32_t i = random() % 5; i > 0; --i) {
            control::TensorSpec& spec = *envelope.mutable_declare_request()->add_tensors();
            spec.set_name(std::string(random() % 3, 'n'));
            spec.set_dtype(random() % 2 == 0 ? BPS_FLOAT32 : random());
            for (uint32_t d = random() % 4; d > 0; --d) spec.add_shape(number() % 100000);
          }
          break;
        case 1:
          envelope.mutable_barrier_request()->set_name(std::string(random() % 3, 'b'));
          envelope.mutable_barrier_request()->set_sequence(static_cast<uint64_t>(number()));
          envelope.mutable_barrier_request()->set_timeout_ms(number());
          break;
        case 2:
          envelope.mutable_goodbye()->set_timeout_ms(number());
          break;
        case 3:
          envelope.mutable_failure()->set_session_id(trio.a.welcome.session_id());
          envelope.mutable_failure()->set_member(trio.a.welcome.member());
          break;
        case 4:
          envelope.mutable_heartbeat()->set_sequence(static_cast<uint64_t>(number()));
          break;
        case 5:
          *envelope.mutable_hello() = ControlJob::WorkerHello({.session = "good"});
          break;
        case 6:
          envelope.mutable_goodbye_reply();
          break;
        default:
          break;
      }
      job.coordinator().OnFrame(job.now(), liars.back()->connection, envelope);
      if (random() % 4 == 0) job.Advance(random() % kSecond);
      job.Settle();
    }
    for (ControlMember* member : {&trio.a, &trio.b, &trio.c, &trio.server}) {
      EXPECT_EQ(member->client().state(), ControlState::kActive) << "seed " << seed << ": " << member->failure;
    }
  }
}

}  // namespace
}  // namespace byteps
