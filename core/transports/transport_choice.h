// transport_choice.h - which transport plugin carries a process's data over the network.
//
//     absl::StatusOr<std::string> name = ChooseTransport(&registry, config, log, local_host);
//     registry.OpenTransport(*name, local_host);
//
// BYTEPS_TRANSPORT names a plugin, or is "auto" (the default): the best one that can be used here, in the order efa,
// verbs, tcp, where "can be used" means that its probe says so and that an endpoint opens at this host's address. What
// was chosen, and why the better ones were not, is one line of the log. DMLC_ENABLE_RDMA means what it means in the
// original (0: tcp, 1: verbs, fabric: efa if it is there) where BYTEPS_TRANSPORT is not set.
//
//     NamedTransport(config);                                      // what the user asks for, whether it is used or not
//
// Each process chooses for itself by what its host has; the coordinator refuses a job whose members chose differently,
// also one without servers, whose members need no network, if they were told different ones.
//
// Threads: any; the registry by one at a time.
// Errors:  INVALID_ARGUMENT: a value of the original that has no counterpart. UNAVAILABLE: nothing can be used here.
//          A name that is not "auto" is not checked here: opening it does that.
#ifndef BYTEPS_CORE_TRANSPORTS_TRANSPORT_CHOICE_H_
#define BYTEPS_CORE_TRANSPORTS_TRANSPORT_CHOICE_H_

#include <string>

#include "absl/status/statusor.h"
#include "core/base/log.h"
#include "core/config/config.h"
#include "core/plugin/plugin_registry.h"

namespace byteps {

absl::StatusOr<std::string> ChooseTransport(PluginRegistry* registry, const Config& config, const Logger& log,
                                            const std::string& local_host);

// What BYTEPS_TRANSPORT names, or else DMLC_ENABLE_RDMA; "" where they leave the choice to us. INVALID_ARGUMENT as
// above.
absl::StatusOr<std::string> NamedTransport(const Config& config);

}  // namespace byteps

#endif  // BYTEPS_CORE_TRANSPORTS_TRANSPORT_CHOICE_H_
