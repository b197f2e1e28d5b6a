// config.h - the values of all knobs for one session, server, coordinator or tool.
//
//     absl::StatusOr<Config> config = Config::Make(ReadEnvironment(), {{"BYTEPS_TRANSPORT", args.transport}});
//     std::chrono::nanoseconds timeout = config->GetDuration("BYTEPS_OP_TIMEOUT");
//     if (config->Has("BYTEPS_PARTITION_BYTES")) bound = config->GetInt("BYTEPS_PARTITION_BYTES");
//     config->LogWarnings(log);
//
// Knobs are named by string literals that are checked when the code is compiled: a misspelt name, or a getter of
// another type than the table's, does not build. Values come from, in this order: explicit arguments, the variable, its
// alias, the table's default. An empty variable counts as unset.
//
// Threads:   immutable once made; may be read on any thread.
// Ownership: a value type; references it gives are valid as long as it lives and is not assigned to.
// Errors:    Make names every value that is not accepted, and what would be, in one INVALID_ARGUMENT.
#ifndef BYTEPS_CORE_CONFIG_CONFIG_H_
#define BYTEPS_CORE_CONFIG_CONFIG_H_

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/log.h"
#include "core/config/knobs.h"
#include "core/plugin/plugin_host.h"

namespace byteps {

// Variables and their values.
using Environment = std::map<std::string, std::string>;

// A snapshot of this process's environment: the variables of the table, their aliases, and whatever else begins with
// BYTEPS_ or DMLC_. The host must not change its environment on another thread meanwhile.
Environment ReadEnvironment();

inline constexpr size_t kKnobCount = std::size(kKnobs);

// Where the value of a knob is from.
enum class ConfigSource { kDefault, kAlias, kEnvironment, kArgument };
const char* ConfigSourceName(ConfigSource source);

// A knob of the table, by its name; `types` are those its user can read.
template <KnobType... types>
class KnobKey {
 public:
  // Fails to compile for a name that is not in the table or has another type.
  consteval KnobKey(const char* name) : index_(Find(name)) {}  // NOLINT(google-explicit-constructor)
  constexpr size_t index() const { return index_; }

 private:
  static consteval size_t Find(std::string_view name) {
    for (size_t i = 0; i < kKnobCount; ++i) {
      if (name != kKnobs[i].name) continue;
      if (sizeof...(types) != 0 && !((kKnobs[i].type == types) || ...)) throw "this knob has another type";
      return i;
    }
    throw "no such knob in core/config/knobs.h";
  }

  size_t index_;
};

class Config : public PluginConfig {
 public:
  // `arguments` are explicit values by the names of their knobs (those of bps_open_args, flags of a tool). A name that
  // is not in the table is an error there, and a warning in the environment.
  static absl::StatusOr<Config> Make(const Environment& environment, const Environment& arguments = {});

  // Where Make fails: what can be read all the same, the rest as if it were not set. For telling others of the failure.
  static Config Readable(const Environment& environment, const Environment& arguments = {});

  // Is there a value: one that was set, or a default?
  bool Has(KnobKey<> key) const { return values_[key.index()].present; }
  // Was it set?
  bool IsSet(KnobKey<> key) const { return values_[key.index()].source != ConfigSource::kDefault; }
  ConfigSource Source(KnobKey<> key) const { return values_[key.index()].source; }

  // Values of their types; 0, false or "" for a knob that has no value.
  int64_t GetInt(KnobKey<KnobType::kInt, KnobType::kBytes> key) const { return values_[key.index()].number; }
  bool GetBool(KnobKey<KnobType::kBool> key) const { return values_[key.index()].number != 0; }
  std::chrono::nanoseconds GetDuration(KnobKey<KnobType::kDuration> key) const {
    return std::chrono::nanoseconds(values_[key.index()].number);
  }
  const std::string& GetString(KnobKey<KnobType::kString, KnobType::kEnum> key) const {
    return values_[key.index()].text;
  }

  // What the log knobs ask for, for a Logger; the sink is left to the caller.
  LogOptions GetLogOptions() const;

  // What was set but has no effect, or looks like a misspelling; one sentence per variable.
  const std::vector<std::string>& warnings() const { return warnings_; }
  void LogWarnings(const Logger& log) const;

  // For tools and plugins: by position in kKnobs, and by name.
  ConfigSource SourceAt(size_t index) const { return values_[index].source; }
  // As text, "" if it has none; secrets as "(secret)".
  std::string ShownAt(size_t index) const;
  const char* PluginValue(std::string_view name) const override;

 private:
  struct Value {
    bool present = false;
    ConfigSource source = ConfigSource::kDefault;
    int64_t number = 0;
    std::string text;
    std::string plain;
  };

  Config() = default;
  // Every value that is accepted, and what is wrong with the others.
  static Config Collect(const Environment& environment, const Environment& arguments, std::string* errors);
  void Warn(const Knob& knob, std::string_view shown_as, const Value& value);
  void WarnOfIdleCredit();

  std::array<Value, kKnobCount> values_;
  std::vector<std::string> warnings_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_CONFIG_CONFIG_H_
