#include "core/control/refusal.h"

#include <poll.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "core/base/time.h"
#include "core/control/control_socket.h"

namespace byteps {
namespace {

// Of a reason; the coordinator takes no more.
constexpr size_t kMaxReason = 2048;
// For a connection: what the start may take, within these; then for the answer to be there.
constexpr Time kLeastConnectTime = 3 * kSecond;
constexpr Time kMostConnectTime = 30 * kSecond;
constexpr Time kAnswerTime = 10 * kSecond;
// For the resolver to answer, where the start may take no more: with an unknown name there is no coordinator to report
// to.
constexpr Time kLeastLookupTime = 500 * kMillisecond;
// After that the log says what is waited for: a mistyped command shows its mistake. Earlier, the answer may be on its
// way, and say the same again.
constexpr Time kSilence = 100 * kMillisecond;

class Teller final : private ControlHandler {
 public:
  Teller(ControlLinkOptions options, Time now) : link_(std::move(options), this, now) {}

  // What the coordinator has answered; OK: nothing. `lookup_patience`: for its name alone. `on_silence` is called if
  // there is no connection for some time.
  template <typename Function>
  absl::Status Run(Time patience, Time lookup_patience, int stop, Function on_silence) {
    Time deadline = After(Now(), patience), silent = After(Now(), kSilence);
    const Time lookup_deadline = After(Now(), lookup_patience);
    bool connected = false;
    while (answer_.ok() && !welcome_ && Now() < deadline && (link_.name_known() || Now() < lookup_deadline)) {
      const Time until = link_.name_known() ? deadline : std::min(deadline, lookup_deadline);
      struct pollfd polled[] = {{link_.fd(), link_.events(), 0}, {stop, POLLIN, 0}};
      ::poll(polled, 2, PollTimeout(Now(), std::min({until, silent, link_.NextTimer()})));
      if (polled[1].revents != 0) break;
      link_.Drive(Now());
      if (!connected && link_.client().state() != ControlState::kConnecting) {
        connected = true;
        deadline = After(Now(), kAnswerTime);
        silent = kNever;
      } else if (Now() >= silent) {
        silent = kNever;
        on_silence();
      }
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

absl::Status TellRefusal(ControlLinkOptions options, const absl::Status& why, const Logger& log, int stop) {
  const std::string reason = std::string(why.message()).substr(0, kMaxReason);
  options.client.hello.clear_lanes();
  const std::string told = AsToldToOthers(reason);
  options.client.hello.set_refusal(told);
  const Time patience = std::clamp(options.client.start_timeout, kLeastConnectTime, kMostConnectTime);
  const Time lookup_patience = std::clamp(options.client.start_timeout, kLeastLookupTime, kMostConnectTime);
  options.client.start_timeout = patience + 2 * kAnswerTime;  // this one ends by our clock
  const std::string coordinator = HostPort(options.connection.host, options.connection.port);
  const absl::Status answer = Teller(std::move(options), Now()).Run(patience, lookup_patience, stop, [&] {
    BPS_LOG(log, kError) << "cannot take part: " << reason << "; waits for the coordinator at " << coordinator << ", "
                         << patience / kSecond << " s at most, so that the others hear of it";
  });
  return absl::StrContains(answer.message(), told) ? absl::Status(why.code(), answer.message()) : why;
}

}  // namespace byteps
