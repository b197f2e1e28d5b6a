#include "core/config/config.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "core/config/knob_value.h"

namespace byteps {
namespace {

bool StartsWith(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

// BYTEPS_ and DMLC_ are ours, so that a name of theirs that we do not know is a mistake. PS_ may be another program's.
bool IsOurs(std::string_view name) { return StartsWith(name, "BYTEPS_") || StartsWith(name, "DMLC_"); }

const Knob* FindKnob(std::string_view name) {
  const auto found = std::find_if(std::begin(kKnobs), std::end(kKnobs), [&](const Knob& k) { return name == k.name; });
  return found == std::end(kKnobs) ? nullptr : &*found;
}

bool IsAlias(std::string_view name) {
  return std::any_of(std::begin(kKnobs), std::end(kKnobs), [&](const Knob& knob) {
    return (knob.alias != nullptr && name == knob.alias) || (knob.alias_off != nullptr && name == knob.alias_off);
  });
}

// Insertions, deletions and replacements between two names.
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replace});
    }
  }
  return row[b.size()];
}

// "NAME is not a variable of BytePS; did you mean OTHER?"
std::string Unknown(std::string_view name) {
  std::string text(name);
  text += " is not a variable of BytePS";
  const Knob* nearest = nullptr;
  size_t least = 4;  // further away is no misspelling
  for (const Knob& knob : kKnobs) {
    const size_t distance = Distance(name, knob.name);
    if (distance >= least) continue;
    least = distance;
    nearest = &knob;
  }
  if (nearest != nullptr) text.append("; did you mean ").append(nearest->name).append("?");
  return text;
}

// The value of `name` in `variables`, or nullptr; empty counts as unset: templates of container systems produce it.
const std::string* Lookup(const Environment& variables, const char* name) {
  if (name == nullptr) return nullptr;
  const auto found = variables.find(name);
  if (found == variables.end()) return nullptr;
  return found->second.find_first_not_of(" \t\r\n") == std::string::npos ? nullptr : &found->second;
}

// What was found for a knob, where, and under which name.
struct Found {
  const std::string* text;
  ConfigSource source;
  const char* name;
};

Found FindValue(const Knob& knob, const Environment& environment, const Environment& arguments) {
  if (const std::string* text = Lookup(arguments, knob.name)) return {text, ConfigSource::kArgument, knob.name};
  if (const std::string* text = Lookup(environment, knob.name)) return {text, ConfigSource::kEnvironment, knob.name};
  if (const std::string* text = Lookup(environment, knob.alias_off)) {
    static const std::string kZero = "0";
    constexpr Knob kSwitch = {.name = "", .type = KnobType::kBool, .readers = 0, .meaning = ""};
    const absl::StatusOr<KnobValue> on = ParseKnob(kSwitch, *text);
    // What is no switch is an error, which names the variable.
    if (!on.ok() || on->number != 0) return {on.ok() ? &kZero : text, ConfigSource::kAlias, knob.alias_off};
  }
  if (const std::string* text = Lookup(environment, knob.alias)) {
    const absl::StatusOr<KnobValue> value = ParseKnob(knob, *text, knob.alias);
    const bool zero = *text == "0" || (value.ok() && value->number == 0);
    if (!zero || !knob.alias_zero_is_default) return {text, ConfigSource::kAlias, knob.alias};
  }
  return {nullptr, ConfigSource::kDefault, knob.name};
}

}  // namespace

Environment ReadEnvironment() {
  Environment environment;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text(*entry);
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view name = text.substr(0, equals);
    if (!IsOurs(name) && FindKnob(name) == nullptr && !IsAlias(name)) continue;
    // Of a name that is there twice the first counts, as for getenv.
    environment.emplace(name, text.substr(equals + 1));
  }
  return environment;
}

const char* ConfigSourceName(ConfigSource source) {
  switch (source) {
    case ConfigSource::kDefault:
      return "default";
    case ConfigSource::kAlias:
      return "alias";
    case ConfigSource::kEnvironment:
      return "environment";
    case ConfigSource::kArgument:
      return "argument";
  }
  return "unknown";
}

absl::StatusOr<Config> Config::Make(const Environment& environment, const Environment& arguments) {
  std::string errors;
  Config config = Collect(environment, arguments, &errors);
  if (!errors.empty()) return absl::InvalidArgumentError(errors);
  return config;
}

Config Config::Readable(const Environment& environment, const Environment& arguments) {
  std::string errors;
  return Collect(environment, arguments, &errors);
}

Config Config::Collect(const Environment& environment, const Environment& arguments, std::string* errors) {
  Config config;
  const auto add_error = [&](std::string_view text) {
    if (!errors->empty()) *errors += "; ";
    errors->append(text);
  };
  for (size_t i = 0; i < kKnobCount; ++i) {
    const Knob& knob = kKnobs[i];
    Value& value = config.values_[i];
    const Found found = FindValue(knob, environment, arguments);
    if (found.text == nullptr && knob.fallback == nullptr) continue;
    const std::string_view text = found.text != nullptr ? std::string_view(*found.text) : knob.fallback;
    absl::StatusOr<KnobValue> parsed = ParseKnob(knob, text, found.name);
    if (!parsed.ok()) {
      add_error(std::string(parsed.status().message()));
      if (knob.fallback == nullptr) continue;
      parsed = ParseKnob(knob, knob.fallback);
      if (parsed.ok()) {
        value = {true, ConfigSource::kDefault, parsed->number, std::move(parsed->text), std::move(parsed->plain)};
      }
      continue;
    }
    value = {true, found.source, parsed->number, std::move(parsed->text), std::move(parsed->plain)};
    config.Warn(knob, found.name, value);
  }
  config.WarnOfIdleCredit();
  for (const auto& [name, text] : arguments) {
    if (FindKnob(name) == nullptr) add_error(Unknown(name));
  }
  for (const auto& [name, text] : environment) {
    if (IsOurs(name) && FindKnob(name) == nullptr && !IsAlias(name)) config.warnings_.push_back(Unknown(name));
  }
  return config;
}

void Config::Warn(const Knob& knob, std::string_view shown_as, const Value& value) {
  if (knob.status == KnobStatus::kActive || value.source == ConfigSource::kDefault) return;
  // A value that asks for what happens anyway needs no warning.
  if (knob.fallback != nullptr) {
    const absl::StatusOr<KnobValue> fallback = ParseKnob(knob, knob.fallback);
    if (fallback.ok() && fallback->number == value.number &&
        (knob.type != KnobType::kString || fallback->text == value.text)) {
      return;
    }
  }
  std::string text(shown_as);
  text += knob.status == KnobStatus::kRetired ? " is set, but has no meaning in this version ("
                                              : " is set, but this release does not act on it (";
  text.append(knob.meaning).append(")");
  warnings_.push_back(std::move(text));
}

// Which of the shipped schedulers read it is known; another one may.
void Config::WarnOfIdleCredit() {
  const std::string& scheduler = GetString("BYTEPS_SCHEDULER");
  if (!IsSet("BYTEPS_SCHEDULING_CREDIT") || (scheduler != "fifo" && scheduler != "priority")) return;
  warnings_.push_back("BYTEPS_SCHEDULING_CREDIT is set, but has no effect with BYTEPS_SCHEDULER=" + scheduler +
                      ": credit is the scheduler that bounds what is on its way");
}

LogOptions Config::GetLogOptions() const {
  constexpr std::pair<std::string_view, LogLevel> kLevels[] = {
      {"trace", LogLevel::kTrace},     {"debug", LogLevel::kDebug}, {"info", LogLevel::kInfo},
      {"warning", LogLevel::kWarning}, {"error", LogLevel::kError}, {"fatal", LogLevel::kFatal}};
  LogOptions options;
  for (const auto& [name, level] : kLevels) {
    if (GetString("BYTEPS_LOG_LEVEL") == name) options.level = level;
  }
  options.verbose = static_cast<int>(GetInt("PS_VERBOSE"));
  options.hide_time = GetBool("BYTEPS_LOG_HIDE_TIME");
  return options;
}

void Config::LogWarnings(const Logger& log) const {
  for (const std::string& warning : warnings_) BPS_LOG(log, kWarning) << warning;
}

std::string Config::ShownAt(size_t index) const {
  const Value& value = values_[index];
  if (!value.present) return "";
  return kKnobs[index].secret ? "(secret)" : value.text;
}

const char* Config::PluginValue(std::string_view name) const {
  const Knob* knob = FindKnob(name);
  // A plugin has no business with the job's secret.
  if (knob == nullptr || knob->secret) return nullptr;
  const Value& value = values_[static_cast<size_t>(knob - kKnobs.data())];
  return value.present ? value.plain.c_str() : nullptr;
}

}  // namespace byteps
