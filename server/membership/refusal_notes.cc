#include "server/membership/refusal_notes.h"

#include <algorithm>
#include <utility>

namespace byteps {

bool RefusalNotes::Add(const std::string& text) {
  // Parts of it are the stranger's own words.
  std::string printable = text.substr(0, kMaxBytes);
  for (char& c : printable) {
    if (static_cast<unsigned char>(c) < ' ' || static_cast<unsigned char>(c) > '~') c = '?';
  }
  if (std::find(texts_.begin(), texts_.end(), printable) != texts_.end()) return false;
  texts_.push_back(std::move(printable));
  if (texts_.size() > kMost) texts_.pop_front();
  return true;
}

}  // namespace byteps
