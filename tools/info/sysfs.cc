#include "tools/info/sysfs.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace byteps {
namespace {

std::string Trim(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \t\r") - begin + 1);
}

}  // namespace

std::string ReadLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return Trim(line);
}

int64_t ReadNumber(const std::string& path, int64_t otherwise) {
  const std::string line = ReadLine(path);
  char* end = nullptr;
  const int64_t number = std::strtoll(line.c_str(), &end, 0);
  return end == line.c_str() ? otherwise : number;
}

std::string ReadField(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t at = line.find(key + ":");
    if (at != std::string::npos && (at == 0 || line[at - 1] == ' ')) return Trim(line.substr(at + key.size() + 1));
  }
  return "";
}

std::vector<std::string> Entries(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    std::string name = entry.path().filename().string();
    if (name[0] != '.') names.push_back(std::move(name));
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string LinkName(const std::string& path) {
  std::error_code error;
  return std::filesystem::read_symlink(path, error).filename().string();
}

std::string Bytes(uint64_t bytes) {
  constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  auto value = static_cast<double>(bytes);
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  char text[64];
  const bool whole = value == static_cast<double>(static_cast<uint64_t>(value));
  std::snprintf(text, sizeof(text), whole ? "%.0f %s" : "%.1f %s", value, kUnits[unit]);
  return text;
}

}  // namespace byteps
