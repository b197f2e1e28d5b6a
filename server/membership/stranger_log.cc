#include "server/membership/stranger_log.h"

#include <algorithm>

namespace byteps {

void StrangerLog::Say(Time now, const std::string& address, const std::string& what) {
  if (lines_ == kBurst) refilled_ = now;
  const Time passed = (now - refilled_) / kInterval;
  refilled_ += passed * kInterval;
  lines_ = static_cast<uint32_t>(std::min<Time>(kBurst, lines_ + passed));
  if (lines_ == 0) {
    ++left_out_;
    return;
  }
  --lines_;
  Flush();
  // Parts of it are the stranger's own words.
  std::string printable = what;
  for (char& c : printable) {
    if (static_cast<unsigned char>(c) < ' ' || c == 0x7f) c = '?';
  }
  BPS_LOG(*log_, kWarning) << "turned away a connection from " << address << ": " << printable;
}

void StrangerLog::Flush() {
  if (left_out_ == 0) return;
  BPS_LOG(*log_, kWarning) << "turned away " << left_out_ << " more connections";
  left_out_ = 0;
}

}  // namespace byteps
