#include "core/base/utf8.h"

#include <cstddef>
#include <cstdint>

namespace byteps {

bool IsUtf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    const uint8_t lead = static_cast<uint8_t>(text[i++]);
    if (lead < 0x80) continue;
    int more;
    uint32_t point;
    uint32_t least;  // below it the form is overlong
    if (lead >= 0xc2 && lead <= 0xdf) {
      more = 1, point = lead & 0x1f, least = 0x80;
    } else if (lead >= 0xe0 && lead <= 0xef) {
      more = 2, point = lead & 0x0f, least = 0x800;
    } else if (lead >= 0xf0 && lead <= 0xf4) {
      more = 3, point = lead & 0x07, least = 0x10000;
    } else {
      return false;
    }
    for (; more > 0; --more) {
      if (i == text.size()) return false;
      const uint8_t next = static_cast<uint8_t>(text[i++]);
      if ((next & 0xc0) != 0x80) return false;
      point = point << 6 | (next & 0x3f);
    }
    if (point < least || point > 0x10ffff || (point >= 0xd800 && point <= 0xdfff)) return false;
  }
  return true;
}

}  // namespace byteps
