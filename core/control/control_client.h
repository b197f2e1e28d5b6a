// control_client.h - a member's half of the control plane, as a step function: no sockets, no threads, no clock.
//
//     ControlClient client(options, &handler);       // handler.Send puts a message on the connection
//     client.OnConnected(now);  client.OnFrame(now, envelope);  client.OnClosed(now, why);    // from the connection
//     client.Tick(now);                              // at NextTimer() at the latest
//     client.Declare(now, specs);  client.Barrier(now, "name", timeout);  client.Goodbye(now, timeout);
//
// core/control/control_link.h joins it with a TCP connection; the simulated jobs of the tests join it with a
// coordinator in the same thread. What is said when is in docs/protocol.md.
//
// The states (ControlState), left to right, each may end in `failed`:
//
//     connecting <-> greeting -> proving -> gathering -> active -> leaving -> left
//                                     (servers: proving -> active)        active -> over
//
//   connecting  no connection yet. OnClosed tells of a failed attempt (the owner of the connection tries again while
//               WantsConnection()); so does a connection that is lost before the coordinator has answered.
//   greeting    connected, waits for Challenge
//   proving     Hello is sent, waits for Welcome
//   gathering   registered, waits for the others (workers only)
//   active      the membership is known (servers: registered)
//   leaving     Goodbye is sent
//   left        the coordinator has answered it
//   over        the coordinator has ended the job
//   failed      the first fatal error has been told; nothing is sent or told any more
//
// A member whose coordinator is of another version sends Hello all the same, and is refused: so the members that wait
// for it are told.
//
// The subtle parts:
//
// Callbacks.  The handler runs inside the call that caused it, on the same thread, and may call Declare, Barrier,
//             Goodbye and Fail, but not the inputs of the connection. OnFailure comes at most once, and is the last.
// Declares.   Declare only collects; all that has been collected goes out in one request at the next Tick, for which
//             NextTimer() asks at once. Before the state `active` they are kept until the membership is known.
// Deadlines.  Every wait has one: the start (options.start_timeout, whose error names the coordinator and who is
//             missing), a barrier's and a goodbye's timeout (the coordinator answers at it and names who is missing;
//             `grace` later this side answers by itself), and the silence of the coordinator, which is fatal.
// Failure.    Barriers and a goodbye that wait when the session fails are not answered one by one: OnFailure speaks for
//             all of them, and for every later call.
//
// Threads:    none; driven by one thread at a time.
// Ownership:  the handler must outlive the client.
// Units:      Time, nanoseconds.
#ifndef BYTEPS_CORE_CONTROL_CONTROL_CLIENT_H_
#define BYTEPS_CORE_CONTROL_CONTROL_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "core/base/time.h"
#include "core/base/version.h"
#include "core/control/control.pb.h"
#include "core/control/control_codec.h"
#include "core/wire/wire.h"

namespace byteps {

enum class ControlState : uint8_t {
  kConnecting,
  kGreeting,
  kProving,
  kGathering,
  kActive,
  kLeaving,
  kLeft,
  kOver,
  kFailed,
};

// "connecting", ...
const char* ControlStateName(ControlState state);

class ControlHandler {
 public:
  static constexpr size_t kMostRefusals = 10;

  virtual ~ControlHandler() = default;

  // Put this message on the connection. Only between OnConnected and OnClosed.
  virtual void Send(const control::Envelope& envelope) = 0;

  // Registered. Workers: session id and generation are in it.
  virtual void OnWelcome(const control::Welcome& welcome) { (void)welcome; }
  // Who is missing still, for people.
  virtual void OnWaiting(const std::vector<std::string>& missing) { (void)missing; }
  // The coordinator has refused another process, maybe the one that this member waits for. Once for each text, and
  // not more often than kMostRefusals.
  virtual void OnOtherRefused(const std::string& why) { (void)why; }
  // The membership. Workers: once. Servers: once per session.
  virtual void OnEpoch(const control::Epoch& epoch) = 0;
  // The answer to one declared tensor; code and error in it say whether it was refused.
  virtual void OnAssignment(const control::Assignment& assignment) { (void)assignment; }
  // Where another worker of the session can be reached: it wants to be connected, or has answered TellAddress.
  virtual void OnPeerAddress(uint32_t member, const control::Lane& lane) { (void)member, (void)lane; }
  // A barrier has ended: all came, or not. The session goes on in either case.
  virtual void OnBarrier(const std::string& name, uint64_t sequence, const absl::Status& status) {
    (void)name, (void)sequence, (void)status;
  }
  // Goodbye has ended: we have left. OK also if others work on (ControlClient::staying); an error if the coordinator
  // does not answer.
  virtual void OnGoodbye(const absl::Status& status) { (void)status; }
  // Fatal: a member failed, the coordinator refused us, is silent or gone, or the start took too long.
  virtual void OnFailure(const absl::Status& fatal) = 0;
  // Servers: forget this session. OK: it ended in order; else why it failed.
  virtual void OnSessionEnded(uint64_t session_id, const absl::Status& why) { (void)session_id, (void)why; }
  // The job is over (servers: exit).
  virtual void OnJobEnded(const std::string& reason) { (void)reason; }
};

struct ControlClientOptions {
  // Who and where we are: everything but versions, release, nonce, proof and start_timeout_ms, which are filled here.
  control::Hello hello;
  std::string token;                  // empty: none
  std::string coordinator;            // "10.0.0.1:9000", for errors
  Time start_timeout = 60 * kSecond;  // until all are there
  Time start_waited = 0;              // how long the caller had waited before, for errors
  Time grace = 2 * kSecond;           // beyond a timeout that the coordinator watches
  // What this member is; others are for tests.
  uint32_t control_version = kControlVersion;
  uint32_t wire_version = wire::kVersion;
  std::string release = kRelease;
  // What is wrong on this side, if anything can be seen: said of a coordinator that is lost or silent. Empty: not
  // known.
  std::function<std::string()> own_trouble;
  // Random bytes for nonces; empty: the system's.
  std::function<std::string(size_t)> random;
};

// `reason` as the other members read it: "this process" of the one that tells it is "its process" to them.
std::string AsToldToOthers(std::string reason);

class ControlClient {
 public:
  // The start timeout runs from `now`.
  ControlClient(ControlClientOptions options, ControlHandler* handler, Time now);
  ControlClient(const ControlClient&) = delete;
  ControlClient& operator=(const ControlClient&) = delete;

  // ---- The connection ----

  void OnConnected(Time now);
  void OnFrame(Time now, const control::Envelope& envelope);
  // The connection has ended, or could not be made.
  void OnClosed(Time now, const absl::Status& why);
  // The owner of the connection refuses to make or to use it, now and later: fatal.
  void OnRefused(Time now, const absl::Status& why);
  // Should there be a connection that there is not?
  bool WantsConnection() const { return state_ == ControlState::kConnecting; }

  // ---- Time ----

  void Tick(Time now);
  // When Tick must be called at the latest; kNever: no need.
  Time NextTimer() const;

  // ---- What a member asks ----

  // Collects declarations of tensors; OnAssignment follows for each, unless the session fails.
  void Declare(Time now, std::vector<control::TensorSpec> specs);
  // Workers: these members of the session hear where this one can be reached. Ignored unless `active`.
  void TellAddress(Time now, const std::vector<uint32_t>& members, const control::Lane& lane);
  // Arrives at the barrier `name`; OnBarrier follows. Returns how often this member has called it, from 1.
  uint64_t Barrier(Time now, const std::string& name, Time timeout);
  // No new operations from us; OnGoodbye follows. Once.
  void Goodbye(Time now, Time timeout);
  // A session cannot go on here, because `member` of it was lost (0: none in particular, or not known which).
  // Servers: the coordinator fails it for all, and OnSessionEnded follows; but not before a worker cannot go on
  // either, if the member has left in order. Workers: OnFailure follows if the coordinator knows why.
  void BreakSession(Time now, uint64_t session_id, uint32_t member, const absl::Status& why);
  // Gives up: tells the coordinator why, and ends in `failed` without OnFailure.
  void Fail(Time now, const absl::Status& why);

  ControlState state() const { return state_; }
  // "active (session 17, member 3)": for logs and errors.
  std::string Describe() const;
  // 0 before Welcome.
  uint32_t member() const { return member_; }
  uint64_t session_id() const { return session_id_; }
  // The last Waiting list.
  const std::vector<std::string>& missing() const { return missing_; }
  // Which members were still in the session when this one left it; empty: none.
  const std::string& staying() const { return staying_; }

 private:
  struct PendingBarrier {
    Time timeout = 0;
    Time deadline = kNever;
    bool sent = false;
  };

  void Move(ControlState to);
  void Fatal(const absl::Status& why);
  void Send(const control::Envelope& envelope);
  void OnChallenge(const control::Challenge& challenge);
  void SayHello(const std::string& nonce);
  void OnWelcome(const control::Welcome& welcome);
  void OnWaiting(const control::Waiting& waiting);
  void OnEpoch(const control::Epoch& epoch);
  void OnFailure(const control::Failure& failure);
  void OnBarrierReply(const control::BarrierReply& reply);
  void OnGoodbyeReply(const control::GoodbyeReply& reply);
  void OutOfTurn(const control::Envelope& envelope);
  void SendDeclares();
  void SendBarrier(const std::string& name, uint64_t sequence, PendingBarrier* barrier);
  void EndGoodbye(const absl::Status& status);
  void CheckBarriers(Time now);
  void CheckSilence(Time now);
  // To the coordinator: its final message of this member.
  void SayWhy(const absl::Status& why);
  bool IsServer() const { return options_.hello.role() == control::SERVER; }
  bool Starting() const;
  bool Registered() const;
  absl::Status StartTimeoutError() const;
  // Why a coordinator may not be heard of any more: what is wrong here, else what is likely.
  std::string Cause(const char* likely) const;
  const char* Self() const { return IsServer() ? "this server" : "this worker"; }

  ControlClientOptions options_;
  ControlHandler* const handler_;
  ControlState state_ = ControlState::kConnecting;

  const Time start_deadline_;
  // The coordinator is of another version: it hears what this process is, and tells all, this one included; within a
  // time.
  absl::Status other_version_;
  Time other_version_until_ = kNever;
  absl::Status last_attempt_;  // why the last connection was not made or lost
  std::vector<std::string> missing_;
  std::vector<std::string> refused_;  // the last such list
  std::set<std::string> told_refusals_;
  std::string staying_;
  std::string challenge_nonce_;

  uint32_t member_ = 0;
  uint64_t session_id_ = 0;
  Time heartbeat_ = kNever;
  Time peer_timeout_ = kNever;
  Time now_ = 0;  // of the last input
  Time last_sent_ = 0;
  Time last_heard_ = 0;
  uint64_t heartbeats_ = 0;

  std::vector<control::TensorSpec> declares_;
  std::map<std::string, uint64_t> barrier_counts_;
  std::map<std::pair<std::string, uint64_t>, PendingBarrier> barriers_;
  Time goodbye_deadline_ = kNever;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_CONTROL_CONTROL_CLIENT_H_
