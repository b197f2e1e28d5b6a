#include "device_plugins/fake/options.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "abi/byteps.h"
#include "device_plugins/common/error.h"

namespace byteps::fake {
namespace {

using devices::Error;

[[noreturn]] void Fail(const std::string& what) {
  throw Error(BPS_INVALID_ARGUMENT, "BYTEPS_FAKE_GPU: " + what +
                                        "; expected devices=N,schedule=early|late|random,seed=N,"
                                        "memory=BYTES,patience=N");
}

uint64_t Number(const std::string& name, const std::string& value) {
  char* end = nullptr;
  const uint64_t number = std::strtoull(value.c_str(), &end, 10);
  if (value.empty() || *end != '\0') Fail(name + "=\"" + value + "\" is no number");
  return number;
}

}  // namespace

Options ReadOptions(const std::string& text) {
  Options options;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string item = text.substr(at, end - at);
    at = end + 1;
    const size_t equals = item.find('=');
    const std::string name = item.substr(0, equals);
    const std::string value = equals == std::string::npos ? "" : item.substr(equals + 1);
    if (name == "devices") {
      options.devices = static_cast<int>(Number(name, value));
    } else if (name == "seed") {
      options.seed = Number(name, value);
    } else if (name == "memory") {
      options.memory = Number(name, value);
    } else if (name == "patience") {
      options.patience = std::max<uint64_t>(1, Number(name, value));
    } else if (name == "schedule" && value == "early") {
      options.schedule = Schedule::kEarly;
    } else if (name == "schedule" && value == "late") {
      options.schedule = Schedule::kLate;
    } else if (name == "schedule" && value == "random") {
      options.schedule = Schedule::kRandom;
    } else {
      Fail("\"" + item + "\" means nothing");
    }
  }
  return options;
}

}  // namespace byteps::fake
