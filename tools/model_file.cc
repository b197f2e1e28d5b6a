#include "tools/model_file.h"

#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>

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

// Beside the program: in the tree of a build, or in an installed package.
std::vector<fs::path> Folders() {
  std::error_code error;
  std::vector<fs::path> folders;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (error) return folders;
  folders.push_back(program.string() + ".runfiles/byteps/tools/models");
  folders.push_back(program.parent_path().parent_path() / "models");
  return folders;
}

}  // namespace

uint64_t ModelFile::elements() const {
  uint64_t sum = 0;
  for (const ModelTensor& tensor : tensors) sum += tensor.elements;
  return sum;
}

absl::StatusOr<ModelFile> ParseModel(std::istream& file) {
  ModelFile model;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (line.rfind("# ", 0) == 0 && model.tensors.empty() && model.source.empty()) model.source = line.substr(2);
    std::istringstream words(line);
    std::string word;
    if (!(words >> word) || word != "tensor") continue;
    ModelTensor tensor;
    words >> tensor.name >> tensor.shape;
    tensor.elements = ElementsOf(tensor.shape);
    if (tensor.elements == 0) {
      return absl::InvalidArgumentError("line " + std::to_string(number) +
                                        ": expected `tensor NAME SHAPE ...`, such as `tensor fc.weight 10x20 0 0`");
    }
    model.tensors.push_back(std::move(tensor));
  }
  if (model.tensors.empty()) return absl::InvalidArgumentError("it lists no tensor");
  return model;
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
