// coordinator.h - the coordinator of a job, as a step function: no sockets, no threads, no clock.
//
//     Coordinator coordinator(options, &handler, &log, now);
//     coordinator.OnOpened(now, connection, peer_address);     // a connection was accepted
//     coordinator.OnFrame(now, connection, envelope);
//     coordinator.OnClosed(now, connection, why);              // by the other side, or broken
//     coordinator.Tick(now);                                   // at NextTimer() at the latest
//     if (coordinator.over()) ...
//
// server/process/coordinator_shell.h gives it sockets; the simulated jobs of the tests join it with the members in one
// thread. The rules of the conversation are in docs/protocol.md. Here is who is told what, and when; what is decided is
// elsewhere: server/membership/admission.h (who may talk to it), membership.h (who may be together), server_ranks.h and
// epoch_plan.h (what a session starts with), job_session.h (what it knows), barrier_book.h, tensor_directory.h (keys,
// cuts, placement).
//
// The states of a connection: challenged (Hello is awaited) -> member -> (forgotten). Of a session:
//
//     gathering --every member is there--> active --every member said goodbye or left--> (forgotten)
//         \--they do not agree, job over--\____ a member died, a server died ____> (forgotten)
//
// A session is forgotten at the moment it ends or fails: each member has been told, and its connection closes when it
// has taken its last message. So a session of the same name can be opened again at once; it is the next generation. A
// worker that goes away while a session gathers is simply missing again: it may be started once more.
//
// Where the members of the first session do not agree the whole start has failed: the servers are told and sent home,
// and the coordinator stays only for those that are still to come (StartupDisagreement::kLateness), and ends with the
// same error. With `start_timeout` kNever something else decides when the job is over: then servers and coordinator
// stay.
//
// Threads:   none; driven by one thread at a time.
// Ownership: handler and log must outlive the coordinator. Connections are numbered by the owner and never used again.
// Units:     Time, nanoseconds.
#ifndef BYTEPS_SERVER_MEMBERSHIP_COORDINATOR_H_
#define BYTEPS_SERVER_MEMBERSHIP_COORDINATOR_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "core/base/log.h"
#include "core/base/time.h"
#include "core/control/control.pb.h"
#include "server/membership/admission.h"
#include "server/membership/barrier_book.h"
#include "server/membership/job_member.h"
#include "server/membership/job_session.h"
#include "server/membership/join_check.h"
#include "server/membership/key_hash.h"
#include "server/membership/refusal_notes.h"
#include "server/membership/server_weights.h"
#include "server/membership/startup_disagreement.h"
#include "server/membership/stranger_log.h"

namespace byteps {

class CoordinatorHandler {
 public:
  virtual ~CoordinatorHandler() = default;
  // None of these may call the coordinator; that a connection is broken is told later.
  virtual void Send(ConnectionId connection, const control::Envelope& envelope) = 0;
  // This connection has proven who it is: it may send large frames, and is not dropped in favour of others.
  virtual void OnRegistered(ConnectionId connection, const control::Hello& hello) = 0;
  // To be closed once it has taken what was sent to it. No input of this connection is wanted any more.
  virtual void Close(ConnectionId connection) = 0;
};

struct CoordinatorOptions {
  std::string job;
  std::string token;  // empty: none
  bool allow_unauthenticated = false;
  std::optional<int32_t> num_hosts;      // DMLC_NUM_WORKER here, compared with that of the members; none: not set
  std::optional<int32_t> num_servers;    // likewise DMLC_NUM_SERVER
  std::string transport;                 // likewise what BYTEPS_TRANSPORT or DMLC_ENABLE_RDMA names; empty: nothing
  std::string self = "the coordinator";  // where it is, for errors
  // What is wrong with its own configuration: it is there to tell those that come, and no start succeeds. Empty:
  // nothing.
  std::string unable;
  // Names or addresses: the order of servers that ask for no rank.
  std::vector<std::string> ordered_hosts;
  Time heartbeat = 5 * kSecond;
  Time peer_timeout = 30 * kSecond;  // kNever: only a closed connection is a death
  Time linger = 30 * kSecond;        // after the last session; kNever: it stays
  Time start_timeout = kNever;       // until the first session starts, from the last arrival on; kNever: no bound
  Time hello_timeout = 10 * kSecond;
  MixedMode mixed_mode = MixedMode::kAuto;  // BYTEPS_ENABLE_MIXED_MODE
  KeyHash hash;                             // BYTEPS_KEY_HASH_FN
  // Random bytes for nonces; empty: the system's.
  std::function<std::string(size_t)> random;
};

class Coordinator {
 public:
  Coordinator(CoordinatorOptions options, CoordinatorHandler* handler, const Logger* log, Time now);
  ~Coordinator();
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  // `address`: numeric, of the other side.
  void OnOpened(Time now, ConnectionId connection, const std::string& address);
  void OnFrame(Time now, ConnectionId connection, const control::Envelope& envelope);
  void OnClosed(Time now, ConnectionId connection, const absl::Status& why);
  // A connection of an unknown caller was refused for lack of descriptors (`why`): waiting members are told, until one
  // joins.
  void OnNoRoom(Time now, const std::string& why);
  void Tick(Time now);
  // When Tick must be called at the latest; kNever: no need.
  Time NextTimer() const;

  // No session starts any more: one that gathers fails, and the job ends with the last active one, or now. Where none
  // has ever been active, servers are still on their way: the coordinator stays some seconds to send them home. May be
  // called again.
  void DoNotLinger(Time now);
  // Ends the job: sessions fail with `why`, servers are sent home.
  void Stop(Time now, const absl::Status& why);
  // The job has ended; all that is left is to deliver what was sent.
  bool over() const { return over_; }
  // Why it is over if no session ever started: DEADLINE_EXCEEDED: who was missing. Else who did not agree with whom.
  const absl::Status& outcome() const { return outcome_; }

  // One line per connection and session: for logs and tests.
  std::vector<std::string> Describe() const;
  size_t connections() const { return connections_.size(); }
  size_t sessions() const { return sessions_.size(); }

 private:
  struct Connection;

  void OnHello(Connection* connection, const control::Hello& hello);
  absl::Status AddServer(Connection* connection, const control::Hello& hello);
  absl::Status AddWorker(Connection* connection, const control::Hello& hello);
  absl::Status Disagree(const control::Hello& hello, const absl::Status& why);
  void Welcome(Connection* connection, const control::Hello& hello);

  void OnMemberFrame(Connection* connection, const control::Envelope& envelope);
  void OnHeartbeat(const JobMember& member, const control::Heartbeat& heartbeat);
  void OnDeclare(const JobMember& member, const control::DeclareRequest& request);
  void OnBarrier(const JobMember& member, const control::BarrierRequest& request);
  void OnPeerAddress(const JobMember& member, const control::PeerAddress& address);
  void OnGoodbye(JobMember* member, const control::Goodbye& goodbye);
  void OnServerGoodbye(JobMember* member);
  void OnBroken(const JobMember& server, const control::Failure& failure);
  void FailBrokenSessions();
  void OnWorkerBlocked(const JobMember& worker, const control::Failure& failure);
  void FailOnMissingMember(JobSession* session, uint32_t member);
  // The member is no more: it left after its goodbye, or it died.
  void Depart(JobMember* member, const absl::Status& why);
  void DepartServer(JobMember* server, const absl::Status& why);

  void ActivateIfComplete();
  bool ServersComplete() const;
  absl::Status Activate(JobSession* session);
  void EndIfEverybodyLeft(JobSession* session);
  // `member`: whose fault it is; 0: none's in particular.
  void FailSession(JobSession* session, const absl::Status& why, uint32_t member);
  void FailGathering(const absl::Status& why);
  void GiveUpStart(const absl::Status& why);
  // Those that come late for such a start; OK: this one does not.
  absl::Status TellLate(const control::Hello& hello);
  void ForgetSession(uint64_t id);

  void Refuse(ConnectionId connection, const absl::Status& why);
  // The members that wait are told of it.
  void NoteRefusal(const absl::Status& why);
  // The same, without a word in the log.
  void TurnAway(ConnectionId connection, const absl::Status& why);
  void Drop(ConnectionId connection);
  void SendToServers(const control::Envelope& envelope);
  // The workers that are left take their `last` message, and their connections close.
  void SendAway(const JobSession& session, const control::Envelope& last);
  void SendBarrierAnswers(const JobSession& session, const std::vector<BarrierAnswer>& answers);
  void SendWaiting(const JobMember& member) const;
  std::vector<std::string> Missing(const JobSession* session) const;
  // Of Tick. Each may forget other connections than those it is about.
  void DropSilentConnections(Time now);
  void EndLateGoodbyes(Time now);
  void AnnounceMissing(Time now);
  void CheckLinger(Time now);
  bool ServersOnTheirWay() const;
  void CheckStart(Time now);
  void CheckGivenUp(Time now);
  absl::Status StartTimeout(Time waited) const;

  JobSession* Gathering(const std::string& name) const;
  int32_t ExpectedServers() const;
  const control::Hello* AnyHello() const;

  CoordinatorOptions options_;
  const Admission admission_;
  CoordinatorHandler* const handler_;
  const Logger* const log_;
  StrangerLog strangers_;
  bool over_ = false;
  Time now_ = 0;

  std::map<ConnectionId, std::unique_ptr<Connection>> connections_;
  std::vector<JobMember*> servers_;       // in the order of their arrival; owned by their connections
  std::deque<std::string> gone_servers_;  // who was lost and how; no other has come since
  JobSessions sessions_;
  const JoinCheck join_check_;
  std::map<std::string, uint64_t> generations_;  // of each name, the last one
  StartupDisagreement disagreement_;
  uint32_t last_member_ = 0;
  uint64_t last_session_ = 0;
  bool served_ = false;        // a session has been active
  bool no_more_ = false;       // DoNotLinger
  bool servers_came_ = false;  // all of them, once
  Time linger_deadline_ = kNever;
  const Time created_;
  Time start_deadline_;         // of the first session; kNever: it has started
  std::string why_not_;         // a session that failed before it started
  RefusalNotes refusals_;       // since the last start
  Time announce_refusals_ = 0;  // not before
  std::string no_room_;         // why a member could not be let in
  absl::Status given_up_;       // why the last start was
  Time stay_until_ = kNever;    // for those that come late for it
  absl::Status outcome_;
  Time announce_at_ = kNever;  // the lists of the missing have changed
};

}  // namespace byteps

#endif  // BYTEPS_SERVER_MEMBERSHIP_COORDINATOR_H_
