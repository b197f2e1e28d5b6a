// knob.h - one configuration variable: what it is called, what it may be, who reads it and why.
//
// The knobs themselves are in core/config/knobs.h, the one table of all of them; core/config/config.h reads their
// values.
#ifndef BYTEPS_CORE_CONFIG_KNOB_H_
#define BYTEPS_CORE_CONFIG_KNOB_H_

#include <cstddef>
#include <cstdint>

namespace byteps {

enum class KnobType {
  kInt,       // a whole number, decimal
  kBytes,     // a whole number, optionally with a unit: K, M, G, T (or KiB, ...), powers of 1024
  kCount,     // a whole number of the knob's unit, or with B, K, M, G, T a number of bytes instead
  kDuration,  // a number of the knob's unit, or with a unit of its own: us, ms, s, m, h
  kBool,      // 0 or 1, also false/true, no/yes, off/on
  kEnum,      // one of `choices`, in any case
  kString,
};

enum class KnobStatus {
  kActive,    // does what it says
  kAccepted,  // has its meaning, but this release does not act on it: warns once when set
  kRetired,   // of the original, without a meaning here: warns once when set
};

// Who reads a knob; a set of bits.
enum KnobReader : uint32_t {
  kWorker = 1u << 0,       // libbyteps.so in a trainer
  kServer = 1u << 1,       // the reduction server
  kCoordinator = 1u << 2,  // the DMLC_ROLE=scheduler process
  kLauncher = 1u << 3,     // bpslaunch
  kTool = 1u << 4,         // quickstart, bps_info, bps_perf
  kBuild = 1u << 5,        // the build
  kRoles = kWorker | kServer | kCoordinator,
  kEverybody = kRoles | kLauncher,
};

struct Knob {
  // Title of the section of the table that begins here; nullptr: as before.
  const char* section = nullptr;
  const char* name;
  KnobType type;
  uint32_t readers;
  KnobStatus status = KnobStatus::kActive;
  // As text that the type's own parser reads; nullptr: unset.
  const char* fallback = nullptr;
  // Of a plain number: "bytes", "s", "ms", "us", "threads", ...; "" where there is nothing to say.
  const char* unit = "";
  // Least and largest value of a number, in its unit.
  int64_t min = 0;
  int64_t max = INT64_MAX;
  // Of a duration that is not 0: the least that makes sense, in milliseconds.
  int64_t least_ms = 0;
  // Of a kString: the most bytes it may have; 0: any number.
  size_t most_bytes = 0;
  // For kEnum: the values, separated by '|'; "a=b" means that a is another word for b.
  const char* choices = "";
  // Another variable that is read when this one is not set.
  const char* alias = nullptr;
  // The alias says 0 where it means the default.
  bool alias_zero_is_default = false;
  // A switch of another library that means 0 here when it is on and this one is not set.
  const char* alias_off = nullptr;
  // What it does.
  const char* meaning;
  // Why its default is what it is; "" where that is plain.
  const char* reason = "";
  // Of a kBool: why 1 is an error; nullptr: it is none.
  const char* refusal = nullptr;
  // The value is not to be shown.
  bool secret = false;
};

const char* KnobTypeName(KnobType type);
const char* KnobStatusName(KnobStatus status);

}  // namespace byteps

#endif  // BYTEPS_CORE_CONFIG_KNOB_H_
