#include "core/control/control_client.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "core/base/auth.h"
#include "core/base/status.h"
#include "core/base/time_text.h"
#include "core/base/version.h"
#include "core/control/control_codec.h"
#include "core/wire/wire.h"

namespace byteps {
namespace {

// Tensors of one request: a bound for its frame.
constexpr size_t kDeclaresPerRequest = 1000;
// For a coordinator of another version to say what it thinks of us.
constexpr Time kRefusalTimeout = 10 * kSecond;

std::string Message(const absl::Status& status) {
  return std::string(status.message().data(), status.message().size());
}

std::string Join(const std::vector<std::string>& items) {
  std::string text;
  for (const std::string& item : items) text += (text.empty() ? "" : ", ") + item;
  return text;
}

// What a message or an error of the other side says, also when it names a code that is no error.
absl::Status FailureStatus(int32_t code, const std::string& error) {
  return MakeStatus(code == BPS_OK ? BPS_UNKNOWN : code, error);
}

}  // namespace

std::string AsToldToOthers(std::string reason) {
  constexpr std::string_view kOwn = "this process";
  for (size_t at = reason.find(kOwn); at != std::string::npos; at = reason.find(kOwn, at)) {
    reason.replace(at, 4, "its");
  }
  return reason;
}

const char* ControlStateName(ControlState state) {
  switch (state) {
    case ControlState::kConnecting:
      return "connecting";
    case ControlState::kGreeting:
      return "greeting";
    case ControlState::kProving:
      return "proving";
    case ControlState::kGathering:
      return "gathering";
    case ControlState::kActive:
      return "active";
    case ControlState::kLeaving:
      return "leaving";
    case ControlState::kLeft:
      return "left";
    case ControlState::kOver:
      return "over";
    case ControlState::kFailed:
      return "failed";
  }
  return "unknown";
}

ControlClient::ControlClient(ControlClientOptions options, ControlHandler* handler, Time now)
    : options_(std::move(options)), handler_(handler), start_deadline_(After(now, options_.start_timeout)), now_(now) {
  if (!options_.random) options_.random = RandomBytes;
}

void ControlClient::Move(ControlState to) { state_ = to; }

bool ControlClient::Starting() const {
  return state_ == ControlState::kConnecting || state_ == ControlState::kGreeting || state_ == ControlState::kProving ||
         state_ == ControlState::kGathering;
}

bool ControlClient::Registered() const {
  return state_ == ControlState::kGathering || state_ == ControlState::kActive || state_ == ControlState::kLeaving;
}

void ControlClient::Fatal(const absl::Status& why) {
  if (state_ == ControlState::kFailed) return;
  Move(ControlState::kFailed);
  handler_->OnFailure(why);
}

void ControlClient::Send(const control::Envelope& envelope) {
  last_sent_ = now_;
  handler_->Send(envelope);
}

// ---- The connection ----

void ControlClient::OnConnected(Time now) {
  now_ = now;
  if (state_ != ControlState::kConnecting) return;
  Move(ControlState::kGreeting);
}

void ControlClient::OnRefused(Time now, const absl::Status& why) {
  now_ = now;
  Fatal(why);
}

void ControlClient::OnClosed(Time now, const absl::Status& why) {
  now_ = now;
  switch (state_) {
    case ControlState::kConnecting:
    case ControlState::kGreeting:
    case ControlState::kProving:
      if (!other_version_.ok()) return Fatal(other_version_);
      // A coordinator that is being started again, or is not there yet: it is tried again until the deadline. What is
      // no coordinator at all will not become one, and a process without descriptors gets none by waiting.
      if (absl::IsFailedPrecondition(why) || absl::IsInvalidArgument(why) || absl::IsResourceExhausted(why)) {
        Fatal(Annotate(why, "coordinator " + options_.coordinator));
        return;
      }
      last_attempt_ = why;
      Move(ControlState::kConnecting);
      return;
    case ControlState::kGathering:
    case ControlState::kActive:
    case ControlState::kLeaving:
      Fatal(absl::UnavailableError("lost the coordinator " + options_.coordinator + ": " + Message(why) + "; " +
                                   Cause("it has ended, or its host is gone")));
      return;
    case ControlState::kLeft:
    case ControlState::kOver:
    case ControlState::kFailed:
      return;
  }
}

void ControlClient::OnFrame(Time now, const control::Envelope& envelope) {
  now_ = now;
  last_heard_ = now;
  using Message = control::Envelope;
  switch (state_) {
    case ControlState::kConnecting:
    case ControlState::kLeft:
    case ControlState::kOver:
    case ControlState::kFailed:
      return;
    default:
      break;
  }
  switch (envelope.message_case()) {
    case Message::kFailure:
      return OnFailure(envelope.failure());
    case Message::kChallenge:
      if (state_ == ControlState::kGreeting) return OnChallenge(envelope.challenge());
      break;
    case Message::kWelcome:
      if (state_ == ControlState::kProving) return OnWelcome(envelope.welcome());
      break;
    case Message::kWaiting:
      if (!Registered()) break;
      return OnWaiting(envelope.waiting());
    case Message::kEpoch:
      if (state_ == ControlState::kGathering || (IsServer() && Registered())) return OnEpoch(envelope.epoch());
      break;
    case Message::kDeclareReply:
      if (state_ != ControlState::kActive && state_ != ControlState::kLeaving) break;
      for (const control::Assignment& assignment : envelope.declare_reply().assignments()) {
        if (state_ == ControlState::kFailed) return;
        handler_->OnAssignment(assignment);
      }
      return;
    case Message::kPeerAddress:
      if (state_ != ControlState::kActive && state_ != ControlState::kLeaving) break;
      return handler_->OnPeerAddress(envelope.peer_address().from(), envelope.peer_address().lane());
    case Message::kBarrierReply:
      if (state_ != ControlState::kActive && state_ != ControlState::kLeaving) break;
      return OnBarrierReply(envelope.barrier_reply());
    case Message::kGoodbyeReply:
      if (state_ == ControlState::kLeaving) return OnGoodbyeReply(envelope.goodbye_reply());
      break;
    case Message::kHeartbeat:
      if (Registered()) return;
      break;
    case Message::kSessionEnded:
      if (!IsServer() || !Registered()) break;
      return handler_->OnSessionEnded(envelope.session_ended().session_id(), absl::OkStatus());
    case Message::kJobEnded:
      if (!Registered()) break;
      if (!IsServer()) {
        return Fatal(absl::UnavailableError("the coordinator " + options_.coordinator +
                                            " has ended the job: " + envelope.job_ended().reason()));
      }
      Move(ControlState::kOver);
      return handler_->OnJobEnded(envelope.job_ended().reason());
    case Message::kHello:
    case Message::kDeclareRequest:
    case Message::kBarrierRequest:
    case Message::kGoodbye:
    case Message::MESSAGE_NOT_SET:
      break;
  }
  OutOfTurn(envelope);
}

void ControlClient::OutOfTurn(const control::Envelope& envelope) {
  Fatal(absl::InternalError("coordinator " + options_.coordinator + " sent \"" + EnvelopeName(envelope) + "\" while " +
                            Self() + " is " + ControlStateName(state_) + ": it does not keep to the protocol"));
}

void ControlClient::OnChallenge(const control::Challenge& challenge) {
  const std::string& coordinator = options_.coordinator;
  if (challenge.control_version() != options_.control_version || challenge.wire_version() != options_.wire_version) {
    other_version_ = absl::FailedPreconditionError(
        "coordinator " + coordinator + " is BytePS " + challenge.release() + " (control protocol " +
        std::to_string(challenge.control_version()) + ", data protocol " + std::to_string(challenge.wire_version()) +
        "), " + Self() + " is " + options_.release + " (" + std::to_string(options_.control_version) + ", " +
        std::to_string(options_.wire_version) + "): install the same BytePS everywhere");
    other_version_until_ = After(now_, kRefusalTimeout);
    // A proof says nothing to a process that cannot check it.
    if (challenge.token_required() == options_.token.empty()) return Fatal(other_version_);
    return SayHello(challenge.nonce());
  }
  if (challenge.token_required() && options_.token.empty()) {
    return Fatal(absl::UnauthenticatedError("coordinator " + coordinator + " wants the job's token and " + Self() +
                                            " has none: set BYTEPS_JOB_TOKEN or BYTEPS_JOB_TOKEN_FILE as there"));
  }
  if (!challenge.token_required() && !options_.token.empty()) {
    return Fatal(absl::UnauthenticatedError(std::string(Self()) + " has a job token, coordinator " + coordinator +
                                            " has none: set BYTEPS_JOB_TOKEN or BYTEPS_JOB_TOKEN_FILE there too"));
  }
  SayHello(challenge.nonce());
}

void ControlClient::SayHello(const std::string& nonce) {
  challenge_nonce_ = nonce;
  control::Envelope envelope;
  control::Hello& hello = *envelope.mutable_hello();
  hello = options_.hello;
  hello.set_control_version(options_.control_version);
  hello.set_wire_version(options_.wire_version);
  hello.set_release(options_.release);
  hello.set_nonce(options_.random(kNonceBytes));
  hello.set_proof(
      MemberProof(options_.token, challenge_nonce_, hello.nonce(), hello.role(), hello.job(), hello.session()));
  hello.set_start_timeout_ms(options_.start_timeout / kMillisecond);
  options_.hello.set_nonce(hello.nonce());
  Move(ControlState::kProving);
  Send(envelope);
}

void ControlClient::OnWelcome(const control::Welcome& welcome) {
  if (!other_version_.ok()) return Fatal(other_version_);
  if (!SameProof(welcome.proof(), CoordinatorProof(options_.token, challenge_nonce_, options_.hello.nonce()))) {
    return Fatal(
        absl::UnauthenticatedError("coordinator " + options_.coordinator +
                                   " could not prove that it knows the job's token: it belongs to another job"));
  }
  member_ = welcome.member();
  session_id_ = welcome.session_id();
  if (welcome.heartbeat_ms() > 0) heartbeat_ = FromMilliseconds(welcome.heartbeat_ms());
  if (welcome.peer_timeout_ms() > 0) peer_timeout_ = FromMilliseconds(welcome.peer_timeout_ms());
  Move(IsServer() ? ControlState::kActive : ControlState::kGathering);
  handler_->OnWelcome(welcome);
}

void ControlClient::OnWaiting(const control::Waiting& waiting) {
  missing_.assign(waiting.missing().begin(), waiting.missing().end());
  refused_.assign(waiting.refused().begin(), waiting.refused().end());
  handler_->OnWaiting(missing_);
  for (const std::string& why : std::vector<std::string>(refused_)) {
    if (told_refusals_.size() >= ControlHandler::kMostRefusals || !told_refusals_.insert(why).second) continue;
    handler_->OnOtherRefused(why);
  }
}

void ControlClient::OnEpoch(const control::Epoch& epoch) {
  missing_.clear();
  if (IsServer()) return handler_->OnEpoch(epoch);
  if (epoch.session_id() != session_id_) {
    return Fatal(absl::InternalError("coordinator " + options_.coordinator + " sent the membership of session " +
                                     std::to_string(epoch.session_id()) + " to a worker of session " +
                                     std::to_string(session_id_)));
  }
  Move(ControlState::kActive);
  handler_->OnEpoch(epoch);
  if (state_ != ControlState::kActive) return;
  for (auto& [key, barrier] : barriers_) {
    if (!barrier.sent) SendBarrier(key.first, key.second, &barrier);
  }
}

void ControlClient::OnFailure(const control::Failure& failure) {
  const absl::Status why = FailureStatus(failure.code(), failure.error());
  // A coordinator of another version may find something else wrong with us.
  if (!other_version_.ok() && !absl::IsFailedPrecondition(why)) return Fatal(other_version_);
  if (IsServer() && failure.session_id() != 0 && Registered()) {
    return handler_->OnSessionEnded(failure.session_id(), why);
  }
  // It does not tell strangers where it is.
  Fatal(absl::IsUnauthenticated(why) ? Annotate(why, "coordinator " + options_.coordinator) : why);
}

void ControlClient::OnBarrierReply(const control::BarrierReply& reply) {
  const auto barrier = barriers_.find({reply.name(), reply.sequence()});
  if (barrier == barriers_.end()) return;  // answered by ourselves before
  barriers_.erase(barrier);
  handler_->OnBarrier(reply.name(), reply.sequence(), MakeStatus(reply.code(), reply.error()));
}

void ControlClient::OnGoodbyeReply(const control::GoodbyeReply& reply) {
  staying_ = reply.staying();
  EndGoodbye(MakeStatus(reply.code(), reply.error()));
}

void ControlClient::EndGoodbye(const absl::Status& status) {
  Move(ControlState::kLeft);
  // A wait in a barrier ends here: the coordinator no longer answers a member that has left.
  for (const auto& [key, barrier] : std::exchange(barriers_, {})) {
    handler_->OnBarrier(key.first, key.second,
                        absl::CancelledError("barrier \"" + key.first + "\": the session was shut down meanwhile"));
  }
  handler_->OnGoodbye(status);
}

// ---- Time ----

void ControlClient::Tick(Time now) {
  now_ = now;
  if (now >= other_version_until_) return Fatal(other_version_);
  if (Starting() && now >= start_deadline_) return Fatal(StartTimeoutError());
  if (!Registered()) return;
  CheckSilence(now);
  if (state_ == ControlState::kActive || state_ == ControlState::kLeaving) {
    SendDeclares();
    CheckBarriers(now);
  }
  if (state_ == ControlState::kLeaving && now >= goodbye_deadline_) {
    EndGoodbye(absl::DeadlineExceededError("coordinator " + options_.coordinator + " has not answered the goodbye"));
  }
  if (Registered() && now >= After(last_sent_, heartbeat_)) {
    control::Envelope envelope;
    envelope.mutable_heartbeat()->set_sequence(++heartbeats_);
    Send(envelope);
  }
}

Time ControlClient::NextTimer() const {
  if (Starting() && !Registered()) return std::min(start_deadline_, other_version_until_);
  if (!Registered()) return kNever;
  Time next = std::min(After(last_sent_, heartbeat_), After(last_heard_, peer_timeout_));
  if (state_ == ControlState::kGathering) return std::min(next, start_deadline_);
  if (!declares_.empty()) return now_;
  for (const auto& [key, barrier] : barriers_) next = std::min(next, barrier.deadline);
  if (state_ == ControlState::kLeaving) next = std::min(next, goodbye_deadline_);
  return next;
}

void ControlClient::CheckSilence(Time now) {
  if (now < After(last_heard_, peer_timeout_)) return;
  const absl::Status why = absl::UnavailableError("coordinator " + options_.coordinator + " has been silent for " +
                                                  SecondsText(now - last_heard_) + ": " +
                                                  Cause("its host or the network is gone, or it was stopped"));
  // It may still hear, or will when it goes on.
  SayWhy(why);
  Fatal(why);
}

std::string ControlClient::Cause(const char* likely) const {
  const std::string trouble = options_.own_trouble ? options_.own_trouble() : "";
  return trouble.empty() ? likely : trouble;
}

void ControlClient::CheckBarriers(Time now) {
  std::vector<std::pair<std::string, uint64_t>> late;
  for (const auto& [key, barrier] : barriers_) {
    if (now >= barrier.deadline) late.push_back(key);
  }
  for (const auto& key : late) {
    if (barriers_.erase(key) == 0) continue;
    handler_->OnBarrier(key.first, key.second,
                        absl::DeadlineExceededError("barrier \"" + key.first + "\": coordinator " +
                                                    options_.coordinator + " has not answered in time"));
  }
}

absl::Status ControlClient::StartTimeoutError() const {
  std::string text =
      "the job has not started within " + SecondsText(options_.start_waited + options_.start_timeout) + ": ";
  const std::string& coordinator = options_.coordinator;
  switch (state_) {
    case ControlState::kConnecting:
      text += "coordinator " + coordinator + " cannot be reached" +
              (last_attempt_.ok() ? std::string() : " (" + Message(last_attempt_) + ")") +
              "; is it running (DMLC_ROLE=scheduler), and do DMLC_PS_ROOT_URI and DMLC_PS_ROOT_PORT name it?";
      break;
    case ControlState::kGreeting:
    case ControlState::kProving:
      text += "connected to " + coordinator +
              ", but it does not answer; is it the coordinator of a BytePS job, or has it been stopped?";
      break;
    default:
      text += "coordinator " + coordinator + " waits for " +
              (missing_.empty() ? std::string("members that it has not named") : Join(missing_));
      for (const std::string& why : refused_) text += "; it has refused: " + why;
  }
  return absl::DeadlineExceededError(text);
}

// ---- What a member asks ----

void ControlClient::Declare(Time now, std::vector<control::TensorSpec> specs) {
  now_ = std::max(now_, now);
  declares_.insert(declares_.end(), std::make_move_iterator(specs.begin()), std::make_move_iterator(specs.end()));
}

void ControlClient::SendDeclares() {
  for (size_t begin = 0; begin < declares_.size(); begin += kDeclaresPerRequest) {
    control::Envelope envelope;
    control::DeclareRequest& request = *envelope.mutable_declare_request();
    const size_t end = std::min(declares_.size(), begin + kDeclaresPerRequest);
    for (size_t i = begin; i < end; ++i) *request.add_tensors() = std::move(declares_[i]);
    Send(envelope);
  }
  declares_.clear();
}

void ControlClient::TellAddress(Time now, const std::vector<uint32_t>& members, const control::Lane& lane) {
  now_ = std::max(now_, now);
  if (state_ != ControlState::kActive) return;
  control::Envelope envelope;
  control::PeerAddress& address = *envelope.mutable_peer_address();
  address.mutable_to()->Add(members.begin(), members.end());
  *address.mutable_lane() = lane;
  Send(envelope);
}

uint64_t ControlClient::Barrier(Time now, const std::string& name, Time timeout) {
  now_ = std::max(now_, now);
  const uint64_t sequence = ++barrier_counts_[name];
  PendingBarrier& barrier = barriers_[{name, sequence}];
  barrier.timeout = timeout;
  barrier.deadline = After(After(now, timeout), options_.grace);
  if (state_ == ControlState::kActive) SendBarrier(name, sequence, &barrier);
  return sequence;
}

void ControlClient::SendBarrier(const std::string& name, uint64_t sequence, PendingBarrier* barrier) {
  control::Envelope envelope;
  control::BarrierRequest& request = *envelope.mutable_barrier_request();
  request.set_name(name);
  request.set_sequence(sequence);
  request.set_timeout_ms(barrier->timeout / kMillisecond);
  barrier->sent = true;
  Send(envelope);
}

void ControlClient::Goodbye(Time now, Time timeout) {
  now_ = std::max(now_, now);
  if (Starting()) return EndGoodbye(absl::OkStatus());
  if (state_ != ControlState::kActive) return;
  SendDeclares();
  goodbye_deadline_ = After(After(now, timeout), options_.grace);
  Move(ControlState::kLeaving);
  control::Envelope envelope;
  envelope.mutable_goodbye()->set_timeout_ms(timeout / kMillisecond);
  Send(envelope);
}

void ControlClient::BreakSession(Time now, uint64_t session_id, uint32_t member, const absl::Status& why) {
  now_ = std::max(now_, now);
  if (state_ != ControlState::kActive) return;
  control::Envelope envelope;
  control::Failure& failure = *envelope.mutable_failure();
  failure.set_code(StatusCode(why));
  failure.set_error(AsToldToOthers(Message(why)));
  failure.set_member(member);
  failure.set_session_id(session_id);
  Send(envelope);
}

void ControlClient::Fail(Time now, const absl::Status& why) {
  now_ = std::max(now_, now);
  if (Registered()) SayWhy(why);
  Move(ControlState::kFailed);
}

void ControlClient::SayWhy(const absl::Status& why) {
  control::Envelope envelope;
  control::Failure& failure = *envelope.mutable_failure();
  failure.set_code(StatusCode(why));
  failure.set_error(AsToldToOthers(Message(why)));
  failure.set_member(member_);
  Send(envelope);
}

std::string ControlClient::Describe() const {
  std::string text = ControlStateName(state_);
  if (member_ != 0) {
    text += " (member " + std::to_string(member_);
    if (session_id_ != 0) text += ", session " + std::to_string(session_id_);
    text += ")";
  }
  return text;
}

}  // namespace byteps
