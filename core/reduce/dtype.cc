#include "core/reduce/dtype.h"

#include "absl/strings/str_cat.h"

namespace byteps {

size_t DtypeSize(uint32_t dtype) { return IsDtype(dtype) ? ((dtype >> 8) & 0xff) / 8 : 0; }

bool IsDtype(uint32_t dtype) {
  switch (dtype) {
    case BPS_INT8:
    case BPS_INT16:
    case BPS_INT32:
    case BPS_INT64:
    case BPS_UINT8:
    case BPS_FLOAT16:
    case BPS_FLOAT32:
    case BPS_FLOAT64:
    case BPS_BFLOAT16:
    case BPS_COMPLEX64:
    case BPS_COMPLEX128:
    case BPS_BOOL:
      return true;
    default:
      return false;
  }
}

const char* DtypeName(uint32_t dtype) {
  switch (dtype) {
    case BPS_INT8:
      return "int8";
    case BPS_INT16:
      return "int16";
    case BPS_INT32:
      return "int32";
    case BPS_INT64:
      return "int64";
    case BPS_UINT8:
      return "uint8";
    case BPS_FLOAT16:
      return "float16";
    case BPS_FLOAT32:
      return "float32";
    case BPS_FLOAT64:
      return "float64";
    case BPS_BFLOAT16:
      return "bfloat16";
    case BPS_COMPLEX64:
      return "complex64";
    case BPS_COMPLEX128:
      return "complex128";
    case BPS_BOOL:
      return "bool";
    default:
      return "unknown";
  }
}

const char* OpName(int32_t op) {
  switch (op) {
    case BPS_SUM:
      return "sum";
    case BPS_AVERAGE:
      return "average";
    case BPS_MIN:
      return "min";
    case BPS_MAX:
      return "max";
    case BPS_PRODUCT:
      return "product";
    case BPS_BIT_AND:
      return "bitwise and";
    case BPS_BIT_OR:
      return "bitwise or";
    case BPS_BIT_XOR:
      return "bitwise xor";
    case BPS_ADASUM:
      return "adasum";
    default:
      return "unknown";
  }
}

size_t DtypeAlignment(uint32_t dtype) {
  const bool complex = dtype == BPS_COMPLEX64 || dtype == BPS_COMPLEX128;
  return DtypeSize(dtype) / (complex ? 2 : 1);
}

absl::Status CheckReduction(uint32_t dtype, int32_t op) {
  if (op == BPS_ADASUM) return absl::InvalidArgumentError("adasum is an operation of bps_collective alone");
  if (op < BPS_SUM || op > BPS_BIT_XOR) return absl::InvalidArgumentError(absl::StrCat("unknown operation ", op));
  const bool complex = dtype == BPS_COMPLEX64 || dtype == BPS_COMPLEX128;
  const bool real = dtype == BPS_FLOAT16 || dtype == BPS_BFLOAT16 || dtype == BPS_FLOAT32 || dtype == BPS_FLOAT64;
  const char* why = nullptr;
  if (complex && (op == BPS_MIN || op == BPS_MAX)) why = "complex numbers have no order";
  if (dtype == BPS_BOOL && op == BPS_AVERAGE) why = "a bool has no fractions";
  if ((complex || real) && op >= BPS_BIT_AND) why = "bitwise operations are of integers and bools";
  if (why == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(OpName(op), " of ", DtypeName(dtype), " has no meaning: ", why));
}

}  // namespace byteps
