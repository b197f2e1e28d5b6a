#include "transport_plugins/libfabric/provider_table.h"

namespace byteps::fabric {
namespace {

// libfabric 1.17 has reliable datagrams over TCP by a layer (ofi_rxm), 2.x by the provider itself, which it offers
// first: so the layer is not named.
constexpr Provider Datagrams(const char* name, const char* description, Writes writes) {
  return {
      .name = name,
      .description = description,
      .fabric_name = "tcp",
      .missing = "install a libfabric with its tcp provider (Debian: libfabric1)",
      .connected = false,
      .writes = writes,
      .lanes = false,
      .depth = 64,
      .spare_receives = 32,
      .write_outlives_registration = true,
      .cheap_registration = true,
      .ip_addressed = true,
      .device = nullptr,
      .silent_sends = false,
      .bounded_queue = false,
      .immediate_takes_receive = false,
      .locks_memory = false,
      .device_memory = false,
      .open_to_strangers = false,
      .environment = {},
  };
}

constexpr Provider kProviders[] = {
    {
        .name = "tcp",
        .description = "TCP through libfabric: any network, no special hardware",
        .fabric_name = "tcp",
        .missing = "install a libfabric with its tcp provider (Debian: libfabric1) and see that FI_PROVIDER allows it",
        .connected = true,
        .writes = Writes::kRemote,
        .lanes = true,
        .depth = 256,
        .spare_receives = 8,
        .write_outlives_registration = true,
        .cheap_registration = true,
        .ip_addressed = true,
        .device = nullptr,
        .silent_sends = true,
        .bounded_queue = false,
        .immediate_takes_receive = false,
        .locks_memory = false,
        .device_memory = false,
        .open_to_strangers = true,
        .environment = {},
    },
    {
        .name = "verbs",
        .description = "RDMA verbs through libfabric: InfiniBand and RoCE",
        .fabric_name = "verbs",
        .missing =
            "load the kernel module rdma_ucm, give the device's network interface an address, install a libfabric "
            "with its verbs provider (Debian: libfabric1, ibverbs-providers) and see that FI_PROVIDER allows it",
        .connected = true,
        .writes = Writes::kRemote,
        .lanes = false,
        // What is under way lies in locked memory.
        .depth = 64,
        .spare_receives = 32,
        .write_outlives_registration = false,
        .cheap_registration = false,
        .ip_addressed = true,
        .device = "RDMA",
        .silent_sends = false,
        .bounded_queue = true,
        .immediate_takes_receive = true,
        .locks_memory = true,
        .device_memory = true,
        .open_to_strangers = false,
        .environment = {},
    },
    {
        .name = "efa",
        .description = "Elastic Fabric Adapter of AWS through libfabric",
        .fabric_name = "efa",
        .missing =
            "install AWS's EFA software (its kernel module and its libfabric) and see that FI_PROVIDER allows it",
        .connected = false,
        .writes = Writes::kByTheDevice,
        .lanes = false,
        .depth = 64,
        .spare_receives = 32,
        .write_outlives_registration = false,
        .cheap_registration = false,
        .ip_addressed = false,
        .device = "EFA",
        .silent_sends = false,
        .bounded_queue = false,
        .immediate_takes_receive = false,
        .locks_memory = true,
        .device_memory = true,
        .open_to_strangers = false,
        // Trainers fork. Peers of one host have our own shared memory; the provider's has no descriptor to sleep on.
        .environment = {{{"FI_EFA_FORK_SAFE", "1"}, {"FI_EFA_ENABLE_SHM_TRANSFER", "0"}}},
    },
    // For tests: what is written for devices that read and write the memory of GPUs, on what every machine has.
    {
        .name = "gpudirect",
        .description = "TCP through libfabric, with what verbs and efa ask of it for the memory of GPUs",
        .fabric_name = "tcp",
        .missing = "install a libfabric with its tcp provider (Debian: libfabric1)",
        .connected = true,
        .writes = Writes::kRemote,
        .lanes = false,
        .depth = 64,
        .spare_receives = 32,
        .write_outlives_registration = true,
        .cheap_registration = false,
        .ip_addressed = true,
        .device = nullptr,
        .silent_sends = false,
        .bounded_queue = false,
        .immediate_takes_receive = false,
        .locks_memory = false,
        .device_memory = true,
        .open_to_strangers = false,
        .environment = {},
    },
    // No plugin is made of these: what is written for EFA, on what every machine has. For tests.
    Datagrams("datagrams", "reliable datagrams over TCP", Writes::kMessages),
    Datagrams("datagrams_remote", "reliable datagrams over TCP, with the provider's own writes", Writes::kRemote),
};

}  // namespace

const Provider* FindProvider(std::string_view name) {
  for (const Provider& provider : kProviders) {
    if (name == provider.name) return &provider;
  }
  return nullptr;
}

}  // namespace byteps::fabric
