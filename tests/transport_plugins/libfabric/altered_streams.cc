// altered_streams.cc - preloaded: this process alters one place of what it sends over TCP by libfabric.
//
//     ALTERED_STREAMS="1000000 255" LD_PRELOAD=libaltered_streams.so byteps_server
//
// The two numbers: which byte of all parts of tensors that it sends, and what it is xored with.
#include <cstdio>
#include <cstdlib>

#include "tests/transport_plugins/libfabric/stream_changer.h"

namespace {

__attribute__((constructor)) void Begin() {
  const char* text = std::getenv("ALTERED_STREAMS");
  const char* port = std::getenv("DMLC_PS_ROOT_PORT");
  size_t at = 0;
  unsigned flip = 0;
  if (text == nullptr || std::sscanf(text, "%zu %u", &at, &flip) != 2) return;
  byteps::testing::TheStreamChanger().Set({byteps::testing::Where::kPayload, at, static_cast<uint8_t>(flip)},
                                          static_cast<uint16_t>(port == nullptr ? 0 : std::atoi(port)));
}

}  // namespace
