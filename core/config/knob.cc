#include "core/config/knob.h"

namespace byteps {

const char* KnobTypeName(KnobType type) {
  switch (type) {
    case KnobType::kInt:
      return "number";
    case KnobType::kBytes:
      return "bytes";
    case KnobType::kCount:
      return "number or bytes";
    case KnobType::kDuration:
      return "duration";
    case KnobType::kBool:
      return "0 or 1";
    case KnobType::kEnum:
      return "one of";
    case KnobType::kString:
      return "text";
  }
  return "unknown";
}

const char* KnobStatusName(KnobStatus status) {
  switch (status) {
    case KnobStatus::kActive:
      return "active";
    case KnobStatus::kAccepted:
      return "accepted";
    case KnobStatus::kRetired:
      return "retired";
  }
  return "unknown";
}

}  // namespace byteps
