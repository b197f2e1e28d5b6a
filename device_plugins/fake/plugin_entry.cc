// plugin_entry.cc - the plugin's face: abi/device.h on the outside, fake GPUs inside; and what tests ask of them.

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "abi/byteps.h"
#include "abi/device.h"
#include "device_plugins/common/collectives_face.h"
#include "device_plugins/common/face.h"
#include "device_plugins/fake/comm.h"
#include "device_plugins/fake/control.h"
#include "device_plugins/fake/device.h"
#include "device_plugins/fake/machine.h"

namespace byteps::fake {
namespace {

std::atomic<const bps_plugin_host*> g_host{nullptr};

// The GPUs of this process, as those of a driver: library and test, which open one, see the same.
std::mutex g_mutex;
std::shared_ptr<Machine>* g_machine = nullptr;

std::string Variable() {
  const char* value = std::getenv("BYTEPS_FAKE_GPU");
  return value == nullptr ? "" : value;
}

std::shared_ptr<Machine> TheMachine() {
  const std::lock_guard<std::mutex> lock(g_mutex);
  if (g_machine == nullptr) {
    g_machine = new std::shared_ptr<Machine>(std::make_shared<Machine>(ReadOptions(Variable())));
  }
  return *g_machine;
}

Device* Open(const bps_device_open_args& args) { return new Device(TheMachine(), args.index); }

using Face = devices::Face<Device, &g_host>;
constexpr bps_device_table kTable = Face::Table<Open>();

template <typename Function>
int32_t Answer(bps_failure* failure, Function function) {
  return devices::Answer(g_host.load(), failure, function);
}

void NewId(const void*, uint8_t* id) {
  const std::string text = Meeting::NewId();
  std::memset(id, 0, BPS_DEVICE_COMM_ID);
  std::memcpy(id, text.data(), text.size());
}

Comm* Join(bps_device* device, const bps_device_join_args& args) {
  const auto* known = reinterpret_cast<const Device*>(device);
  known->machine()->Begin(known->index(), "join");
  const char* id = reinterpret_cast<const char*>(args.id);
  return new Comm(known->machine(), known->index(), std::string(id, strnlen(id, BPS_DEVICE_COMM_ID)), args.rank,
                  args.size);
}

constexpr bps_device_collectives kCollectives = devices::CollectivesFace<Comm, &g_host>::Table<NewId, Join>();

int32_t Probe(const void*, bps_failure* failure) {
  return Answer(failure, [] {
    if (ReadOptions(Variable()).devices < 1) throw devices::Error(BPS_UNAVAILABLE, "BYTEPS_FAKE_GPU has no devices");
  });
}

int32_t Count(const void*, int32_t* count, bps_failure* failure) {
  return Answer(failure, [&] { *count = TheMachine()->options().devices; });
}

int32_t Facts(const void*, int32_t index, bps_device_facts* facts, bps_failure* failure) {
  return Answer(failure, [&] {
    const Options& options = TheMachine()->options();
    if (index < 0 || index >= options.devices) throw devices::Error(BPS_INVALID_ARGUMENT, "there is no such device");
    bps_device_facts known = {};
    known.name = "fake GPU";
    known.pci = "";
    known.memory = options.memory;
    devices::WriteOut(known, facts);
  });
}

int32_t Versions(const void*, bps_device_versions* versions, bps_failure* failure) {
  return Answer(failure, [&] {
    bps_device_versions known = {};
    known.driver = "no driver: this GPU is simulated";
    known.collectives = "simulated, among the processes of this machine";
    known.why_not = "";
    devices::WriteOut(known, versions);
  });
}

constexpr bps_device_plugin kPlugin = {
    .struct_size = sizeof(bps_device_plugin),
    .info = {.struct_size = sizeof(bps_plugin_info),
             .abi_minor = BPS_DEVICE_ABI_MINOR,
             .kind = "device",
             .name = "fake",
             .version = "1.0",
             .description = "a GPU for tests: memory that the CPU cannot touch, schedules by seed, races reported"},
    .probe = Probe,
    .count = Count,
    .facts = Facts,
    .versions = Versions,
    .table = &kTable,
    .collectives = &kCollectives,
};

constexpr fake_gpu_control kControl = {
    .table = &kTable,
    .reset = [](const char* options) -> int32_t {
      try {
        auto machine = std::make_shared<Machine>(ReadOptions(options));
        const std::lock_guard<std::mutex> lock(g_mutex);
        if (g_machine == nullptr) g_machine = new std::shared_ptr<Machine>;
        *g_machine = std::move(machine);
        return 1;
      } catch (const devices::Error&) {
        return 0;
      }
    },
    .counts = [](fake_gpu_counts* counts) { *counts = TheMachine()->counts(); },
    .race = [](uint64_t index, char* text, size_t size) -> int32_t {
      const std::string report = TheMachine()->Race(index);
      std::snprintf(text, size, "%s", report.c_str());
      return report.empty() ? 0 : 1;
    },
    .host_access = [](const void* address, uint64_t size,
                      int32_t write) { TheMachine()->HostAccess(address, size, write != 0); },
    .peek = [](const void* address, void* to, uint64_t size) -> int32_t {
      return TheMachine()->Peek(address, to, size) ? 1 : 0;
    },
    .fail = [](const char* verb, uint64_t after, int32_t code) { TheMachine()->FailLater(verb, after, code); },
    .lose = [](int32_t device) { TheMachine()->Lose(device); },
    .capture = [](bps_device_stream stream,
                  int32_t on) { TheMachine()->Capture(TheMachine()->Known(stream, 0), on != 0); },
    .launch = [](int32_t device, bps_device_stream stream, void (*run)(void* user, void* const* inside), void* user,
                 const fake_gpu_access* accesses, size_t count) -> int32_t {
      try {
        const std::shared_ptr<Machine> machine = TheMachine();
        machine->Begin(device, "launch");
        Stream* known = machine->Known(stream, device);
        machine->CheckTakes(*known, device);
        machine->Launch(known, [run, user](void* const* inside) { run(user, inside); }, {accesses, accesses + count});
        return BPS_OK;
      } catch (const devices::Error& error) {
        return error.code();
      }
    },
    .remote_access = [](const void* address, uint64_t size, int32_t read) -> void* {
      return TheMachine()->RemoteAccess(address, size, read != 0);
    },
    .hold = [](int32_t device, bps_device_stream stream, const int32_t* go) -> int32_t {
      try {
        const std::shared_ptr<Machine> machine = TheMachine();
        Stream* known = machine->Known(stream, device);
        machine->CheckTakes(*known, device);
        machine->Meet(known, [go](void* const*) { return __atomic_load_n(go, __ATOMIC_ACQUIRE) != 0; }, {});
        return BPS_OK;
      } catch (const devices::Error& error) {
        return error.code();
      }
    },
    .hang = [](const char* verb, uint64_t after) -> uint64_t {
      if (verb != nullptr) TheMachine()->HangLater(verb, after);
      return TheMachine()->hung();
    },
};

}  // namespace
}  // namespace byteps::fake

extern "C" BPS_PLUGIN_EXPORT const fake_gpu_control* bps_fake_gpu(void) { return &byteps::fake::kControl; }

extern "C" BPS_PLUGIN_EXPORT int32_t bps_device_plugin_v1(const bps_plugin_host* host,
                                                          const bps_device_plugin** plugin) {
  byteps::fake::g_host = host;
  *plugin = &byteps::fake::kPlugin;
  return BPS_OK;
}
