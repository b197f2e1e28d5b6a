// utf8.h - is this text valid UTF-8?
//
// Text that goes into control messages must be: protobuf refuses a message with anything else.
#ifndef BYTEPS_CORE_BASE_UTF8_H_
#define BYTEPS_CORE_BASE_UTF8_H_

#include <string_view>

namespace byteps {

// True for well-formed UTF-8 (RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF).
bool IsUtf8(std::string_view text);

}  // namespace byteps

#endif  // BYTEPS_CORE_BASE_UTF8_H_
