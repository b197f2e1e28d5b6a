// config_format.h - the configuration for people: as text with values, and as the page of documentation.
//
//     std::cout << ConfigText(config, false);      // what bps_info prints
//     std::cout << ConfigMarkdown();               // docs/configuration.md
#ifndef BYTEPS_CORE_CONFIG_CONFIG_FORMAT_H_
#define BYTEPS_CORE_CONFIG_CONFIG_FORMAT_H_

#include <cstdint>
#include <string>

#include "core/config/config.h"

namespace byteps {

// One line per knob: name, value, where it is from, what it does. Without `all`: those that act, and those that are
// set.
std::string ConfigText(const Config& config, bool all);

// The whole of docs/configuration.md. The same for every environment.
std::string ConfigMarkdown();

// "worker, server", "every role".
std::string ReaderNames(uint32_t readers);

}  // namespace byteps

#endif  // BYTEPS_CORE_CONFIG_CONFIG_FORMAT_H_
