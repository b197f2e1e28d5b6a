// knobs.h - the one table of every configuration variable, in the order of its parts:
//
//     job_knobs.h        who is in the job, who may join it, how long it waits
//     transfer_knobs.h   plugins, the way of a tensor, servers
//     process_knobs.h    what a process says, the launcher
//     original_knobs.h   what the original needed for GPUs and its network
//     build_knobs.h      the build, development
//
// What is not here is no variable of BytePS. docs/configuration.md is generated from it (tools/bps_info --markdown),
// and a test checks that the page is current. The names and meanings of BytePS 0.2.5 are kept; what this release does
// not act on says so by its status, and warns once when it is set.
//
// To add a knob: a row in one of them, a reader that calls Config::Get..., and `bazel run //tools:bps_info --
// --markdown`.
#ifndef BYTEPS_CORE_CONFIG_KNOBS_H_
#define BYTEPS_CORE_CONFIG_KNOBS_H_

#include <algorithm>
#include <array>
#include <cstddef>

#include "core/config/build_knobs.h"
#include "core/config/job_knobs.h"
#include "core/config/knob.h"
#include "core/config/original_knobs.h"
#include "core/config/process_knobs.h"
#include "core/config/transfer_knobs.h"

namespace byteps {

// The rows of all parts, one behind the other.
template <size_t... sizes>
constexpr std::array<Knob, (sizes + ...)> JoinKnobs(const Knob (&... parts)[sizes]) {
  std::array<Knob, (sizes + ...)> all{};
  Knob* next = all.data();
  ((next = std::copy(std::begin(parts), std::end(parts), next)), ...);
  return all;
}

inline constexpr auto kKnobs = JoinKnobs(kJobKnobs, kTransferKnobs, kProcessKnobs, kOriginalKnobs, kBuildKnobs);

}  // namespace byteps

#endif  // BYTEPS_CORE_CONFIG_KNOBS_H_
