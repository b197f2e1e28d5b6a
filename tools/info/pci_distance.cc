#include "tools/info/pci_distance.h"

#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <tuple>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "tools/info/sysfs.h"

namespace byteps {
namespace {

// From the host bridge on: {"pci0000:00", "0000:00:01.0", "0000:1b:00.0"}; empty: no PCI device.
using PciPath = std::vector<std::string>;

bool IsPciAddress(const std::string& name) {
  // "0000:1b:00.0"; a domain may have more digits.
  return std::count(name.begin(), name.end(), ':') == 2 && std::count(name.begin(), name.end(), '.') == 1;
}

PciPath PathOf(const std::string& link) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(link, error);
  PciPath path;
  if (error) return path;
  for (const std::filesystem::path& part : real) {
    const std::string name = part.string();
    if (path.empty() ? name.starts_with("pci") && name.find(':') != std::string::npos : IsPciAddress(name)) {
      path.push_back(name);
    }
  }
  if (path.size() < 2) path.clear();
  return path;
}

// How far, and in words.
std::pair<int, const char*> Between(const PciPath& a, int64_t node, const PciPath& b, int64_t other) {
  const auto last = std::min(a.end(), a.begin() + static_cast<std::ptrdiff_t>(b.size()));
  const auto common = std::mismatch(a.begin(), last, b.begin()).first - a.begin();
  if (common == 0) {
    if (node != other) return {4, "on another NUMA node"};
    return {3, "behind another host bridge of the same NUMA node"};
  }
  if (common == 1) return {2, "behind the same PCI host bridge"};
  const auto bridges = std::max(a.size(), b.size()) - static_cast<size_t>(common);
  return bridges <= 1 ? std::pair(0, "behind the same PCI bridge") : std::pair(1, "some PCI bridges away");
}

}  // namespace

std::string NearestCards(const std::string& root, const std::string& pci) {
  const std::string gpu = root + "/sys/bus/pci/devices/" + absl::AsciiStrToLower(pci);
  const PciPath path = PathOf(gpu);
  if (path.empty()) return "";
  const int64_t node = ReadNumber(gpu + "/numa_node", -1);
  struct Card {
    int distance;
    std::string name;
    const char* words;
  };
  std::vector<Card> cards;
  for (const char* folder : {"/sys/class/infiniband", "/sys/class/net"}) {
    for (const std::string& name : Entries(root + folder)) {
      const std::string device = absl::StrCat(root, folder, "/", name, "/device");
      const PciPath other = PathOf(device);
      if (other.empty()) continue;
      const auto [distance, words] = Between(path, node, other, ReadNumber(device + "/numa_node", -1));
      cards.push_back({distance, name, words});
    }
  }
  std::stable_sort(cards.begin(), cards.end(), [](const Card& a, const Card& b) { return a.distance < b.distance; });
  std::string text = node < 0 ? "" : absl::StrCat(", NUMA node ", node);
  for (const Card& card : cards) absl::StrAppend(&text, ", ", card.name, " ", card.words);
  return text;
}

}  // namespace byteps
