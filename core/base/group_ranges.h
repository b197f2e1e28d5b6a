// group_ranges.h - the groups of a reduction, for people.
//
//     GroupRanges({4, 4, 1})      // "0-3, 4-7, 8"
//
// A group is a run of consecutive ranks: results are folds over the groups of the folds within (docs/determinism.md).
#ifndef BYTEPS_CORE_BASE_GROUP_RANGES_H_
#define BYTEPS_CORE_BASE_GROUP_RANGES_H_

#include <cstdint>
#include <span>
#include <string>

namespace byteps {

// At most `most` groups; "and 7 more" stands for the others.
std::string GroupRanges(std::span<const uint32_t> sizes, size_t most = 16);

}  // namespace byteps

#endif  // BYTEPS_CORE_BASE_GROUP_RANGES_H_
