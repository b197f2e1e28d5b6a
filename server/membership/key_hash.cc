#include "server/membership/key_hash.h"

#include <functional>
#include <string>

namespace byteps {
namespace {

uint64_t Djb2(const std::string& text) {
  uint64_t hash = 5381;
  for (const char c : text) hash = hash * 33 + static_cast<uint64_t>(c);
  return hash;
}

uint64_t Sdbm(const std::string& text) {
  uint64_t hash = 0;
  for (const char c : text) hash = static_cast<uint64_t>(c) + (hash << 6) + (hash << 16) - hash;
  return hash;
}

uint32_t Mixed(const KeyHash& hash, uint64_t value, uint32_t servers) {
  std::vector<uint32_t> dedicated, colocated;
  for (uint32_t server = 0; server < servers; ++server) {
    const bool apart = server < hash.dedicated.size() && hash.dedicated[server];
    (apart ? dedicated : colocated).push_back(server);
  }
  if (dedicated.empty() || colocated.empty()) return static_cast<uint32_t>(value % servers);
  const auto k = static_cast<double>(dedicated.size());
  const auto n = static_cast<double>(colocated.size());
  const double denominator = n * (n + k) - 2 * k;
  // One worker host and one more server: nothing is left of the formula.
  const double ratio = denominator > 0 ? 2 * k * (n - 1) / denominator : 0;
  const bool apart = static_cast<double>(value % hash.bound) < ratio * static_cast<double>(hash.bound);
  const std::vector<uint32_t>& chosen = apart ? dedicated : colocated;
  return chosen[value % chosen.size()];
}

}  // namespace

const char* KeyHashName(KeyHash::Function function) {
  switch (function) {
    case KeyHash::Function::kNone:
      return "none";
    case KeyHash::Function::kNaive:
      return "naive";
    case KeyHash::Function::kBuiltIn:
      return "built_in";
    case KeyHash::Function::kDjb2:
      return "djb2";
    case KeyHash::Function::kSdbm:
      return "sdbm";
    case KeyHash::Function::kMixed:
      return "mixed";
  }
  return "?";
}

uint32_t KeyHash::Server(uint64_t key, uint32_t servers) const {
  const std::string text = std::to_string(key);
  switch (function) {
    case Function::kNone:
      return 0;
    case Function::kNaive:
      return static_cast<uint32_t>(((key >> 16) + key % 65536) * 9973 % servers);
    case Function::kBuiltIn:
      return static_cast<uint32_t>(std::hash<std::string>()(text) * coefficient % servers);
    case Function::kDjb2:
      return static_cast<uint32_t>(Djb2(text) % servers);
    case Function::kSdbm:
      return static_cast<uint32_t>(Sdbm(text) % servers);
    case Function::kMixed:
      return Mixed(*this, Djb2(text), servers);
  }
  return 0;
}

KeyHash ReadKeyHash(const Config& config) {
  KeyHash hash;
  const std::string& name = config.GetString("BYTEPS_KEY_HASH_FN");
  for (const KeyHash::Function function :
       {KeyHash::Function::kNaive, KeyHash::Function::kBuiltIn, KeyHash::Function::kDjb2, KeyHash::Function::kSdbm,
        KeyHash::Function::kMixed}) {
    if (name == KeyHashName(function)) hash.function = function;
  }
  hash.coefficient = static_cast<uint64_t>(config.GetInt("BYTEPS_BUILT_IN_HASH_COEF"));
  hash.bound = static_cast<uint64_t>(config.GetInt("BYTEPS_MIXED_MODE_BOUND"));
  return hash;
}

}  // namespace byteps
