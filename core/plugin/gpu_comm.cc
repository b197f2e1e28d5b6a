#include "core/plugin/gpu_comm.h"

#include "absl/strings/str_cat.h"

namespace byteps {
namespace {

absl::Status None(const Gpu& gpu) {
  return absl::UnimplementedError(absl::StrCat(gpu.name(), ": its device plugin has no collectives"));
}

}  // namespace

absl::StatusOr<std::string> GpuComm::NewId(const Gpu& gpu, const PluginConfig* config) {
  if (gpu.collectives() == nullptr) return None(gpu);
  std::string id(BPS_DEVICE_COMM_ID, '\0');
  bps_failure failure;
  const int32_t code = WatchedCall(gpu.title(), "unique_id", [&] {
    return gpu.collectives()->unique_id(config, reinterpret_cast<uint8_t*>(id.data()), &failure);
  });
  if (code != BPS_OK) return FailureStatus(code, failure, absl::StrCat(gpu.name(), ": collectives cannot be used"));
  return id;
}

absl::StatusOr<std::unique_ptr<GpuComm>> GpuComm::Join(std::shared_ptr<Gpu> gpu, const std::string& id, int32_t rank,
                                                       int32_t size, int32_t max_blocks) {
  if (gpu->collectives() == nullptr) return None(*gpu);
  bps_device_join_args args = {};
  args.struct_size = sizeof args;
  args.id = reinterpret_cast<const uint8_t*>(id.data());
  args.rank = rank;
  args.size = size;
  args.max_blocks = max_blocks;
  bps_device_comm* comm = nullptr;
  bps_failure failure;
  const int32_t code = WatchedCall(gpu->title(), "join",
                                   [&] { return gpu->collectives()->join(gpu->handle(), &args, &comm, &failure); });
  if (code != BPS_OK) {
    return FailureStatus(code, failure, absl::StrCat(gpu->name(), ": joining the GPUs of this host"));
  }
  return std::unique_ptr<GpuComm>(new GpuComm(std::move(gpu), comm));
}

GpuComm::~GpuComm() {
  if (comm_ == nullptr) return;
  WatchedCall(gpu_->title(), "abort", [&] { table_->abort(comm_); });
}

void GpuComm::Leave() {
  bps_device_comm* const comm = std::exchange(comm_, nullptr);
  WatchedCall(gpu_->title(), "leave", [&] { table_->leave(comm); });
}

template <typename Function>
absl::Status GpuComm::Call(const char* verb, const char* what, const Function& function) {
  bps_failure failure;
  const int32_t code = WatchedCall(gpu_->title(), verb, [&] { return function(&failure); });
  if (code == BPS_OK) return absl::OkStatus();
  return FailureStatus(code, failure, absl::StrCat(gpu_->name(), ": ", what));
}

absl::StatusOr<bool> GpuComm::Ready() {
  bool ready = false;
  absl::Status status = Call("state", "the collectives of this host's GPUs", [&](bps_failure* failure) {
    const int32_t code = table_->state(comm_, failure);
    ready = code == BPS_OK;
    return code == BPS_DEVICE_NOT_READY ? BPS_OK : code;
  });
  if (!status.ok()) return status;
  return ready;
}

absl::Status GpuComm::Begin() {
  return Call("begin", "beginning a group", [&](bps_failure* failure) { return table_->begin(comm_, failure); });
}

absl::Status GpuComm::End() {
  return Call("end", "starting a group", [&](bps_failure* failure) { return table_->end(comm_, failure); });
}

absl::Status GpuComm::ReduceScatter(const void* from, void* to, uint64_t count, uint32_t dtype, int32_t reduction,
                                    bps_device_stream stream) {
  return Call("reduce_scatter", "a reduce-scatter", [&](bps_failure* failure) {
    return table_->reduce_scatter(comm_, from, to, count, dtype, reduction, stream, failure);
  });
}

absl::Status GpuComm::AllGather(const void* from, void* to, uint64_t count, uint32_t dtype, bps_device_stream stream) {
  return Call("all_gather", "an all-gather",
              [&](bps_failure* failure) { return table_->all_gather(comm_, from, to, count, dtype, stream, failure); });
}

absl::Status GpuComm::AllReduce(const void* from, void* to, uint64_t count, uint32_t dtype, int32_t reduction,
                                bps_device_stream stream) {
  return Call("all_reduce", "an all-reduce", [&](bps_failure* failure) {
    return table_->all_reduce(comm_, from, to, count, dtype, reduction, stream, failure);
  });
}

absl::Status GpuComm::Reduce(const void* from, void* to, uint64_t count, uint32_t dtype, int32_t reduction,
                             int32_t root, bps_device_stream stream) {
  return Call("reduce", "a reduction to one", [&](bps_failure* failure) {
    return table_->reduce(comm_, from, to, count, dtype, reduction, root, stream, failure);
  });
}

absl::Status GpuComm::Broadcast(const void* from, void* to, uint64_t count, uint32_t dtype, int32_t root,
                                bps_device_stream stream) {
  return Call("broadcast", "a broadcast", [&](bps_failure* failure) {
    return table_->broadcast(comm_, from, to, count, dtype, root, stream, failure);
  });
}

absl::Status GpuComm::Send(const void* from, uint64_t count, uint32_t dtype, int32_t peer, bps_device_stream stream) {
  return Call("send", "a send",
              [&](bps_failure* failure) { return table_->send(comm_, from, count, dtype, peer, stream, failure); });
}

absl::Status GpuComm::Receive(void* to, uint64_t count, uint32_t dtype, int32_t peer, bps_device_stream stream) {
  return Call("receive", "a receive",
              [&](bps_failure* failure) { return table_->receive(comm_, to, count, dtype, peer, stream, failure); });
}

}  // namespace byteps
