#include "tools/model_file.h"

#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <utility>
#include <vector>

namespace byteps {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMostElements = uint64_t{1} << 40;

// 0: no shape.
uint64_t ElementsOf(const std::string& shape) {
  uint64_t elements = 1;
  const char* at = shape.data();
  const char* end = at + shape.size();
  while (true) {
    uint64_t extent = 0;
    const auto read = std::from_chars(at, end, extent);
    if (read.ec != std::errc() || extent == 0 || extent > kMostElements / elements) return 0;
    elements *= extent;
    if (read.ptr == end) return elements;
    if (*read.ptr != 'x') return 0;
    at = read.ptr + 1;
  }
}

std::optional<double> MillisecondsOf(const std::string& word) {
  double time = 0;
  const auto read = std::from_chars(word.data(), word.data() + word.size(), time);
  if (read.ec != std::errc() || read.ptr != word.data() + word.size()) return std::nullopt;
  if (!std::isfinite(time) || time < 0) return std::nullopt;
  return time;
}

absl::Status Wrong(int line, const std::string& what) {
  return absl::InvalidArgumentError("line " + std::to_string(line) + ": " + what);
}

// What has been read of a file, line by line.
class Reading {
 public:
  absl::Status Line(int number, const std::string& line) {
    if (line.rfind('#', 0) == 0) {
      if (line.rfind("# ", 0) == 0 && model_.source.empty()) model_.source = line.substr(2);
      return absl::OkStatus();
    }
    std::istringstream stream(line);
    std::vector<std::string> words;
    for (std::string word; stream >> word;) words.push_back(word);
    if (words.empty()) return absl::OkStatus();
    if (words[0] == "tensor") return Tensor(number, words);
    if (words.size() != 2 || (words[0] != "forward_ms" && words[0] != "backward_ms")) {
      return Wrong(number, "expected `forward_ms MS`, `backward_ms MS` or `tensor ...`");
    }
    const std::optional<double> time = MillisecondsOf(words[1]);
    if (!time.has_value()) return Wrong(number, words[1] + " is no time in milliseconds");
    if (!times_.emplace(words[0], *time).second) return Wrong(number, words[0] + " is there already");
    return absl::OkStatus();
  }

  absl::StatusOr<ModelFile> End() && {
    if (model_.tensors.empty() || times_.size() != 2) {
      return absl::InvalidArgumentError("it needs forward_ms, backward_ms and tensors");
    }
    // Here, since the lines may be in any order.
    for (const Needs& needs : needs_) {
      if (needs.begins > times_["forward_ms"]) return Wrong(needs.line, "its layer begins beyond forward_ms");
      if (needs.ready > times_["backward_ms"]) return Wrong(needs.line, "its gradient is ready beyond backward_ms");
    }
    if (times_["forward_ms"] + times_["backward_ms"] == 0) {
      return absl::InvalidArgumentError("a step that computes nothing: forward_ms and backward_ms are both 0");
    }
    return std::move(model_);
  }

 private:
  struct Needs {
    int line;
    double begins, ready;
  };

  absl::Status Tensor(int number, const std::vector<std::string>& words) {
    if (words.size() != 5) {
      return Wrong(number, "expected `tensor NAME SHAPE BEGINS_MS READY_MS`, such as `tensor fc.weight 10x20 0 0`");
    }
    const ModelTensor tensor{words[1], words[2], ElementsOf(words[2])};
    if (tensor.elements == 0) {
      return Wrong(
          number, tensor.shape + " is no shape: sizes of at least 1, such as 64x3x3, and at most 2^40 elements in all");
    }
    const std::optional<double> begins = MillisecondsOf(words[3]), ready = MillisecondsOf(words[4]);
    if (!begins.has_value()) return Wrong(number, words[3] + " is no time in milliseconds");
    if (!ready.has_value()) return Wrong(number, words[4] + " is no time in milliseconds");
    const auto [known, is_new] = lines_.emplace(tensor.name, number);
    if (!is_new) {
      return Wrong(number, "there is a tensor " + tensor.name + " already, in line " + std::to_string(known->second));
    }
    model_.tensors.push_back(tensor);
    needs_.push_back({number, *begins, *ready});
    return absl::OkStatus();
  }

  ModelFile model_;
  std::map<std::string, double> times_;
  std::map<std::string, int> lines_;  // of the tensors
  std::vector<Needs> needs_;
};

// Beside the program: in the tree of a build, or in an installed package.
std::vector<fs::path> Folders() {
  std::error_code error;
  std::vector<fs::path> folders;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) return folders;
  folders.push_back(program.string() + ".runfiles/byteps/tools/models");
  folders.push_back(program.parent_path().parent_path() / "models");                       // of the Python package
  folders.push_back(program.parent_path().parent_path() / "share" / "byteps" / "models");  // of an installed folder
  return folders;
}

}  // namespace

uint64_t ModelFile::elements() const {
  uint64_t sum = 0;
  for (const ModelTensor& tensor : tensors) sum += tensor.elements;
  return sum;
}

absl::StatusOr<ModelFile> ParseModel(std::istream& file) {
  Reading reading;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (absl::Status status = reading.Line(number, line); !status.ok()) return status;
  }
  return std::move(reading).End();
}

absl::StatusOr<ModelFile> ReadModel(const std::string& name) {
  std::vector<fs::path> files;
  std::string known;
  const bool is_path = name.find('/') != std::string::npos;
  if (is_path) files.push_back(name);
  for (const fs::path& folder : Folders()) {
    if (!is_path) files.push_back(folder / (name + ".model"));
    std::error_code error;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
      if (entry.path().extension() == ".model") known += (known.empty() ? "" : ", ") + entry.path().stem().string();
    }
  }
  for (const fs::path& path : files) {
    std::error_code error;
    if (fs::is_directory(path, error)) return absl::InvalidArgumentError(path.string() + ": it is a folder");
    std::ifstream file(path);
    if (!file) continue;
    absl::StatusOr<ModelFile> model = ParseModel(file);
    if (model.ok()) return model;
    return absl::InvalidArgumentError(path.string() + ": " + std::string(model.status().message()));
  }
  return absl::NotFoundError("there is no model \"" + name + "\"; known are " + (known.empty() ? "none" : known) +
                             ", and any file whose path has a slash");
}

}  // namespace byteps
