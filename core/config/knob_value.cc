#include "core/config/knob_value.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <vector>

#include "absl/status/status.h"

namespace byteps {
namespace {

// Bytes of a value that an error repeats.
constexpr size_t kMostShown = 64;

// ASCII only: the host's locale must not change what a configuration means.
std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lower;
}

std::string_view Trim(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const size_t begin = text.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kBlanks) - begin + 1);
}

// A choice: the word, and the word it stands for (the same, unless it is written "a=b").
struct Choice {
  std::string_view word;
  std::string_view means;
};

std::vector<Choice> Choices(const Knob& knob) {
  std::vector<Choice> choices;
  std::string_view rest = knob.choices;
  while (!rest.empty()) {
    const size_t bar = rest.find('|');
    const std::string_view item = rest.substr(0, bar);
    const size_t equals = item.find('=');
    choices.push_back({item.substr(0, equals), equals == std::string_view::npos ? item : item.substr(equals + 1)});
    rest = bar == std::string_view::npos ? std::string_view() : rest.substr(bar + 1);
  }
  return choices;
}

// The whole number at the start of `text` and what follows it; nothing if there is none or it is too large.
std::optional<int64_t> LeadingNumber(std::string_view text, std::string_view* rest) {
  if (!text.empty() && text[0] == '+') text.remove_prefix(1);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  *rest = text.substr(static_cast<size_t>(end - text.data()));
  return number;
}

std::optional<int64_t> ByteUnit(std::string_view unit) {
  const std::string lower = Lower(Trim(unit));
  if (lower.empty() || lower == "b") return 1;
  constexpr std::string_view kLetters = "kmgt";
  const size_t power = kLetters.find(lower[0]);
  if (power == std::string_view::npos) return std::nullopt;
  // "KB" is 1000 to some and 1024 to others: only what is clear.
  if (lower.size() > 1 && lower.substr(1) != "ib") return std::nullopt;
  return int64_t{1} << (10 * (power + 1));
}

std::optional<int64_t> Times(int64_t number, int64_t factor) {
  int64_t product;
  if (__builtin_mul_overflow(number, factor, &product)) return std::nullopt;
  return product;
}

// `nanoseconds` in `unit`, or in a smaller one that it is whole in.
std::string PlainDuration(int64_t nanoseconds, std::string_view unit) {
  if (nanoseconds % UnitNanoseconds(unit) == 0) return std::to_string(nanoseconds / UnitNanoseconds(unit));
  for (const std::string_view smaller : {"ms", "us"}) {
    if (nanoseconds % UnitNanoseconds(smaller) != 0) continue;
    return std::to_string(nanoseconds / UnitNanoseconds(smaller)).append(smaller);
  }
  return std::to_string(nanoseconds) + "ns";
}

std::optional<KnobValue> ParseNumber(const Knob& knob, std::string_view text) {
  std::string_view rest;
  std::optional<int64_t> number = LeadingNumber(text, &rest);
  if (!number.has_value()) return std::nullopt;
  int64_t scale = 1;  // of min and max
  const char* suffix = "";
  if (knob.type == KnobType::kInt) {
    if (!rest.empty()) return std::nullopt;
  } else if (knob.type == KnobType::kBytes || knob.type == KnobType::kCount) {
    const std::optional<int64_t> unit = ByteUnit(rest);
    if (!unit.has_value()) return std::nullopt;
    number = Times(*number, *unit);
    if (knob.type == KnobType::kCount && !rest.empty()) suffix = "B";
  } else {
    scale = UnitNanoseconds(knob.unit);
    const std::string unit = Lower(Trim(rest));
    const int64_t factor = unit.empty() ? scale : UnitNanoseconds(unit);
    if (factor == 0) return std::nullopt;
    number = Times(*number, factor);
  }
  if (!number.has_value()) return std::nullopt;
  // A limit too large for the scale limits nothing.
  const std::optional<int64_t> min = Times(knob.min, scale);
  const std::optional<int64_t> max = Times(knob.max, scale);
  if ((min.has_value() && *number < *min) || (max.has_value() && *number > *max)) return std::nullopt;
  if (knob.least_ms != 0 && *number != 0 && *number < knob.least_ms * 1'000'000) return std::nullopt;
  std::string plain =
      knob.type == KnobType::kDuration ? PlainDuration(*number, knob.unit) : std::to_string(*number) + suffix;
  return KnobValue{*number, std::string(text), std::move(plain)};
}

std::optional<int64_t> ParseBool(std::string_view text) {
  const std::string lower = Lower(text);
  for (const char* word : {"0", "false", "no", "off"}) {
    if (lower == word) return 0;
  }
  for (const char* word : {"1", "true", "yes", "on"}) {
    if (lower == word) return 1;
  }
  return std::nullopt;
}

std::optional<KnobValue> ParseEnum(const Knob& knob, std::string_view text) {
  const std::string lower = Lower(text);
  const std::vector<Choice> choices = Choices(knob);
  for (const Choice& choice : choices) {
    if (lower != choice.word) continue;
    const auto means =
        std::find_if(choices.begin(), choices.end(), [&](const Choice& other) { return other.word == choice.means; });
    const std::string word(choice.means);
    return KnobValue{means - choices.begin(), word, word};
  }
  return std::nullopt;
}

std::optional<KnobValue> Parse(const Knob& knob, std::string_view text) {
  switch (knob.type) {
    case KnobType::kString:
      if (knob.most_bytes != 0 && text.size() > knob.most_bytes) return std::nullopt;
      return KnobValue{0, std::string(text), std::string(text)};
    case KnobType::kEnum:
      return ParseEnum(knob, text);
    case KnobType::kBool: {
      const std::optional<int64_t> value = ParseBool(text);
      if (!value.has_value()) return std::nullopt;
      const char* const word = *value != 0 ? "1" : "0";
      return KnobValue{*value, word, word};
    }
    default:
      return ParseNumber(knob, text);
  }
}

std::string Range(const Knob& knob) {
  const bool above = knob.max != INT64_MAX;
  if (above) return std::to_string(knob.min) + " to " + std::to_string(knob.max);
  if (knob.least_ms != 0) return "0, or at least " + std::to_string(knob.least_ms) + " ms";
  return "at least " + std::to_string(knob.min);
}

}  // namespace

int64_t UnitNanoseconds(std::string_view unit) {
  if (unit == "ns") return 1;
  if (unit == "us") return 1'000;
  if (unit == "ms") return 1'000'000;
  if (unit == "s") return 1'000'000'000;
  if (unit == "m") return 60 * int64_t{1'000'000'000};
  if (unit == "h") return 3600 * int64_t{1'000'000'000};
  return 0;
}

std::string KnobAccepts(const Knob& knob) {
  const std::string unit = knob.unit;
  switch (knob.type) {
    case KnobType::kInt:
      return "a whole number, " + Range(knob);
    case KnobType::kBytes:
      return "a whole number of bytes, " + Range(knob) + ", optionally with K, M, G or T (powers of 1024)";
    case KnobType::kCount:
      return "a whole number of " + unit + ", " + Range(knob) + ", or of bytes with B, K, M, G or T (powers of 1024)";
    case KnobType::kDuration:
      return "a whole number of " + unit + ", " + Range(knob) + ", or one with its own unit: us, ms, s, m, h";
    case KnobType::kBool:
      return "0 or 1 (also false, no, off or true, yes, on)";
    case KnobType::kEnum: {
      std::string words;
      for (const Choice& choice : Choices(knob)) {
        if (!words.empty()) words += ", ";
        words.append(choice.word);
      }
      return "one of " + words;
    }
    case KnobType::kString:
      return knob.most_bytes == 0 ? "text" : "text of at most " + std::to_string(knob.most_bytes) + " bytes";
  }
  return "";
}

absl::StatusOr<KnobValue> ParseKnob(const Knob& knob, std::string_view text, std::string_view shown_as) {
  std::optional<KnobValue> value = Parse(knob, Trim(text));
  const bool refused = value.has_value() && knob.refusal != nullptr && value->number != 0;
  if (value.has_value() && !refused) return *std::move(value);
  std::string message(shown_as);
  message.append("=").append(knob.secret ? "(secret)" : text.substr(0, kMostShown));
  if (!knob.secret && text.size() > kMostShown) message.append("... (" + std::to_string(text.size()) + " bytes)");
  if (shown_as != knob.name) message.append(" (for ").append(knob.name).append(")");
  message.append(" is not accepted: ");
  message.append(refused ? knob.refusal : "expected " + KnobAccepts(knob));
  return absl::InvalidArgumentError(message);
}

}  // namespace byteps
