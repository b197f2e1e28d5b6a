// knob_value.h - reads the text of one configuration value, strictly.
//
//     absl::StatusOr<KnobValue> value = ParseKnob(knob, "512K");     // value->number == 524288
//
// A text that is not wholly a value of the knob's type, or is out of its range, is INVALID_ARGUMENT; the error names
// variable, text and what is accepted: never a silent zero.
#ifndef BYTEPS_CORE_CONFIG_KNOB_VALUE_H_
#define BYTEPS_CORE_CONFIG_KNOB_VALUE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "core/config/knob.h"

namespace byteps {

struct KnobValue {
  // Numbers and bytes as they are (kCount: of either; only the text says which); durations in nanoseconds; booleans 0
  // or 1; enumerations: index of the choice.
  int64_t number = 0;
  // Canonical text: choices as the table spells them, booleans 0 or 1, everything else without surrounding blanks.
  std::string text;
  // The same for plugins, which know nothing of units: numbers, bytes and durations in digits alone, in the knob's
  // unit. Two of them cannot do without: "4096B" is bytes where "4" is a count, "1500ms" a duration that is not whole.
  std::string plain;
};

// `shown_as` is the variable to name in errors (an alias, for example).
absl::StatusOr<KnobValue> ParseKnob(const Knob& knob, std::string_view text, std::string_view shown_as);
inline absl::StatusOr<KnobValue> ParseKnob(const Knob& knob, std::string_view text) {
  return ParseKnob(knob, text, knob.name);
}

// What the knob accepts, for people: "a number of bytes, at least 1, with K, M, G or T for powers of 1024".
std::string KnobAccepts(const Knob& knob);

// Nanoseconds of one `unit` ("ns", "us", "ms", "s", "m", "h"); 0 for anything else.
int64_t UnitNanoseconds(std::string_view unit);

}  // namespace byteps

#endif  // BYTEPS_CORE_CONFIG_KNOB_VALUE_H_
