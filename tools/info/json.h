// json.h - JSON, put together from its parts.
//
//     std::cout << JsonObject({{"name", JsonString("tcp")}, {"usable", JsonBool(true)}});   // {"name": "tcp", ...}
//
// Values are texts of JSON already; JsonString makes one of any bytes.
//
// Threads: free functions.
#ifndef BYTEPS_TOOLS_INFO_JSON_H_
#define BYTEPS_TOOLS_INFO_JSON_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace byteps {

// In quotes. What is no UTF-8 (variables may hold any bytes) becomes U+FFFD, byte by byte.
std::string JsonString(std::string_view text);
inline std::string JsonBool(bool value) { return value ? "true" : "false"; }
// null for what is not there.
inline std::string JsonStringOrNull(std::string_view text) { return text.empty() ? "null" : JsonString(text); }
std::string JsonStrings(const std::vector<std::string>& texts);

std::string JsonArray(const std::vector<std::string>& values);
std::string JsonObject(const std::vector<std::pair<std::string, std::string>>& members);

}  // namespace byteps

#endif  // BYTEPS_TOOLS_INFO_JSON_H_
