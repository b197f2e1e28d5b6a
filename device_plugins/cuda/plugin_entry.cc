// plugin_entry.cc - the plugin's face: abi/device.h on the outside, the CUDA driver inside.

#include <atomic>
#include <cstring>
#include <mutex>
#include <set>
#include <string>

#include "abi/byteps.h"
#include "abi/device.h"
#include "device_plugins/common/collectives_face.h"
#include "device_plugins/common/face.h"
#include "device_plugins/cuda/comm.h"
#include "device_plugins/cuda/device.h"
#include "device_plugins/cuda/driver.h"
#include "device_plugins/cuda/nccl.h"

namespace byteps::cuda {
namespace {

std::atomic<const bps_plugin_host*> g_host{nullptr};

Device* Open(const bps_device_open_args& args) {
  auto* device = new Device(Driver::Get(), args.index);
  device->UseNcclHome(devices::Config(g_host.load(), args.config, "BYTEPS_NCCL_HOME"));
  return device;
}

using Face = devices::Face<Device, &g_host>;
constexpr bps_device_table kTable = Face::Table<Open>();

template <typename Function>
int32_t Answer(bps_failure* failure, Function function) {
  return devices::Answer(g_host.load(), failure, function);
}

// Text that outlives the call.
const char* Keep(const std::string& text) {
  static std::mutex mutex;
  static auto* texts = new std::set<std::string>;
  const std::lock_guard<std::mutex> lock(mutex);
  return texts->insert(text).first->c_str();
}

void NewId(const void* config, uint8_t* id) {
  const NcclFunctions& nccl = GetNccl(devices::Config(g_host.load(), config, "BYTEPS_NCCL_HOME"));
  NcclUniqueId made;
  const NcclResult result = nccl.ncclGetUniqueId(&made);
  if (result != kNcclSuccess) {
    throw devices::Error(BPS_INTERNAL, std::string("ncclGetUniqueId: ") + nccl.ncclGetErrorString(result));
  }
  std::memcpy(id, made.bytes, sizeof made.bytes);
}

Comm* Join(bps_device* device, const bps_device_join_args& args) {
  const auto* known = reinterpret_cast<const Device*>(device);
  return new Comm(known, GetNccl(known->nccl_home()), args);
}

constexpr bps_device_collectives kCollectives = devices::CollectivesFace<Comm, &g_host>::Table<NewId, Join>();

int32_t Probe(const void*, bps_failure* failure) {
  return Answer(failure, [] { Driver::Get(); });
}

int32_t Count(const void*, int32_t* count, bps_failure* failure) {
  return Answer(failure, [&] { *count = Driver::Get().devices(); });
}

int32_t Facts(const void*, int32_t index, bps_device_facts* facts, bps_failure* failure) {
  return Answer(failure, [&] { devices::WriteOut(FactsOf(Driver::Get(), index), facts); });
}

int32_t Versions(const void* config, bps_device_versions* versions, bps_failure* failure) {
  return Answer(failure, [&] {
    const std::string home = devices::Config(g_host.load(), config, "BYTEPS_NCCL_HOME");
    Nccl nccl = FindNccl(home);
    try {
      GetNccl(home);
    } catch (const devices::Error& error) {  // not there, or one that cannot be used
      nccl.text = "";
      nccl.why_not = error.what();
    }
    bps_device_versions known = {};
    known.driver = Keep("CUDA " + Driver::Get().version() + ", libcuda.so.1");
    known.collectives = Keep(nccl.text);
    known.why_not = Keep(nccl.why_not);
    devices::WriteOut(known, versions);
  });
}

constexpr bps_device_plugin kPlugin = {
    .struct_size = sizeof(bps_device_plugin),
    .info = {.struct_size = sizeof(bps_plugin_info),
             .abi_minor = BPS_DEVICE_ABI_MINOR,
             .kind = "device",
             .name = "cuda",
             .version = "1.0",
             .description = "GPUs of NVIDIA, by the CUDA driver that is found at run time"},
    .probe = Probe,
    .count = Count,
    .facts = Facts,
    .versions = Versions,
    .table = &kTable,
    .collectives = &kCollectives,
};

}  // namespace
}  // namespace byteps::cuda

extern "C" BPS_PLUGIN_EXPORT int32_t bps_device_plugin_v1(const bps_plugin_host* host,
                                                          const bps_device_plugin** plugin) {
  byteps::cuda::g_host = host;
  *plugin = &byteps::cuda::kPlugin;
  return BPS_OK;
}
