#include "scheduler_plugins/credit/bound.h"

#include <charconv>
#include <string_view>

namespace byteps::credit {
namespace {

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

// 0: no such unit.
uint64_t Unit(std::string_view unit) {
  if (unit == "b") return 1;
  constexpr std::string_view kLetters = "kmgt";
  const size_t power = unit.empty() ? std::string_view::npos : kLetters.find(unit[0]);
  if (power == std::string_view::npos || (unit.size() > 1 && unit.substr(1) != "ib")) return 0;
  return uint64_t{1} << (10 * (power + 1));
}

}  // namespace

std::optional<Bound> Bound::Parse(const char* text, std::string* reason) {
  if (text == nullptr) return Bound{};
  const std::string lower = Lower(text);
  if (lower.empty()) return Bound{};
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(lower.data(), lower.data() + lower.size(), number);
  const std::string_view unit(end, static_cast<size_t>(lower.data() + lower.size() - end));
  const uint64_t factor = unit.empty() ? 1 : Unit(unit);
  if (error != std::errc() || factor == 0 || __builtin_mul_overflow(number, factor, &number)) {
    *reason = "BYTEPS_SCHEDULING_CREDIT=" + std::string(text) +
              " is not accepted: expected a number of partitions, a number of bytes with B, K, M, G or T, or 0 for no "
              "bound";
    return std::nullopt;
  }
  if (number == 0) return Bound{Kind::kUnbounded, 0};
  return Bound{unit.empty() ? Kind::kPartitions : Kind::kBytes, number};
}

uint64_t Bound::Bytes(uint64_t largest) const {
  uint64_t bytes = number;
  if (kind == Kind::kUnbounded) return UINT64_MAX;
  if (kind == Kind::kPartitions && __builtin_mul_overflow(number, largest, &bytes)) return UINT64_MAX;
  return bytes;
}

}  // namespace byteps::credit
