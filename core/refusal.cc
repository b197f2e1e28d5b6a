#include "core/refusal.h"

#include <poll.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "core/time.h"

namespace byteps {
namespace {

// Of a reason; the coordinator takes no more.
constexpr size_t kMaxReason = 2048;
// For a connection, and for the answer to be there.
constexpr Time kConnectTime = 3 * kSecond;
constexpr Time kAnswerTime = 10 * kSecond;

class Teller final : private ControlHandler {
 public:
  Teller(ControlLinkOptions options, Time now) : link_(std::move(options), this, now) {}

  // What the coordinator has answered; OK: nothing.
  absl::Status Run(Time now) {
    const Time connect = After(now, kConnectTime), answer = After(now, kAnswerTime);
    while (answer_.ok() && !welcome_) {
      const Time deadline = link_.client().state() == ControlState::kConnecting ? connect : answer;
      if (Now() >= deadline) break;
      struct pollfd polled = {link_.fd(), link_.events(), 0};
      ::poll(&polled, 1, PollTimeout(Now(), std::min(deadline, link_.NextTimer())));
      link_.Drive(Now());
    }
    return answer_;
  }

 private:
  void Send(const control::Envelope& envelope) override { link_.Send(envelope); }
  void OnWelcome(const control::Welcome&) override { welcome_ = true; }  // it knows nothing of refusals
  void OnEpoch(const control::Epoch&) override {}
  void OnFailure(const absl::Status& fatal) override { answer_ = fatal; }

  bool welcome_ = false;
  absl::Status answer_;
  ControlLink link_;
};

}  // namespace

absl::Status TellRefusal(ControlLinkOptions options, const absl::Status& why) {
  const std::string reason = std::string(why.message()).substr(0, kMaxReason);
  options.client.hello.clear_lanes();
  options.client.hello.set_refusal(reason);
  const Time now = Now();
  options.client.start_timeout = std::min(options.client.start_timeout, kAnswerTime);
  const absl::Status answer = Teller(std::move(options), now).Run(now);
  return absl::StrContains(answer.message(), reason) ? absl::Status(why.code(), answer.message()) : why;
}

}  // namespace byteps
