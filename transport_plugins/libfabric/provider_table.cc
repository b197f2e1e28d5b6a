#include "transport_plugins/libfabric/provider_table.h"

namespace byteps::fabric {
namespace {

constexpr Provider kProviders[] = {
    {
        .name = "tcp",
        .description = "TCP through libfabric: any network, no special hardware",
        .fabric_name = "tcp",
        .missing = "install a libfabric with its tcp provider (Debian: libfabric1) and see that FI_PROVIDER allows it",
        .depth = 256,
        .spare_receives = 8,
        .write_outlives_registration = true,
        .cheap_registration = true,
        .ip_addressed = true,
        .rdma_device = false,
        .bounded_queue = false,
        .immediate_takes_receive = false,
        .locks_memory = false,
    },
    {
        .name = "verbs",
        .description = "RDMA verbs through libfabric: InfiniBand and RoCE",
        .fabric_name = "verbs",
        .missing =
            "load the kernel module rdma_ucm, give the device's network interface an address, install a libfabric "
            "with its verbs provider (Debian: libfabric1, ibverbs-providers) and see that FI_PROVIDER allows it",
        // What is under way lies in locked memory.
        .depth = 64,
        .spare_receives = 32,
        .write_outlives_registration = false,
        .cheap_registration = false,
        .ip_addressed = true,
        .rdma_device = true,
        .bounded_queue = true,
        .immediate_takes_receive = true,
        .locks_memory = true,
    },
};

}  // namespace

const Provider* FindProvider(std::string_view name) {
  for (const Provider& provider : kProviders) {
    if (name == provider.name) return &provider;
  }
  return nullptr;
}

}  // namespace byteps::fabric
