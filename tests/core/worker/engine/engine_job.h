// engine_job.h - a job of engines and fake servers on one simulated fabric, for tests of the engine.
//
//     EngineJob job({.workers = 2, .servers = 1});
//     ASSERT_TRUE(job.Connect());
//     auto request = job.PushPull(0, "w", input, &output);
//     job.RunUntil([&] { return request->ended(); });
//
// The coordinator's part is played here: keys in order of first declaration, parts dealt out to the servers in turn.
#ifndef BYTEPS_TESTS_CORE_WORKER_ENGINE_ENGINE_JOB_H_
#define BYTEPS_TESTS_CORE_WORKER_ENGINE_ENGINE_JOB_H_

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/log.h"
#include "core/base/status.h"
#include "core/base/time.h"
#include "core/control/control.pb.h"
#include "core/plugin/scheduler.h"
#include "core/worker/engine/engine.h"
#include "gtest/gtest.h"
#include "tests/core/worker/engine/fake_server.h"
#include "transport_plugins/sim/fabric.h"

namespace byteps {

// The fifo plugin, as its own file would give it.
Scheduler FifoScheduler();

struct EngineJobOptions {
  uint32_t workers = 1;
  uint32_t servers = 1;
  FakeServerScript server;
  uint64_t part_elements = 256;  // 1 KiB of float32
  uint64_t inline_bytes = 64;
  uint32_t window_slots = 2;
  uint32_t bounce_blocks = 2;
  uint32_t worker_flags = BPS_TRANSPORT_LOCAL_ANY | BPS_TRANSPORT_CHEAP_REG;
  bool assign = true;        // answer declarations at once
  uint64_t no_cut_from = 0;  // a round from which on there should be another cut, which is refused
  Time fatal_grace = 0;
  const bps_scheduler_plugin* scheduler = nullptr;  // nullptr: fifo
  uint32_t servers_at_home = 0;                     // the first ones share the workers' link
  sim::FabricOptions fabric;
  LogOptions log;
  bool checksum = false;
};

class EngineJob {
 public:
  explicit EngineJob(EngineJobOptions job_options) : options(job_options), fabric(options.fabric) {
    EndpointOptions endpoint;
    endpoint.hello_interval = kMillisecond;
    endpoint.hello_timeout = 5 * kSecond;
    endpoint.ping_interval = kSecond;
    endpoint.peer_timeout = 3 * kSecond;
    options.server.workers = options.workers;
    for (uint32_t s = 0; s < options.servers; ++s) {
      servers.push_back(
          std::make_unique<FakeServer>(&fabric, "server" + std::to_string(s), options.server, endpoint, kSession));
    }
    for (uint32_t w = 0; w < options.workers; ++w) {
      auto worker = std::make_unique<Worker>();
      worker->job = this;
      EngineOptions engine_options;
      engine_options.servers = {options.inline_bytes, 64 * 1024, 2 * kSecond, options.checksum};
      engine_options.fatal_grace = options.fatal_grace;
      EngineHandler* handler = worker.get();
      worker->engine = std::make_unique<Engine>(engine_options, handler, &log);
      sim::EndpointOptions own = options.fabric.endpoint;
      own.flags = options.worker_flags;
      const sim::SimTransport opened = fabric.Open("worker" + std::to_string(w), own);
      Transport transport = Transport::Adopt(opened.table, opened.transport);
      worker->address = *transport.Address();
      CarrierOptions carrier{endpoint, options.window_slots, options.bounce_blocks};
      worker->engine->UseServers(scheduler()).AddCarrier("sim", std::move(transport), carrier);
      workers.push_back(std::move(worker));
    }
  }

  Scheduler scheduler() const {
    if (options.scheduler == nullptr) return FifoScheduler();
    return *Scheduler::Create(*options.scheduler, BPS_DIRECTION_PUSH, nullptr, nullptr);
  }

  // Every member meets every member.
  bool Connect() {
    control::Epoch epoch;
    epoch.set_session_id(kSession);
    epoch.set_epoch(1);
    epoch.set_nonce("nonce");
    epoch.set_slot_bytes(options.server.slot_bytes);
    for (uint32_t w = 0; w < options.workers; ++w) {
      control::Member* member = epoch.add_workers();
      member->set_member(WorkerMember(w));
      member->set_rank(static_cast<int32_t>(w));
      member->mutable_host()->set_id("the workers' link");
    }
    for (uint32_t s = 0; s < options.servers; ++s) {
      control::Member* member = epoch.add_servers();
      member->set_member(1 + s);
      member->set_rank(static_cast<int32_t>(s));
      member->mutable_host()->set_name("host-of-server-" + std::to_string(s));
      member->mutable_host()->set_id(s < options.servers_at_home ? "the workers' link" : "another");
      control::Lane* lane = member->add_lanes();
      lane->set_transport("sim");
      lane->set_address(servers[s]->address());
    }
    for (uint32_t w = 0; w < options.workers; ++w) {
      const absl::Status joined = workers[w]->engine->Join(fabric.now(), epoch, WorkerMember(w));
      EXPECT_TRUE(joined.ok()) << joined;
      for (uint32_t s = 0; s < options.servers; ++s) {
        servers[s]->Add(fabric.now(), 1 + s, 0, WorkerMember(w), w, PeerOf({s, 0}), workers[w]->address);
      }
    }
    return RunUntil([&] {
      for (const auto& worker : workers) {
        if (!worker->engine->ready()) return false;
      }
      return true;
    });
  }

  Tensor* Declare(uint32_t worker, const std::string& name, size_t elements) {
    const int64_t shape[] = {static_cast<int64_t>(elements)};
    return *workers[worker]->engine->tensors().Declare(name, BPS_FLOAT32, shape);
  }

  std::shared_ptr<Request> Submit(uint32_t worker, Submission asked, absl::Status* refused = nullptr) {
    auto request = std::make_shared<Request>(nullptr, nullptr);
    asked.request = request;
    if (asked.timeout == 0) asked.timeout = 10 * kSecond;
    const absl::Status admitted = workers[worker]->engine->Admit(asked);
    if (refused != nullptr) *refused = admitted;
    if (!admitted.ok()) {
      EXPECT_NE(refused, nullptr) << admitted;
      return nullptr;
    }
    workers[worker]->engine->Submit(fabric.now(), asked);
    return request;
  }

  std::shared_ptr<Request> PushPull(uint32_t worker, const std::string& name, const std::vector<float>& input,
                                    std::vector<float>* output, absl::Status* refused = nullptr) {
    Submission asked;
    asked.tensor = Declare(worker, name, input.size());
    asked.input = reinterpret_cast<const std::byte*>(input.data());
    asked.output = reinterpret_cast<std::byte*>(output->data());
    return Submit(worker, asked, refused);
  }

  // Runs everything until `done`, at most 60 seconds of virtual time.
  bool RunUntil(const std::function<bool()>& done, Time limit = 60 * kSecond) {
    const Time deadline = fabric.now() + limit;
    for (;;) {
      bool worked = true;
      while (worked) {
        worked = false;
        for (const auto& server : servers) worked |= server->Poll(fabric.now());
        for (const auto& worker : workers) {
          worked |= worker->engine->Poll(fabric.now());
          for (Completion& completion : worker->engine->TakeCompletions()) completion.Run();
        }
      }
      if (done()) return true;
      if (fabric.now() >= deadline) return false;
      Time next = deadline;
      for (const auto& server : servers) next = std::min(next, server->NextTimer());
      for (const auto& worker : workers) next = std::min(next, worker->engine->NextTimer());
      next = std::max(next, fabric.now() + 1);
      if (alarms_.insert(next).second) fabric.Timer(next, [this, next] { alarms_.erase(next); });
      if (!fabric.Step()) return false;
    }
  }

  struct Worker : EngineHandler {
    EngineJob* job = nullptr;
    std::unique_ptr<Engine> engine;
    std::string address;
    std::vector<absl::Status> failures;
    std::vector<control::TensorSpec> unanswered;

    void OnDeclare(const std::vector<control::TensorSpec>& tensors) override {
      for (const control::TensorSpec& spec : tensors) {
        if (job->options.assign) {
          engine->OnAssignment(job->fabric.now(), job->Assign(spec));
        } else {
          unanswered.push_back(spec);
        }
      }
    }
    void OnFailed(const absl::Status& why) override { failures.push_back(why); }
  };

  control::Assignment Assign(const control::TensorSpec& spec) {
    auto [name, fresh] = name_ids_.try_emplace(spec.name(), name_ids_.size() + 1);
    auto& variants = variants_[spec.name()];
    std::vector<int64_t> shape(spec.shape().begin(), spec.shape().end());
    auto [variant, fresh_variant] = variants.try_emplace(shape, variants.size());
    uint64_t elements = 1;
    for (int64_t extent : shape) elements *= static_cast<uint64_t>(extent);
    const uint64_t parts = elements == 0 ? 1 : (elements + options.part_elements - 1) / options.part_elements;
    control::Assignment assignment;
    *assignment.mutable_tensor() = spec;
    if (spec.from_round() != 0) {
      assignment.set_code(BPS_INTERNAL);
      assignment.set_error("there is no such cut");
      return assignment;
    }
    assignment.set_next_cut(options.no_cut_from);
    assignment.set_key(name->second << 16 | variant->second);
    assignment.set_part_elements(options.part_elements);
    for (uint64_t part = 0; part < parts; ++part) {
      control::Assignment::Run* run = assignment.add_runs();
      run->set_parts(1);
      run->set_server(static_cast<uint32_t>((name->second + part) % options.servers));
    }
    return assignment;
  }

  static constexpr uint64_t kSession = 42;
  static uint32_t WorkerMember(uint32_t worker) { return 100 + worker; }

  EngineJobOptions options;
  Logger log{options.log};
  sim::SimFabric fabric;
  std::vector<std::unique_ptr<FakeServer>> servers;
  std::vector<std::unique_ptr<Worker>> workers;

 private:
  std::map<std::string, uint64_t> name_ids_;
  std::map<std::string, std::map<std::vector<int64_t>, uint64_t>> variants_;
  std::set<Time> alarms_;
};

}  // namespace byteps

#endif  // BYTEPS_TESTS_CORE_WORKER_ENGINE_ENGINE_JOB_H_
