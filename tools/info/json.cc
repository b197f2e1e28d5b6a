#include "tools/info/json.h"

#include <cstddef>
#include <cstdio>

namespace byteps {
namespace {

// Bytes of the character of UTF-8 that `text` begins with; 0 if it begins with none.
size_t CharacterSize(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const size_t size = byte(0) < 0x80 ? 1 : byte(0) < 0xc2 ? 0 : byte(0) < 0xe0 ? 2 : byte(0) < 0xf0 ? 3 : 4;
  if (size == 0 || byte(0) > 0xf4 || size > text.size()) return 0;
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  // Longer than needed, halves of UTF-16's pairs, beyond the last character.
  if (byte(0) == 0xe0 && byte(1) < 0xa0) return 0;
  if (byte(0) == 0xed && byte(1) > 0x9f) return 0;
  if (byte(0) == 0xf0 && byte(1) < 0x90) return 0;
  if (byte(0) == 0xf4 && byte(1) > 0x8f) return 0;
  return size;
}

std::string Join(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text.append(text.empty() ? "" : ", ").append(part);
  return text;
}

}  // namespace

std::string JsonString(std::string_view text) {
  std::string quoted = "\"";
  while (!text.empty()) {
    const size_t size = CharacterSize(text);
    const char first = text[0];
    if (size == 0) {
      quoted += "\\ufffd";
    } else if (first == '"' || first == '\\') {
      quoted.append("\\").append(1, first);
    } else if (static_cast<unsigned char>(first) < ' ') {
      char code[8];
      std::snprintf(code, sizeof(code), "\\u%04x", static_cast<unsigned>(first));
      quoted += code;
    } else {
      quoted += text.substr(0, size);
    }
    text.remove_prefix(size == 0 ? 1 : size);
  }
  return quoted + "\"";
}

std::string JsonStrings(const std::vector<std::string>& texts) {
  std::vector<std::string> values;
  for (const std::string& text : texts) values.push_back(JsonString(text));
  return JsonArray(values);
}

std::string JsonArray(const std::vector<std::string>& values) { return "[" + Join(values) + "]"; }

std::string JsonObject(const std::vector<std::pair<std::string, std::string>>& members) {
  std::vector<std::string> parts;
  for (const auto& [name, value] : members) parts.push_back(JsonString(name) + ": " + value);
  return "{" + Join(parts) + "}";
}

}  // namespace byteps
