#include "core/worker/tensor/stage.h"

#include <stdexcept>

#include "absl/strings/str_cat.h"

namespace byteps {

void Stage::UseNext(Stage* next) {
  throw std::logic_error(
      absl::StrCat("the stage ", name(), " is the last of its chain; ", next->name(), " cannot stand behind it"));
}

}  // namespace byteps
