// model_file.h - the tensors of a well-known network, as the files in tools/models list them.
//
//     absl::StatusOr<ModelFile> model = ReadModel("resnet50");          // or the path of a file
//
// A file is lines of words. `#` at the beginning of a line makes it a comment: the first one names the source.
// `forward_ms MS` and `backward_ms MS` say how long a step computes; `tensor NAME SHAPE BEGINS_MS READY_MS`, in the
// order of declaration, when in the forward pass its layer begins and when in the backward pass its gradient is there.
// The times are for bps_perf (tools/perf/model.py reads the same files); here they are only checked.
//
// Threads: free functions.
#ifndef BYTEPS_TOOLS_MODEL_FILE_H_
#define BYTEPS_TOOLS_MODEL_FILE_H_

#include <cstdint>
#include <istream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace byteps {

struct ModelTensor {
  std::string name;
  std::string shape;  // "64x3x3x3"
  uint64_t elements = 0;
};

struct ModelFile {
  std::string source;
  std::vector<ModelTensor> tensors;

  uint64_t elements() const;
};

// INVALID_ARGUMENT names the line that is wrong.
absl::StatusOr<ModelFile> ParseModel(std::istream& file);

// A name without a slash is that of a shipped file. NOT_FOUND lists those there are.
absl::StatusOr<ModelFile> ReadModel(const std::string& name);

}  // namespace byteps

#endif  // BYTEPS_TOOLS_MODEL_FILE_H_
