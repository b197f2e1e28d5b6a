#include "tests/sim/device_program.h"

#include <cstring>
#include <stdexcept>
#include <utility>

#include "core/base/log.h"
#include "core/plugin/plugin_host.h"
#include "core/worker/device/device_stage.h"
#include "core/worker/device/gpu_group_stage.h"
#include "core/worker/device/pinned_stock.h"
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

// The stages live as long as the job, which is longer than the programs.
const Logger& Quiet() {
  LogOptions options;
  options.level = LogLevel::kFatal;
  static const Logger log(options);
  return log;
}

}  // namespace

DeviceProgram::DeviceProgram(SimulatedWorker* worker, int32_t index, std::optional<GpuGroupOptions> group,
                             const bps_device_plugin* plugin)
    : worker_(worker),
      index_(index),
      table_(bps_fake_gpu()->table),
      gpus_(std::make_shared<Gpus>(
          [plugin]() -> absl::StatusOr<const bps_device_plugin*> {
            if (plugin != nullptr) return plugin;
            return FindFake();
          },
          nullptr, &Quiet())),
      group_(std::move(group)) {
  Open();
}

DeviceProgram::DeviceProgram(const DeviceProgram& first, int32_t index)
    : worker_(first.worker_), index_(index), table_(first.table_), gpus_(first.gpus_), staged_(first.staged_) {
  Open();
}

void DeviceProgram::Open() {
  bps_device_open_args args = {};
  args.struct_size = sizeof args;
  args.index = index_;
  Check(table_->open(&args, &device_, nullptr));
  Check(table_->stream_create(device_, 0, &stream_, nullptr));
  Check(table_->stream_create(device_, 0, &output_stream_, nullptr));
}

DeviceProgram::~DeviceProgram() { table_->close(device_); }

void DeviceProgram::UseStages() {
  if (std::exchange(staged_, true)) return;
  const auto buffers = std::make_shared<BufferTable>();
  const auto lanes = lanes_ != nullptr ? lanes_ : std::make_shared<GpuLanes>(gpus_);
  const auto stock = std::make_shared<PinnedStock>(buffers);
  worker_->engine().UseStage("", std::make_unique<DeviceStage>(lanes, stock, &Quiet()));
  LocalStage* const local = worker_->engine().neighbours();
  if (!group_ || local == nullptr) return;
  worker_->engine().UseStage("", std::make_unique<GpuGroupStage>(*group_, gpus_, stock, local, &Quiet()));
  worker_->Wake();
}

void DeviceProgram::UseStagesIfAsked() {
  const LocalStage* const local = worker_->engine().neighbours();
  if (local != nullptr && local->has_side_records()) UseStages();
}

void* DeviceProgram::Host(uint64_t bytes) {
  void* base = nullptr;
  if (bytes != 0) Check(table_->allocate_host(device_, bytes, &base, nullptr));
  return base;
}

void* DeviceProgram::OnDevice(uint64_t bytes) {
  void* base = nullptr;
  if (bytes != 0) Check(table_->allocate(device_, bytes, &base, nullptr));
  return base;
}

DeviceProgram::Memory& DeviceProgram::MemoryOf(const std::string& name, uint64_t bytes) {
  auto [at, made] = memory_.emplace(name, Memory());
  if (made) at->second = {OnDevice(bytes), OnDevice(bytes), Host(bytes), Host(bytes)};
  return at->second;
}

DeviceCall* DeviceProgram::Submit(const DeviceAsk& ask, absl::Status* refused) {
  UseStages();
  const uint64_t bytes = ask.elements * sizeof(float);
  Memory& memory = MemoryOf(ask.name, bytes);
  const bool reads = ask.kind == wire::Operation::kPushPull || !ask.input.empty();
  void* input = ask.pinned ? memory.pinned_input : memory.input;
  void* output = ask.in_place ? input : (ask.pinned ? memory.pinned_output : memory.output);
  if (reads && bytes != 0) {
    // As if a kernel computed it: fresh pinned memory, copied in the trainer's stream.
    void* fresh = Host(bytes);
    std::memcpy(fresh, ask.input.data(), bytes);
    if (ask.pinned) {
      void* passing = OnDevice(bytes);
      Check(table_->copy_to_device(device_, passing, fresh, bytes, stream_, nullptr));
      Check(table_->copy_to_host(device_, input, passing, bytes, stream_, nullptr));
    } else {
      Check(table_->copy_to_device(device_, input, fresh, bytes, stream_, nullptr));
    }
  }
  Tensor* tensor = *worker_->engine().tensors().Declare(ask.name, BPS_FLOAT32,
                                                        std::vector<int64_t>{static_cast<int64_t>(ask.elements)});
  Submission asked;
  asked.tensor = tensor;
  asked.kind = ask.kind;
  asked.reduction = ask.reduction;
  asked.root = ask.root;
  asked.priority = ask.priority;
  asked.timeout = ask.timeout;
  asked.input = reads ? static_cast<std::byte*>(input) : nullptr;
  asked.output = static_cast<std::byte*>(output);
  asked.output_device = {ask.pinned ? BPS_CUDA_HOST : BPS_CUDA, index_};
  asked.input_device = reads ? asked.output_device : Device();
  asked.request = std::make_shared<Request>(nullptr, nullptr);
  const bps_device_stream output_stream = ask.apart ? output_stream_ : stream_;
  absl::StatusOr<std::shared_ptr<GpuRound>> round =
      gpus_->Prepare({"input", asked.input, bytes, asked.input_device, stream_},
                     {"output", asked.output, bytes, asked.output_device, output_stream}, ask.later);
  absl::Status status = round.status();
  if (status.ok()) {
    asked.gpu = *round;
    status = worker_->engine().Admit(asked);
  }
  if (!status.ok()) {
    if (refused != nullptr) *refused = status;
    return nullptr;
  }
  DeviceCall& call = calls_.emplace_back();
  call.request = asked.request;
  call.gpu = asked.gpu;
  call.output = output;
  call.copy = static_cast<float*>(Host(bytes));
  call.elements = ask.elements;
  call.pinned = ask.pinned;
  call.stream = output_stream;
  worker_->engine().Submit(worker_->now(), std::move(asked));
  worker_->Wake();
  return &call;
}

void DeviceProgram::Read(DeviceCall* call) {
  const uint64_t bytes = call->elements * sizeof(float);
  if (bytes == 0) return;
  if (call->pinned) {
    std::memcpy(call->copy, call->output, bytes);  // it is done
    return;
  }
  const auto wait = [&](bps_device_stream stream) {
    if (!call->gpu->WaitOn(stream).ok()) throw std::runtime_error("the stream cannot wait");
  };
  if (call->gpu->stream_later) wait(call->stream);
  // Where the next input is written: the library may read this one until then.
  if (call->stream != stream_) wait(stream_);
  Check(table_->copy_to_host(device_, call->copy, call->output, bytes, call->stream, nullptr));
}

void DeviceProgram::Overwrite(const DeviceCall& call) {
  const uint64_t bytes = call.elements * sizeof(float);
  if (bytes == 0 || call.pinned) return;
  void* fresh = Host(bytes);
  std::memset(fresh, 0, bytes);
  Check(table_->copy_to_device(device_, call.output, fresh, bytes, stream_, nullptr));
}

void DeviceProgram::Synchronize() {
  for (bps_device_stream stream : {stream_, output_stream_}) Check(table_->synchronize(device_, stream, nullptr));
}

}  // namespace byteps
