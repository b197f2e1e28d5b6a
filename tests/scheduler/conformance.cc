#include "tests/scheduler/conformance.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/plugin/plugin_host.h"
#include "core/plugin/scheduler.h"

namespace byteps {
namespace {

constexpr uint64_t kUnbounded = UINT64_MAX;

bps_task MakeTask(uint64_t id, uint32_t peer, uint64_t bytes, int64_t priority = 0, int64_t earliest = 0) {
  bps_task task = {};
  task.struct_size = sizeof(task);
  task.id = id;
  task.tensor = id / 4;
  task.part = static_cast<uint32_t>(id % 4);
  task.order = id / 4;
  task.peer = peer;
  task.bytes = bytes;
  task.priority = priority;
  task.earliest = earliest;
  return task;
}

std::vector<bps_budget> Everything(uint32_t peers) {
  std::vector<bps_budget> budgets;
  for (uint32_t peer = 0; peer < peers; ++peer) budgets.push_back({peer, UINT32_MAX, kUnbounded});
  return budgets;
}

// What the user has asked for: BYTEPS_SCHEDULING_CREDIT, or nothing. Who knows no credit takes no notice.
struct AskedCredit {
  const char* text;
  uint64_t number = 0;  // 0: no bound, or the plugin's own
  bool partitions = false;
};
constexpr AskedCredit kCredits[] = {{nullptr},           {"0"},          {"1", 1, true},   {"3", 3, true},
                                    {"150000B", 150000}, {"64k", 65536}, {"1MiB", 1 << 20}};

struct CreditConfig : PluginConfig {
  explicit CreditConfig(const char* with_credit) : credit(with_credit) {}
  const char* PluginValue(std::string_view name) const override {
    return name == "BYTEPS_SCHEDULING_CREDIT" ? credit : nullptr;
  }
  const char* credit;
};

// A scheduler in the hands of a host that plays by the rules. core/plugin/scheduler.h checks each answer; what it
// reports fails the test.
class Host {
 public:
  Host(const bps_scheduler_plugin& plugin, uint32_t peers, const char* credit = nullptr) : config(credit) {
    absl::StatusOr<Scheduler> made = Scheduler::Create(plugin, BPS_DIRECTION_PUSH, &config, nullptr);
    if (!made.ok()) {
      ADD_FAILURE() << made.status();
      return;
    }
    scheduler.emplace(*std::move(made));
    std::vector<uint32_t> ids(peers);
    for (uint32_t peer = 0; peer < peers; ++peer) ids[peer] = peer;
    scheduler->Peers(ids);
  }

  std::optional<uint64_t> Next(Time now, const std::vector<bps_budget>& budgets) {
    absl::StatusOr<std::optional<Scheduler::Started>> next = scheduler->Next(now, budgets);
    if (!next.ok()) ADD_FAILURE() << next.status();
    if (!next.ok() || !next->has_value()) return std::nullopt;
    return (*next)->id;
  }

  // Starts, sends and completes until next says no.
  std::vector<uint64_t> Drain(Time now, const std::vector<bps_budget>& budgets) {
    std::vector<uint64_t> ids;
    while (std::optional<uint64_t> id = Next(now, budgets)) {
      scheduler->Sent(now, *id);
      scheduler->Complete(now, *id, BPS_OK);
      ids.push_back(*id);
    }
    return ids;
  }

  CreditConfig config;
  std::optional<Scheduler> scheduler;
};

}  // namespace

const bps_scheduler_plugin& SchedulerConformance::Plugin() {
  if (plugin_ == nullptr) {
    EXPECT_EQ(GetParam().entry(PluginHost(), &plugin_), BPS_OK);
    if (plugin_ == nullptr) {
      ADD_FAILURE() << "the entry answered with no descriptor";
      std::abort();
    }
  }
  return *plugin_;
}

std::string SchedulerName(const testing::TestParamInfo<SchedulerUnderTest>& param) { return param.param.name; }

TEST_P(SchedulerConformance, SaysWhatItIs) {
  const bps_scheduler_plugin& plugin = Plugin();
  EXPECT_GE(plugin.struct_size, sizeof(bps_scheduler_plugin));
  EXPECT_EQ(plugin.info.struct_size, sizeof(bps_plugin_info));
  EXPECT_STREQ(plugin.info.kind, "scheduler");
  EXPECT_STREQ(plugin.info.name, GetParam().name);
  EXPECT_STRNE(plugin.info.version, "");
  EXPECT_STRNE(plugin.info.description, "");
}

TEST_P(SchedulerConformance, AnEmptyOneHasNothing) {
  Host host(Plugin(), 2);
  EXPECT_EQ(host.Next(0, Everything(2)), std::nullopt);
  EXPECT_EQ(host.scheduler->WakeAt(0), kNever);
  const bps_scheduler_stats stats = host.scheduler->Stats();
  EXPECT_EQ(stats.queued_tasks + stats.in_flight_tasks, 0u);
  EXPECT_EQ(stats.queued_bytes + stats.in_flight_bytes, 0u);
}

TEST_P(SchedulerConformance, EveryDirectionCanBeCreated) {
  for (int32_t direction : {BPS_DIRECTION_PUSH, BPS_DIRECTION_RESULT, BPS_DIRECTION_LOCAL}) {
    absl::StatusOr<Scheduler> made = Scheduler::Create(Plugin(), direction, nullptr, nullptr);
    EXPECT_TRUE(made.ok()) << made.status();
  }
}

TEST_P(SchedulerConformance, InstancesAreIndependent) {
  Host one(Plugin(), 1), two(Plugin(), 1);
  one.scheduler->Enqueue(0, MakeTask(7, 0, 100));
  EXPECT_EQ(two.Next(0, Everything(1)), std::nullopt);
  EXPECT_EQ(one.Next(0, Everything(1)), 7u);
}

TEST_P(SchedulerConformance, BudgetsAreRespected) {
  Host host(Plugin(), 2);
  host.scheduler->Enqueue(0, MakeTask(1, 0, 100));
  EXPECT_EQ(host.Next(0, {}), std::nullopt);
  EXPECT_EQ(host.Next(0, {{1, 9, kUnbounded}}), std::nullopt);  // another peer
  EXPECT_EQ(host.Next(0, {{0, 0, kUnbounded}}), std::nullopt);  // no task
  EXPECT_EQ(host.Next(0, {{0, 1, 99}}), std::nullopt);          // too few bytes
  EXPECT_EQ(host.Next(0, {{1, 0, 0}, {0, 1, 100}}), 1u);
}

TEST_P(SchedulerConformance, APeerThatIsFullDoesNotStopTheOthers) {
  Host host(Plugin(), 2);
  host.scheduler->Enqueue(0, MakeTask(1, 0, 100));
  host.scheduler->Enqueue(0, MakeTask(2, 1, 100));
  EXPECT_EQ(host.Next(0, {{0, 0, 0}, {1, 1, 1000}}), 2u);
}

// What is on its way to one peer, or of one tensor, holds up no other: a link has two ends, and both are to be busy.
TEST_P(SchedulerConformance, NoPeerWaitsForWhatIsOnItsWay) {
  constexpr uint32_t kPeers = 8;
  Host host(Plugin(), kPeers);
  for (uint64_t id = 0; id < 4 * kPeers; ++id) {
    host.scheduler->Enqueue(0, MakeTask(id, static_cast<uint32_t>(id % kPeers), 64 << 10));
  }
  std::set<uint64_t> peers;
  while (const std::optional<uint64_t> id = host.Next(0, Everything(kPeers))) peers.insert(*id % kPeers);
  EXPECT_EQ(peers.size(), kPeers) << "have something on the way, though nothing was sent";
}

TEST_P(SchedulerConformance, TasksOfZeroBytesGo) {
  Host host(Plugin(), 1);
  host.scheduler->Enqueue(0, MakeTask(1, 0, 0));
  EXPECT_EQ(host.Next(0, {{0, 1, 0}}), 1u);
}

TEST_P(SchedulerConformance, NotBeforeItsTime) {
  Host host(Plugin(), 1);
  host.scheduler->Enqueue(10, MakeTask(1, 0, 100, 0, 50));
  EXPECT_EQ(host.Next(10, Everything(1)), std::nullopt);
  // It says when to ask again: not later than it can go.
  EXPECT_LE(host.scheduler->WakeAt(10), 50);
  EXPECT_EQ(host.Next(49, Everything(1)), std::nullopt);
  host.scheduler->Enqueue(49, MakeTask(2, 0, 100));
  EXPECT_EQ(host.Next(49, Everything(1)), 2u);
  host.scheduler->Sent(49, 2);
  EXPECT_EQ(host.Next(50, Everything(1)), 1u);
}

TEST_P(SchedulerConformance, WithdrawnTasksAreGone) {
  Host host(Plugin(), 1);
  for (uint64_t id = 1; id <= 3; ++id) host.scheduler->Enqueue(0, MakeTask(id, 0, 100, 0, id == 3 ? 20 : 0));
  EXPECT_TRUE(host.scheduler->Withdraw(2));
  EXPECT_TRUE(host.scheduler->Withdraw(3));
  EXPECT_EQ(host.Drain(100, Everything(1)), std::vector<uint64_t>{1});
  const bps_scheduler_stats stats = host.scheduler->Stats();
  EXPECT_EQ(stats.queued_tasks, 0u);
  EXPECT_EQ(stats.queued_bytes, 0u);
}

// A link that fails ends tasks whose bytes never left: their credit must come back.
TEST_P(SchedulerConformance, CompleteWithoutSentGivesEverythingBack) {
  Host host(Plugin(), 1);
  for (uint64_t id = 0; id < 200; ++id) {
    host.scheduler->Enqueue(0, MakeTask(id, 0, 1 << 20));
    const std::optional<uint64_t> next = host.Next(0, Everything(1));
    ASSERT_EQ(next, id);
    host.scheduler->Complete(0, id, BPS_UNAVAILABLE);
  }
  const bps_scheduler_stats stats = host.scheduler->Stats();
  EXPECT_EQ(stats.in_flight_tasks, 0u);
  EXPECT_EQ(stats.in_flight_bytes, 0u);
}

// `complete` may come before or after `sent`: results can overtake the word that the bytes have left. After complete
// the id is never seen again, so a late sent does not reach the plugin at all.
TEST_P(SchedulerConformance, CreditReturnsWithSent) {
  Host host(Plugin(), 1);
  for (uint64_t id = 0; id < 200; ++id) host.scheduler->Enqueue(0, MakeTask(id, 0, 1 << 20));
  std::vector<uint64_t> on_the_wire;
  for (int i = 0; i < 200; ++i) {
    const std::optional<uint64_t> next = host.Next(0, Everything(1));
    ASSERT_TRUE(next.has_value()) << "after " << i << " tasks, all of which were sent";
    host.scheduler->Sent(0, *next);  // none is complete
    on_the_wire.push_back(*next);
  }
  for (uint64_t id : on_the_wire) host.scheduler->Complete(1, id, BPS_OK);
}

TEST_P(SchedulerConformance, OrderOfEqualTasksOfOnePeerIsThatOfArrival) {
  Host host(Plugin(), 1);
  std::vector<uint64_t> order;
  for (uint64_t i = 0; i < 50; ++i) {
    bps_task task = MakeTask(1000 - i, 0, 64);  // ids say nothing
    task.tensor = task.order = 5;
    task.part = static_cast<uint32_t>(i);
    host.scheduler->Enqueue(static_cast<Time>(i), task);
    order.push_back(task.id);
  }
  EXPECT_EQ(host.Drain(100, Everything(1)), order);
}

// One task of the same priority waits while new ones keep coming: it goes within a bounded number of answers.
TEST_P(SchedulerConformance, NothingStarves) {
  Host host(Plugin(), 2);
  uint64_t id = 0;
  host.scheduler->Enqueue(0, MakeTask(id++, 0, 4096));  // the one
  for (int i = 0; i < 8; ++i) host.scheduler->Enqueue(0, MakeTask(id++, 1, 64));
  for (Time now = 1; now <= 64; ++now) {
    const std::optional<uint64_t> next = host.Next(now, Everything(2));
    ASSERT_TRUE(next.has_value());
    if (*next == 0) return;
    host.scheduler->Sent(now, *next);
    host.scheduler->Complete(now, *next, BPS_OK);
    bps_task another = MakeTask(id++, 1, 64);
    another.tensor = another.order = 0;  // declared as early as the one
    host.scheduler->Enqueue(now, another);
  }
  FAIL() << "task 0 was passed over 64 times";
}

// Numbers at their limits order tasks and break nothing.
TEST_P(SchedulerConformance, PrioritiesAndOrdersAtTheirLimits) {
  Host host(Plugin(), 2);
  std::set<uint64_t> all;
  uint64_t id = 0;
  for (int64_t priority : {INT64_MAX, INT64_MIN, int64_t{0}, int64_t{-1}, INT64_MAX, INT64_MIN}) {
    for (uint64_t order : {UINT64_MAX, uint64_t{0}}) {
      for (uint32_t part : {UINT32_MAX, 0u}) {
        bps_task task = MakeTask(UINT64_MAX - id, static_cast<uint32_t>(id % 2), 1 + id % 7, priority);
        task.order = order;
        task.part = part;
        host.scheduler->Enqueue(0, task);
        all.insert(task.id);
        ++id;
      }
    }
  }
  const std::vector<uint64_t> went = host.Drain(0, Everything(2));
  EXPECT_EQ(std::set<uint64_t>(went.begin(), went.end()), all);
  EXPECT_EQ(went.size(), all.size());
}

// A stream of tasks that are more urgent in every respect never ends; the one goes all the same: within a minute where
// no rounds are told, and within five where they are, but no tensor ever comes again.
TEST_P(SchedulerConformance, UrgentOnesDelayOthersButNotForEver) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const uint32_t round = seed % 2;
    const Time limit = round == 0 ? 60 * kSecond : 300 * kSecond;
    std::mt19937 random(seed);
    Host host(Plugin(), 2);
    bps_task patient = MakeTask(1, 0, 50000, INT64_MIN);
    patient.order = UINT64_MAX;
    patient.round = round;
    host.scheduler->Enqueue(0, patient);
    uint64_t id = 2;
    Time now = 0;
    bool went = false;
    const auto another = [&] {
      bps_task task = MakeTask(id++, random() % 2, random() % 100000, 1);
      task.round = round;
      host.scheduler->Enqueue(now, task);
    };
    for (int i = 0; i < 16; ++i) another();
    while (!went && now < limit) {
      now += 1 + random() % (50 * kMillisecond);
      const std::optional<uint64_t> next = host.Next(now, Everything(2));
      ASSERT_TRUE(next.has_value());
      went = *next == patient.id;
      host.scheduler->Sent(now, *next);
      host.scheduler->Complete(now, *next, BPS_OK);
      another();
    }
    ASSERT_TRUE(went) << "task 1 was passed over for " << now / kSecond << " s";
  }
}

// Tensors that are pushed again and again, all of them more urgent: the one goes when they have come round a few times,
// whatever the clock says.
TEST_P(SchedulerConformance, WhatComesRoundAgainAndAgainDoesNotKeepOthers) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const uint64_t tensors = 1 + random() % 300;
    Host host(Plugin(), 2);
    uint64_t id = 2;
    const auto enqueue = [&](uint64_t tensor, uint32_t round, int64_t priority) {
      bps_task task = MakeTask(id++, random() % 2, random() % 100000, priority);
      task.tensor = task.order = tensor;
      task.part = 0;
      task.round = round;
      host.scheduler->Enqueue(0, task);
      return task.id;
    };
    std::map<uint64_t, std::pair<uint64_t, uint32_t>> tasks;  // tensor and round, by id
    const uint64_t patient = enqueue(1'000'000, 1, INT64_MIN);
    for (uint64_t tensor = 0; tensor < tensors; ++tensor) tasks[enqueue(tensor, 1, 1)] = {tensor, 1};
    const uint64_t limit = 16 * tensors + 64;
    uint64_t answers = 0;
    for (;; ++answers) {
      ASSERT_LT(answers, limit) << "passed over by all of " << tensors << " tensors 16 times";
      const std::optional<uint64_t> next = host.Next(0, Everything(2));
      ASSERT_TRUE(next.has_value());
      host.scheduler->Sent(0, *next);
      host.scheduler->Complete(0, *next, BPS_OK);
      if (*next == patient) break;
      const auto [tensor, round] = tasks[*next];
      tasks[enqueue(tensor, round + 1, 1)] = {tensor, round + 1};
    }
  }
}

// A random life: every task that is not withdrawn goes exactly once, within its budget and its time
// (core/plugin/scheduler.h checks), nothing is held back when nothing is in flight and everything fits, and the bytes
// in flight stay within the credit that was asked for (one task may be larger than all of it).
// Every third history has rounds and a rate that all workers have agreed upon, as jobs do, and results that come home
// no faster than that: a scheduler may then hold back for a while what would fit, if it says for how long. So it may at
// the beginning of a burst behind a silence, once it has seen enough of the link: every tenth history is a long one.
TEST_P(SchedulerConformance, RandomHistories) {
  constexpr Time kSilence = 200 * kMillisecond;
  constexpr Time kGently = 60 * kMillisecond;
  uint64_t held_back = 0, held_gently = 0;
  for (uint32_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
    const uint32_t peers = 1 + below(4);
    const AskedCredit& asked = kCredits[below(std::size(kCredits))];
    const char* const credit = asked.text;
    SCOPED_TRACE(std::string("credit ") + (credit == nullptr ? "unset" : credit));
    constexpr int64_t kPriorities[] = {INT64_MIN, -1, 0, 0, 0, 1, INT64_MAX};
    // Tensors of a few parts, and of many.
    const uint32_t parts = below(2) == 0 ? 4 : 60;
    constexpr uint64_t kRate = 24'000'000;
    const bool rounds = seed % 3 == 0;
    const bool passes = rounds || seed % 10 == 0;  // time does
    Host host(Plugin(), peers, credit);
    std::map<uint64_t, bps_task> queued;
    std::vector<uint64_t> started, sent;  // in flight; sent but not complete
    std::set<uint64_t> gone;
    uint64_t enqueued = 0, withdrawn = 0, next_id = 1, largest = 0;
    double busy_until = 0;             // a link of half the rate, with what went
    Time link_until = 0;               // the link itself
    std::map<uint64_t, Time> carried;  // when it has carried what went
    Time last_start = INT64_MIN / 2, gently_until = 0;
    std::map<uint64_t, uint64_t> wire;  // bytes of what is in flight, as counted here
    Time now = 0;
    const auto take = [&](std::vector<uint64_t>& from) {
      const size_t at = below(static_cast<uint32_t>(from.size()));
      const uint64_t id = from[at];
      from.erase(from.begin() + static_cast<std::ptrdiff_t>(at));
      return id;
    };
    const auto complete = [&](uint64_t id) {
      host.scheduler->Complete(now, id, BPS_OK);
      if (rounds) host.scheduler->Agreed(now, kRate);
    };
    // Nothing went, though everything fits and nothing is in flight.
    const auto check_held_back = [&] {
      const bool ready =
          std::any_of(queued.begin(), queued.end(), [&](const auto& each) { return each.second.earliest <= now; });
      if (!ready) return;
      const Time wake = host.scheduler->WakeAt(now);
      EXPECT_TRUE(rounds || now < gently_until) << "held back, though it fits and nothing is in flight";
      if (now < gently_until && wake <= gently_until) {
        ++held_gently;
        return;
      }
      EXPECT_LE(static_cast<double>(wake), busy_until + 1)
          << "held back for longer than a link of half the rate is busy with what went";
      ++held_back;
    };
    const auto start = [&](const std::vector<bps_budget>& budgets) {
      const std::optional<uint64_t> id = host.Next(now, budgets);
      if (!id.has_value()) return false;
      wire[*id] = queued[*id].bytes;
      const uint64_t bytes = std::accumulate(wire.begin(), wire.end(), uint64_t{0},
                                             [](uint64_t sum, const auto& each) { return sum + each.second; });
      const bps_scheduler_stats stats = host.scheduler->Stats();
      EXPECT_EQ(stats.in_flight_bytes, bytes);
      // What it says of its credit is not believed.
      if (asked.number != 0 && GetParam().bounded) {
        EXPECT_EQ(stats.credit_bytes == 0, asked.partitions && largest == 0)
            << "takes no notice of BYTEPS_SCHEDULING_CREDIT";
        if (wire.size() > 1) {
          EXPECT_LE(bytes, asked.partitions ? asked.number * largest : asked.number);
        }
      }
      busy_until =
          std::max(busy_until, static_cast<double>(now)) + static_cast<double>(queued[*id].bytes) * 2e9 / kRate;
      link_until = std::max(link_until, now) + static_cast<Time>(queued[*id].bytes * 1'000'000'000 / kRate);
      carried[*id] = passes ? link_until : now;
      if (now - last_start >= kSilence) gently_until = now + kGently;
      last_start = now;
      EXPECT_EQ(queued.erase(*id), 1u);
      EXPECT_TRUE(gone.insert(*id).second) << "task " << *id << " went twice";
      started.push_back(*id);
      return true;
    };
    const int steps = seed % 10 == 0 ? 20'000 : 400;
    for (int step = 0; step < steps && !HasFailure(); ++step) {
      now += below(20);
      if (passes && below(4) == 0) now += below(5 * kMillisecond);
      if (passes && below(300) == 0) now += below(10) * 100 * kMillisecond;
      switch (below(6)) {
        case 0:
        case 1: {
          const uint64_t id = next_id + below(3);  // ids need not be dense
          next_id = id + 1;
          const Time earliest = below(4) == 0 ? now + below(100) : 0;
          bps_task task = MakeTask(id, below(peers), below(5) == 0 ? 0 : below(100000),
                                   kPriorities[below(std::size(kPriorities))], earliest);
          task.tensor = task.order = id / parts;
          task.part = static_cast<uint32_t>(id % parts);
          if (rounds) {
            task.tensor = task.order = id / 4 % 3;
            task.round = 1 + static_cast<uint32_t>(id / 12);
          }
          host.scheduler->Enqueue(now, task);
          queued[id] = task;
          largest = std::max(largest, task.bytes);
          ++enqueued;
          break;
        }
        case 2:
        case 3: {
          std::vector<bps_budget> budgets;
          for (uint32_t peer = 0; peer < peers; ++peer) {
            if (below(3) != 0) budgets.push_back({peer, below(3), below(150000)});
          }
          std::shuffle(budgets.begin(), budgets.end(), random);
          const bool all = below(4) == 0;
          if (start(all ? Everything(peers) : budgets) || !all || !started.empty()) break;
          check_held_back();
          break;
        }
        case 4:
          if (!started.empty() && below(2) == 0) {
            const uint64_t id = take(started);
            host.scheduler->Sent(now, id);
            wire.erase(id);
            sent.push_back(id);
          } else if (!started.empty() && below(4) == 0) {
            const uint64_t id = take(started);
            host.scheduler->Complete(now, id, BPS_UNAVAILABLE);
            wire.erase(id);
          } else if (!sent.empty()) {
            const uint64_t id = take(sent);
            if (carried[id] <= now) {
              complete(id);
            } else {
              sent.push_back(id);
            }
          }
          break;
        default:
          if (!queued.empty() && below(8) == 0) {
            auto victim = std::next(queued.begin(), below(static_cast<uint32_t>(queued.size())));
            EXPECT_TRUE(host.scheduler->Withdraw(victim->first));
            queued.erase(victim);
            ++withdrawn;
          }
      }
      const bps_scheduler_stats stats = host.scheduler->Stats();
      EXPECT_EQ(stats.queued_tasks, queued.size());
      EXPECT_EQ(stats.in_flight_tasks, started.size());
    }
    // The end: everything comes home, and what is left must go without anything else happening.
    std::set<std::pair<Time, uint64_t>> away;
    const auto send = [&] {
      for (uint64_t id : started) {
        host.scheduler->Sent(now, id);
        away.emplace(carried[id], id);
      }
      started.clear();
      wire.clear();
    };
    for (uint64_t id : sent) away.emplace(carried[id], id);
    send();
    while ((!queued.empty() || !away.empty()) && !HasFailure()) {
      if (start(Everything(peers))) {
        send();
        continue;
      }
      check_held_back();
      const Time wake = host.scheduler->WakeAt(now);
      if (!away.empty() && away.begin()->first <= wake) {
        now = std::max(now, away.begin()->first);
        complete(away.begin()->second);
        away.erase(away.begin());
        continue;
      }
      ASSERT_NE(wake, kNever) << queued.size() << " tasks wait, and nobody will ask again";
      ASSERT_GT(wake, now) << "asks to be woken for nothing";
      now = wake;
    }
    EXPECT_EQ(gone.size() + withdrawn, enqueued);
    if (HasFailure()) return;
  }
  if (std::string_view(GetParam().name) == "credit") {
    EXPECT_GT(held_back, 1000u) << "its pace was not tried";
    EXPECT_GT(held_gently, 1000u) << "nor how it begins behind a silence";
  }
}

}  // namespace byteps
