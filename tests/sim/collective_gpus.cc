#include "tests/sim/collective_gpus.h"

#include <cstring>
#include <stdexcept>
#include <string>

#include "abi/byteps.h"
#include "core/base/log.h"
#include "core/plugin/plugin_host.h"
#include "core/worker/device/pinned_stock.h"
#include "core/worker/device/staged_collectives.h"
#include "core/worker/memory/buffer.h"
#include "device_plugins/fake/control.h"

extern "C" int32_t bps_device_plugin_v1_fake(const bps_plugin_host* host, const bps_device_plugin** plugin);

namespace byteps {
namespace {

absl::StatusOr<const bps_device_plugin*> FindFake() {
  const bps_device_plugin* plugin = nullptr;
  bps_device_plugin_v1_fake(PluginHost(), &plugin);
  return plugin;
}

void Check(int32_t code) {
  if (code != BPS_OK) throw std::runtime_error("the trainer's own call failed: " + std::to_string(code));
}

const Logger& Quiet() {
  LogOptions options;
  options.level = LogLevel::kFatal;
  static const Logger log(options);
  return log;
}

const bps_device_table& Table() { return *bps_fake_gpu()->table; }

}  // namespace

CollectiveGpus::CollectiveGpus(SimulatedJob* job, uint64_t seed)
    : job_(job), random_(seed), gpus_(std::make_shared<Gpus>(FindFake, nullptr, &Quiet())) {
  for (uint32_t rank = 0; rank < job->workers(); ++rank) {
    Worker& worker = workers_.emplace_back();
    bps_device_open_args args = {};
    args.struct_size = sizeof args;
    args.index = static_cast<int32_t>(rank);
    Check(Table().open(&args, &worker.device, nullptr));
    Check(Table().stream_create(worker.device, 0, &worker.stream, nullptr));
    Check(Table().stream_create(worker.device, 0, &worker.output_stream, nullptr));
    worker.lanes = std::make_shared<GpuLanes>(gpus_);
    auto stock = std::make_shared<PinnedStock>(std::make_shared<BufferTable>());
    job->worker(rank).engine().collectives()->UseCopies(
        std::make_unique<StagedCollectives>(worker.lanes, std::move(stock), &Quiet()));
  }
}

CollectiveGpus::~CollectiveGpus() {
  for (const Worker& worker : workers_) Table().close(worker.device);
}

void CollectiveGpus::Hold(uint32_t rank, const int32_t* go, bool outputs) {
  const Worker& worker = workers_[rank];
  Check(bps_fake_gpu()->hold(static_cast<int32_t>(rank), outputs ? worker.output_stream : worker.stream, go));
}

void* CollectiveGpus::Place(const Worker& worker, bps_device_stream stream, int32_t type, const std::byte* bytes,
                            uint64_t size) {
  void *fresh = nullptr, *base = nullptr;
  Check(Table().allocate_host(worker.device, size, &fresh, nullptr));
  std::memcpy(fresh, bytes, size);
  if (type == BPS_CUDA) {
    Check(Table().allocate(worker.device, size, &base, nullptr));
    Check(Table().copy_to_device(worker.device, base, fresh, size, stream, nullptr));
    return base;
  }
  void* passing = nullptr;
  Check(Table().allocate(worker.device, size, &passing, nullptr));
  Check(Table().allocate_host(worker.device, size, &base, nullptr));
  Check(Table().copy_to_device(worker.device, passing, fresh, size, stream, nullptr));
  Check(Table().copy_to_host(worker.device, base, passing, size, stream, nullptr));
  return base;
}

void CollectiveGpus::Move(uint32_t rank, Collective* asked) {
  const Worker& worker = workers_[rank];
  const auto draw = [&]() -> Device {
    const int32_t id = static_cast<int32_t>(rank);
    if (all_ || random_.Chance(0.6)) return {BPS_CUDA, id};
    return random_.Chance(0.3) ? Device{BPS_CUDA_HOST, id} : Device();
  };
  if (asked->kind == CollectiveKind::kSparseAllReduce) return;
  const uint64_t bytes = asked->bytes();
  const bool gives = GivesInput(*asked, static_cast<int32_t>(rank)) && bytes != 0 && asked->input != nullptr;
  const bool gets = GetsOutput(*asked, static_cast<int32_t>(rank)) && asked->capacity != 0;
  Device input, output;
  const bool in_place = gets && asked->output == asked->input;
  if (gives) input = draw();
  if (gets) output = in_place ? input : draw();
  if (!Gpus::Concerns(input) && !Gpus::Concerns(output)) return;
  const bool apart = apart_.has_value() ? *apart_ : random_.Chance(0.4);
  const bps_device_stream output_stream = apart ? worker.output_stream : worker.stream;
  if (Gpus::Concerns(input)) {
    asked->input = static_cast<const std::byte*>(Place(worker, worker.stream, input.type, asked->input, bytes));
    if (in_place) asked->output = const_cast<std::byte*>(asked->input);
  }
  if (Gpus::Concerns(output) && !in_place) {
    asked->output = static_cast<std::byte*>(Place(worker, output_stream, output.type, asked->output, asked->capacity));
  }
  absl::StatusOr<std::shared_ptr<GpuRound>> round =
      gpus_->Prepare({"input", asked->input, bytes, input, worker.stream},
                     {"output", asked->output, asked->capacity, output, output_stream}, random_.Chance(0.5));
  if (!round.ok()) throw std::runtime_error(std::string(round.status().message()));
  asked->gpu = *std::move(round);
  asked->input_device = input;
  asked->output_device = output;
}

void CollectiveGpus::Bring(const Collective& moved, const Collective& asked) {
  if (moved.output == asked.output || asked.output == nullptr) return;
  if (moved.output_device.type == BPS_CUDA) {
    if (bps_fake_gpu()->peek(moved.output, asked.output, asked.capacity) == 0)
      throw std::runtime_error("no such memory");
  } else {
    std::memcpy(asked.output, moved.output, asked.capacity);
  }
  if (asked.result->bytes != 0) asked.result->data = asked.output;
}

}  // namespace byteps
