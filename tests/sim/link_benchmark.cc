// link_benchmark - what schedule, cuts and slots make of links of a known rate, when nothing else costs anything.
//
//     bazel run -c opt //tests/sim:link_benchmark -- workers=4 servers=4 bytes=20000000 rate=23900000
//     bazel run -c opt //tests/sim:link_benchmark -- model=transformer shrink=8 compute=1.32
//
// A whole job on the simulated fabric: each member's link carries `rate` bytes per second each way, processors are free
// (but for `slowness` and `overhead`). So what a round takes beyond bytes / rate is the way of working: filling the
// pipeline, waiting for slots, the wrong bytes first. tools/netlab has the rest: TCP, processors, the kernel's queues.
//
// Prints each round's (each step's) seconds over the least possible; cuts adapt at rounds 2, 4, 8, so look at the last.
// Keys: workers, servers, extra (a server beside each worker, and so many more), lanes, bytes, rate, latency (ns),
// socket (bytes of each connection that the kernel holds, as TCP does, and that count as sent; 0: none),
// partition (0: adapts), slot, slots, scheduler, credit, results (1: BYTEPS_SERVER_ENABLE_SCHEDULE), direct (0: results
// land in lent slots), rounds, slowness (ns), overhead (ns), model, shrink, compute, waits (1: tells what rank 0 waited
// for), links (seconds: tells how busy links were in each such window of the last), seed (the first), seeds, skip
// (rounds that do not count for the last line).

#include <malloc.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "tests/sim/link_job.h"
#include "tests/sim/replay.h"
#include "tests/sim/simulated_job.h"

namespace byteps {
namespace {

using Keys = std::map<std::string, std::string>;

double Number(const Keys& keys, const std::string& name, double otherwise) {
  const auto found = keys.find(name);
  return found == keys.end() ? otherwise : std::strtod(found->second.c_str(), nullptr);
}

double Seconds(Time span) { return static_cast<double>(span) * 1e-9; }

JobOptions OptionsOf(const Keys& keys) {
  const auto workers = static_cast<uint32_t>(Number(keys, "workers", 4));
  const bool colocated = keys.contains("extra");
  const auto servers = colocated ? workers + static_cast<uint32_t>(Number(keys, "extra", 0))
                                 : static_cast<uint32_t>(Number(keys, "servers", 4));
  JobOptions options = LinkJob(workers, servers);
  options.colocated = colocated;
  options.lanes = static_cast<uint32_t>(Number(keys, "lanes", 1));
  options.partition_bytes = static_cast<uint64_t>(Number(keys, "partition", 0));
  options.slot_bytes = static_cast<uint64_t>(Number(keys, "slot", static_cast<double>(options.slot_bytes)));
  options.slots_per_peer = static_cast<uint32_t>(Number(keys, "slots", options.slots_per_peer));
  options.server_memory = uint64_t{256} << 20;
  if (keys.contains("scheduler")) options.scheduler = keys.at("scheduler");
  if (keys.contains("credit")) options.scheduling_credit = keys.at("credit");
  options.schedule_results = Number(keys, "results", 0) != 0;
  options.slowness = static_cast<Time>(Number(keys, "slowness", static_cast<double>(options.slowness)));
  options.endpoint.overhead = static_cast<Time>(Number(keys, "overhead", 500));
  options.endpoint.bytes_per_second = static_cast<uint64_t>(Number(keys, "rate", 23'900'000));
  options.endpoint.socket_bytes = static_cast<uint64_t>(Number(keys, "socket", 0));
  options.link.latency = static_cast<Time>(Number(keys, "latency", static_cast<double>(options.link.latency)));
  if (Number(keys, "direct", 1) == 0) options.endpoint.flags &= ~BPS_TRANSPORT_CHEAP_REG;
  return options;
}

// How much of each window of time each link carried something.
class Links {
 public:
  // The first `beside` servers are beside workers, and share their links.
  Links(double window, uint32_t beside) : window_(static_cast<Time>(window * 1e9)), beside_(beside) {}

  void Add(const std::string& node, bool out, Time begin, Time end) {
    const bool worker = node.starts_with("worker");
    const bool beside = !worker && std::stoul(node.substr(6)) < beside_;
    const std::string kind = worker ? "worker" : beside ? "beside" : "server";
    std::vector<Time>& busy = busy_[kind + (out ? " out" : " in")][node];
    for (Time at = begin; at < end;) {
      const size_t index = static_cast<size_t>(at / window_);
      const Time until = std::min(end, (at / window_ + 1) * window_);
      if (busy.size() <= index) busy.resize(index + 1);
      busy[index] += until - at;
      at = until;
    }
  }

  void Print(Time begin, Time end) const {
    std::printf(
        "  per cent of the time that links were busy, all of a kind (least of them), after so many s of the last:\n");
    for (size_t index = static_cast<size_t>(begin / window_); static_cast<Time>(index) * window_ < end; ++index) {
      std::printf("  %6.3f", Seconds(static_cast<Time>(index) * window_ - begin));
      for (const auto& [kind, nodes] : busy_) {
        double sum = 0, least = 1;
        for (const auto& [node, busy] : nodes) {
          const double share =
              index < busy.size() ? static_cast<double>(busy[index]) / static_cast<double>(window_) : 0;
          sum += share;
          least = std::min(least, share);
        }
        std::printf("  %s %3.0f (%3.0f)", kind.c_str(), 100 * sum / static_cast<double>(nodes.size()), 100 * least);
      }
      std::printf("\n");
    }
  }

 private:
  const Time window_;
  const uint32_t beside_;
  std::map<std::string, std::map<std::string, std::vector<Time>>> busy_;
};

// The seconds of each push_pull of one tensor.
std::vector<double> RunRounds(SimulatedJob* job, size_t elements, int rounds, Time* last) {
  std::vector<double> seconds;
  for (int round = 0; round < rounds; ++round) {
    *last = job->fabric().now();
    std::vector<Call*> calls;
    for (uint32_t rank = 0; rank < job->workers(); ++rank) {
      Ask ask;
      ask.name = "w";
      ask.shape = {static_cast<int64_t>(elements)};
      ask.input.assign(elements * sizeof(float), std::byte{0});
      job->worker(rank).Forget();
      calls.push_back(job->worker(rank).Submit(std::move(ask)));
    }
    if (!job->RunUntilEnded(calls)) return {};
    seconds.push_back(Seconds(job->fabric().now() - *last));
  }
  return seconds;
}

// What no schedule can beat, for one tensor: a link each way for every member, shared where servers are colocated.
double Least(const JobOptions& options, double bytes) {
  const double alone = bytes / static_cast<double>(options.endpoint.bytes_per_second);
  if (!options.colocated) return alone * std::max(1.0, static_cast<double>(options.workers) / options.servers);
  const double n = options.workers, k = options.servers - n;
  return k >= n ? alone : 2 * n * (n - 1) / (n * n + k * n - 2 * k) * alone;
}

int Main(const Keys& keys) {
  const auto first = static_cast<uint64_t>(Number(keys, "seed", 1));
  const auto seeds = static_cast<uint64_t>(Number(keys, "seeds", 1));
  const int rounds = static_cast<int>(Number(keys, "rounds", 12));
  const auto skipped = static_cast<size_t>(Number(keys, "skip", 8));
  const bool replay = keys.contains("model");
  const Model model = !replay ? Model()
                              : ReadModel("tools/models/" + keys.at("model") + ".model", Number(keys, "shrink", 8),
                                          Number(keys, "compute", 0));
  const size_t elements = static_cast<size_t>(Number(keys, "bytes", 20e6)) / sizeof(float);
  JobOptions options = OptionsOf(keys);
  double unit = 1;
  if (replay) {
    const double transfer = Least(options, static_cast<double>(model.bytes()));
    std::printf("computation %.3f s, transfer %.3f s, a step takes at least %.3f s; seconds of steps\n",
                model.forward + model.backward, transfer, model.Bound(transfer / static_cast<double>(model.bytes())));
  } else {
    unit = Least(options, static_cast<double>(elements) * sizeof(float));
    std::printf("least %.4f s; rounds over it\n", unit);
  }
  std::vector<double> all;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    options.seed = seed;
    Links links(Number(keys, "links", 0.05), options.colocated ? options.workers : 0);
    if (keys.contains("links")) {
      options.endpoint.carries = [&](const std::string& node, bool out, Time begin, Time end) {
        links.Add(node, out, begin, end);
      };
    }
    SimulatedJob job(options);
    if (!job.Start()) return 1;
    Time last = 0;
    std::vector<double> seconds;
    if (replay) {
      const std::vector<Time> begins = RunSteps(&job, model, rounds, Number(keys, "waits", 0) != 0);
      for (size_t i = 1; i < begins.size(); ++i) seconds.push_back(Seconds(begins[i] - begins[i - 1]));
      if (!seconds.empty()) last = begins[begins.size() - 2];
    } else {
      seconds = RunRounds(&job, elements, rounds, &last);
    }
    if (seconds.empty()) return 1;
    std::printf("seed %llu:", static_cast<unsigned long long>(seed));
    for (size_t i = 0; i < seconds.size(); ++i) {
      std::printf(" %.3f", seconds[i] / unit);
      if (i >= skipped) all.push_back(seconds[i] / unit);
    }
    std::printf("\n");
    if (keys.contains("links")) links.Print(last, job.fabric().now());
    std::fflush(stdout);
  }
  if (all.empty()) return 0;
  std::sort(all.begin(), all.end());
  const double mean = std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size());
  std::printf("from the %zu. on: mean %.3f, median %.3f, worst %.3f\n", skipped + 1, mean, all[all.size() / 2],
              all.back());
  return 0;
}

}  // namespace
}  // namespace byteps

int main(int argc, char** argv) {
  // Memory of tensors is used again, and not given back to the kernel each time.
  mallopt(M_MMAP_THRESHOLD, 1 << 30);
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  byteps::Keys keys;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const size_t equals = word.find('=');
    if (equals == std::string::npos) return std::fprintf(stderr, "link_benchmark: %s is not key=value\n", argv[i]), 2;
    keys[word.substr(0, equals)] = word.substr(equals + 1);
  }
  return byteps::Main(keys);
}
