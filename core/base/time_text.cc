#include "core/base/time_text.h"

namespace byteps {

std::string SecondsText(Time time) {
  const Time milliseconds = time / kMillisecond;
  std::string text = std::to_string(milliseconds / 1000);
  if (milliseconds % 1000 != 0) {
    std::string rest = std::to_string(1000 + milliseconds % 1000).substr(1);
    while (rest.back() == '0') rest.pop_back();
    text += "." + rest;
  }
  return text + " s";
}

}  // namespace byteps
