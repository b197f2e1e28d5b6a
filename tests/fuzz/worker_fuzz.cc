// A worker with two rounds under way, to whom its server (which else does as it should) and a neighbour of its host say
// anything. Every operation ends in its time.
#include <memory>
#include <string>
#include <vector>

#include "tests/core/worker/engine/engine_job.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/rogue.h"

namespace byteps::fuzz {
namespace {

void TalkOfServer(Input input) {
  EngineJobOptions options;
  options.part_elements = 512;
  options.server.inline_bytes = input.Byte() % 2 == 0 ? 64 : 1 << 16;
  options.log.level = LogLevel::kFatal;
  options.fabric = Fabric();
  EngineJob job(options);
  BPS_FUZZ_CHECK(job.Connect());
  std::vector<float> input_a(2000, 1), output_a(2000), input_b(10, 1), output_b(10);
  std::vector<std::shared_ptr<Request>> requests;
  for (int i = 0; !input.empty(); ++i) {
    absl::Status refused;
    if (i % 8 == 0) {
      requests.push_back(job.PushPull(0, "a", input_a, &output_a, &refused));
      requests.push_back(job.PushPull(0, "b", input_b, &output_b, &refused));
    }
    const auto type = static_cast<wire::RecordType>(input.Byte());
    job.servers[0]->Say(EngineJob::WorkerMember(0), type, input.Piece());
    job.RunUntil([] { return false; }, kMillisecond / 20);
  }
  for (const std::shared_ptr<Request>& request : requests) {
    BPS_FUZZ_CHECK(request == nullptr || job.RunUntil([&] { return request->ended(); }));
  }
}

// The worker and one neighbour, which is nothing but a link.
class Host : private EngineHandler {
 public:
  Host() : rogue_(fabric_.Open("rogue", Transports())) {
    const sim::SimTransport opened = fabric_.Open("worker", Transports());
    Transport transport = Transport::Adopt(opened.table, opened.transport);
    const std::string address = *transport.Address(), provider = transport.provider();
    EngineOptions options;
    options.local.release_grace = options.fatal_grace = kMillisecond;
    EngineHandler* handler = this;
    engine_ = std::make_unique<Engine>(options, handler, &log_);
    engine_->UseLocal(FifoScheduler(), std::move(transport), LinkOptions());
    control::Epoch epoch;
    epoch.set_session_id(kSession);
    epoch.set_epoch(1);
    epoch.set_nonce("nonce");
    epoch.set_inline_bytes(1024);
    epoch.add_group_sizes(2);
    epoch.add_local_sizes(2);
    for (uint32_t rank = 0; rank < 2; ++rank) {
      control::Member* member = epoch.add_workers();
      member->set_member(100 + rank);
      member->set_rank(static_cast<int32_t>(rank));
      member->mutable_local()->set_transport("sim");
      member->mutable_local()->set_provider(provider);
      member->mutable_local()->set_address(rank == 0 ? address : rogue_.address());
    }
    BPS_FUZZ_CHECK(engine_->Join(fabric_.now(), epoch, 100).ok());
    rogue_.Meet(fabric_.now(), Spec(101, 100, 1, 2, address));
    // It asks whether its memory can be reached.
    for (int i = 0; i < 100 && !engine_->ready(); ++i) {
      Until([&] { return engine_->ready(); }, kMillisecond);
      const wire::ReachBody reach{1, 0};
      rogue_.Say(1, wire::RecordType::kReach, std::as_bytes(std::span(&reach, 1)));
    }
    BPS_FUZZ_CHECK(engine_->ready());
  }

  void Talk(Input input) {
    std::vector<float> large(5000, 1), small(10, 1);
    std::vector<std::shared_ptr<Request>> requests;
    for (int i = 0; !input.empty() && !failed_; ++i) {
      if (i % 8 == 0) {
        requests.push_back(Submit("a", &large));
        requests.push_back(Submit("b", &small));
      }
      const auto type = static_cast<wire::RecordType>(input.Byte());
      rogue_.Say(1, type, input.Piece());
      Until([] { return false; }, kMillisecond / 20);
    }
    for (const std::shared_ptr<Request>& request : requests) {
      BPS_FUZZ_CHECK(request == nullptr || Until([&] { return request->ended(); }, 60 * kSecond));
    }
  }

 private:
  static sim::EndpointOptions Transports() {
    sim::EndpointOptions options;
    options.flags |= BPS_TRANSPORT_COPY | BPS_TRANSPORT_CHEAP_REG;
    return options;
  }

  std::shared_ptr<Request> Submit(const std::string& name, std::vector<float>* memory) {
    const int64_t shape[] = {static_cast<int64_t>(memory->size())};
    Submission asked;
    asked.tensor = *engine_->tensors().Declare(name, BPS_FLOAT32, shape);
    asked.input = asked.output = reinterpret_cast<std::byte*>(memory->data());
    asked.timeout = kSecond;
    asked.request = std::make_shared<Request>(nullptr, nullptr);
    const std::shared_ptr<Request> request = asked.request;
    if (!engine_->Admit(asked).ok()) return nullptr;
    engine_->Submit(fabric_.now(), asked);
    return request;
  }

  bool Until(const std::function<bool()>& done, Time limit) {
    const Time end = fabric_.now() + limit;
    while (!done()) {
      if (fabric_.now() >= end) return false;
      bool worked = rogue_.Poll(fabric_.now());
      worked = engine_->Poll(fabric_.now()) || worked;
      for (Completion& completion : engine_->TakeCompletions()) completion.Run();
      if (worked) continue;
      Time next = std::min({end, rogue_.NextTimer(), engine_->NextTimer()});
      next = std::max(next, fabric_.now() + 1);
      fabric_.Timer(next, [] {});  // so that a step reaches it
      if (!fabric_.Step()) return false;
    }
    return true;
  }

  void OnDeclare(const std::vector<control::TensorSpec>& tensors) override {
    for (const control::TensorSpec& spec : tensors) {
      control::Assignment assignment;
      *assignment.mutable_tensor() = spec;
      assignment.set_key(uint64_t{spec.name() == "a" ? 1u : 2u} << 16);
      assignment.set_part_elements(5000);
      assignment.add_runs()->set_parts(1);
      engine_->OnAssignment(fabric_.now(), assignment);
    }
  }
  void OnFailed(const absl::Status&) override { failed_ = true; }

  Logger log_{LogOptions{.level = LogLevel::kFatal}};
  sim::SimFabric fabric_{Fabric()};
  Rogue rogue_;
  std::unique_ptr<Engine> engine_;
  bool failed_ = false;
};

}  // namespace
}  // namespace byteps::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  byteps::fuzz::Input input(data, size);
  if (input.Byte() % 2 == 0) {
    byteps::fuzz::TalkOfServer(input);
  } else {
    byteps::fuzz::Host host;
    host.Talk(input);
  }
  return 0;
}
