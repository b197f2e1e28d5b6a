// The coordinator and its members, whole, in one thread and in virtual time: how sessions start, and anything in any
// order.
#include "server/membership/coordinator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "abi/byteps.h"
#include "server/membership/membership.h"
#include "tests/server/membership/control_job.h"
#include "tests/server/membership/control_trio.h"
#include "tests/server/membership/says.h"

namespace byteps {
namespace {

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
  EXPECT_TRUE(Says(worker.waiting,
                   {"all workers of host 0", "all workers of host 2", "worker host 1 local rank 0", "1 of 2 servers"}));
  EXPECT_TRUE(Says(server.waiting, {"1 of 2 servers"}));
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

TEST(CoordinatorTest, OneThatGoesWhileOthersGatherIsMissingAgain) {
  ControlJob job;
  ControlMember& a = job.AddWorker({.host = 0, .hosts = 2});
  ControlMember& b = job.AddWorker({.host = 1, .hosts = 2});
  job.Settle();
  job.Kill(b);
  job.Advance(kSecond);
  EXPECT_TRUE(a.failure.ok());
  EXPECT_TRUE(Says(a.waiting, {"all workers of host 1", "pid 1010", "was here"}));
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
