#include "tests/sim/simulated_job.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "gtest/gtest.h"

namespace byteps {
namespace {

sim::FabricOptions FabricOf(const JobOptions& options) {
  sim::FabricOptions fabric;
  fabric.seed = options.seed;
  fabric.link = options.link;
  fabric.endpoint = options.endpoint;
  fabric.down_delay = options.down_delay;
  return fabric;
}

LogOptions LogOf(const JobOptions& options) {
  if (options.warnings != nullptr) {
    const auto note = [](void* to, int32_t, const char*, int32_t, const char* message) {
      static_cast<std::vector<std::string>*>(to)->emplace_back(message);
    };
    return {.level = LogLevel::kWarning, .sink = note, .user = options.warnings};
  }
  const bool all = std::getenv("BYTEPS_SIM_LOG") != nullptr;
  return {.level = all ? LogLevel::kDebug : LogLevel::kFatal, .verbose = all ? 2 : 0};
}

// Sanitizers look at memory and at threads, of which there is one here: for them, some of the seeds are as good as all.
#if defined(__SANITIZE_THREAD__)
constexpr uint64_t kShareOfSeeds = 20;
#elif defined(__SANITIZE_ADDRESS__)
constexpr uint64_t kShareOfSeeds = 10;
#else
constexpr uint64_t kShareOfSeeds = 1;
#endif

}  // namespace

SimulatedJob::SimulatedJob(JobOptions options)
    : options_(std::move(options)), fabric_(FabricOf(options_)), log_(LogOf(options_)) {
  coordinator_ = std::make_unique<SimulatedCoordinator>(&fabric_, options_, &log_);
  for (uint32_t i = 0; i < options_.servers; ++i) {
    servers_.push_back(std::make_unique<SimulatedServer>(&fabric_, options_, i, &log_));
    if (options_.adverse) {
      fabric_.SetLink(servers_.back()->name(), coordinator_->name(), sim::AdverseLink(fabric_.random()));
    }
  }
  AddWorkers();
}

void SimulatedJob::AddWorkers() {
  for (uint32_t i = 0; i < options_.workers; ++i) {
    workers_.push_back(std::make_unique<SimulatedWorker>(&fabric_, options_, i, life_, &log_));
    if (!options_.adverse) continue;
    const std::string& name = workers_.back()->name();
    fabric_.SetLink(name, coordinator_->name(), sim::AdverseLink(fabric_.random()));
    for (const auto& server : servers_) fabric_.SetLink(name, server->name(), sim::AdverseLink(fabric_.random()));
    for (uint32_t j = 0; j < i; ++j) {
      fabric_.SetLink(name, workers_[j]->name(), sim::AdverseLink(fabric_.random()));
    }
  }
}

SimulatedJob::~SimulatedJob() = default;

std::vector<float> SimulatedJob::Sum(const std::vector<std::vector<float>>& inputs) {
  std::vector<float> sum = inputs[0];
  for (size_t rank = 1; rank < inputs.size(); ++rank) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += inputs[rank][i];
  }
  return sum;
}

std::vector<float> SimulatedJob::Numbers(size_t count) {
  std::vector<float> numbers(count);
  for (float& number : numbers) {
    number = static_cast<float>(fabric_.random().Between(-1'000'000, 1'000'000)) /
             static_cast<float>(1 + fabric_.random().Below(100'000));
  }
  return numbers;
}

bool SimulatedJob::Start(Time limit) {
  const auto all = [&](auto&& what) { return std::all_of(workers_.begin(), workers_.end(), what); };
  if (!RunUntil([&] { return all([](const auto& each) { return each->ready() || !each->failure().ok(); }); }, limit)) {
    return false;
  }
  if (all([](const auto& each) { return each->ready(); })) return true;
  std::fprintf(stderr, "sim: the job has not started\n%s", Describe().c_str());
  return false;
}

bool SimulatedJob::RunUntil(const std::function<bool()>& done, Time limit) {
  const Time deadline = fabric_.now() + limit;
  constexpr uint64_t kMostSteps = 20'000'000;
  const uint64_t most = fabric_.stats().steps + kMostSteps;
  const bool reached = fabric_.RunUntil([&] { return done() || fabric_.stats().steps > most; }, deadline) &&
                       fabric_.stats().steps <= most;
  if (!reached) {
    std::fprintf(stderr, "sim: not reached after %.3f s of virtual time and %llu steps\n%s",
                 static_cast<double>(fabric_.now()) * 1e-9, static_cast<unsigned long long>(fabric_.stats().steps),
                 Describe().c_str());
  }
  return reached;
}

bool SimulatedJob::RunUntilEnded(const std::vector<Call*>& calls, Time limit) {
  return RunUntil(
      [&] { return std::all_of(calls.begin(), calls.end(), [](const Call* call) { return call->ended(); }); }, limit);
}

void SimulatedJob::RunFor(Time span) {
  const Time end = fabric_.now() + span;
  bool passed = false;
  fabric_.Timer(end, [&] { passed = true; });
  fabric_.RunUntil([&] { return passed; }, end);
}

void SimulatedJob::Leave() {
  CheckMemory();
  for (const auto& worker : workers_) worker->Leave(10 * kSecond);
  ASSERT_TRUE(RunUntil([&] {
    for (const auto& worker : workers_) {
      if (!worker->left() && worker->failure().ok()) return false;
    }
    return true;
  }));
  for (const auto& worker : workers_) {
    ASSERT_TRUE(worker->failure().ok()) << worker->name() << ": " << worker->failure();
    EXPECT_TRUE(worker->left()->ok()) << worker->name() << ": " << *worker->left();
  }
}

void SimulatedJob::Reopen() {
  Leave();
  for (auto& worker : workers_) retired_.push_back(std::move(worker));
  workers_.clear();
  ++life_;
  AddWorkers();
}

void SimulatedJob::Finish() {
  Leave();
  ASSERT_TRUE(RunUntil([&] {
    for (const auto& server : servers_) {
      if (!server->over() || server->sessions() != 0) return false;
    }
    return true;
  }));
  for (const auto& server : servers_) {
    EXPECT_TRUE(server->failure().ok()) << server->name() << ": " << server->failure();
    for (const auto& lane : server->lanes()) {
      EXPECT_EQ(lane->stats().open, 0u);
      EXPECT_EQ(lane->stats().pool.blocks, 0u) << lane->Describe();
    }
  }
  CheckMemory();
}

void SimulatedJob::CheckMemory() {
  for (const auto* lives : {&workers_, &retired_}) {
    for (const auto& worker : *lives) {
      const std::optional<std::string> touched = worker->Check();
      EXPECT_FALSE(touched.has_value()) << *touched;
    }
  }
}

std::string SimulatedJob::Describe() {
  std::string text;
  for (const std::string& line : coordinator_->coordinator().Describe()) text += "coordinator: " + line + "\n";
  for (const auto& worker : workers_) {
    text += worker->name() + (worker->alive() ? ": " : " (dead): ") + worker->client().Describe() + ", " +
            std::to_string(worker->engine().in_flight()) + " in flight, " +
            (worker->ready() ? "ready" : "not connected to " + worker->engine().missing()) + ", " +
            worker->failure().ToString() + "\n";
  }
  for (const auto& server : servers_) {
    text += server->name() + (server->alive() ? ": " : " (dead): ") + server->client().Describe() + ", " +
            server->failure().ToString() + "\n";
    for (const auto& lane : server->lanes()) text += lane->Describe() + "\n";
  }
  return text;
}

void ForEachSeed(uint64_t count, const std::function<void(uint64_t seed)>& test) {
  count = (count + kShareOfSeeds - 1) / kShareOfSeeds;
  const uint64_t only = sim::SeedOr(0);
  if (const char* more = std::getenv("BYTEPS_SIM_SEEDS")) count = std::strtoull(more, nullptr, 10);
  for (uint64_t seed = only != 0 ? only : 1; seed <= (only != 0 ? only : count); ++seed) {
    test(seed);
    if (::testing::Test::HasFailure()) {
      ADD_FAILURE() << "with seed " << seed << ": replay with BYTEPS_SIM_SEED=" << seed;
      return;
    }
  }
}

}  // namespace byteps
