#include "tests/transport_plugins/libfabric/lossy_wire.h"

#include <algorithm>
#include <utility>

namespace byteps::fabric {

int LossyWire::Receive(void* buffer, size_t size, void* descriptor, fi_context2* context) {
  receives_.insert(context);
  return wire_.Receive(buffer, size, descriptor, context);
}

int LossyWire::Send(fi_addr_t to, const void* data, size_t size, void* descriptor, fi_context2* context) {
  ++asked_;
  if (!heard_) ++asked_unheard_;
  if (lost_ == losses_) return wire_.Send(to, data, size, descriptor, context);
  ++lost_;
  WireCompletion completion;
  completion.context = context;
  completion.error = error_;
  if (error_ != 0) completion.detail = "lost on purpose";
  ended_.push_back(completion);
  return 0;
}

int LossyWire::Write(fi_addr_t to, const void* data, size_t size, void* descriptor, uint32_t immediate,
                     const RemoteMemory& at, fi_context2* context) {
  return wire_.Write(to, data, size, descriptor, immediate, at, context);
}

size_t LossyWire::Read(WireCompletion* completions, size_t capacity) {
  size_t count = 0;
  for (; count < capacity && !ended_.empty(); ++count) {
    completions[count] = std::move(ended_.front());
    ended_.pop_front();
  }
  if (count != 0) return count;
  count = wire_.Read(completions, capacity);
  heard_ |= std::any_of(completions, completions + count,
                        [this](const WireCompletion& c) { return c.error == 0 && receives_.count(c.context) != 0; });
  return count;
}

}  // namespace byteps::fabric
