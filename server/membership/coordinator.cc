#include "server/membership/coordinator.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "core/base/auth.h"
#include "core/base/status.h"
#include "core/base/time_text.h"
#include "core/base/version.h"
#include "core/control/control_codec.h"
#include "core/wire/wire.h"
#include "server/membership/coordinator_connection.h"
#include "server/membership/envelopes.h"
#include "server/membership/epoch_plan.h"
#include "server/membership/membership.h"
#include "server/membership/missing_report.h"
#include "server/membership/server_ranks.h"
#include "server/membership/server_weights.h"

namespace byteps {
namespace {

// After DoNotLinger in a job without a session: for servers that start meanwhile. Nobody waits for the job any more, so
// what starts late may wait in vain.
constexpr Time kServersOnTheirWay = 10 * kSecond;

absl::Status NoMore() {
  return absl::UnavailableError(
      "no session starts any more: the process that has started the coordinator has ended, or ends");
}

// A declare reply is cut after this many bytes.
constexpr size_t kReplyBytes = size_t{1} << 20;
// Names of sessions whose generations are counted.
constexpr size_t kMaxSessionNames = size_t{1} << 16;

}  // namespace

Coordinator::Coordinator(CoordinatorOptions options, CoordinatorHandler* handler, const Logger* log, Time now)
    : options_(std::move(options)),
      admission_({options_.job, options_.token, options_.num_hosts, options_.num_servers, options_.transport,
                  options_.self, options_.unable}),
      handler_(handler),
      log_(log),
      strangers_(log),
      join_check_(&admission_, &servers_, &sessions_, options_.self),
      created_(now),
      start_deadline_(After(now, options_.start_timeout)) {
  if (!options_.random) options_.random = RandomBytes;
  // A random half: members of an earlier job at this address are strangers.
  for (const char byte : options_.random(4)) last_session_ = last_session_ << 8 | static_cast<unsigned char>(byte);
  last_session_ <<= 32;
  // Three signs of life may be late before a member is dead.
  if (options_.peer_timeout != kNever) options_.heartbeat = std::min(options_.heartbeat, options_.peer_timeout / 3);
}

Coordinator::~Coordinator() = default;

// ---- Connections ----

void Coordinator::OnOpened(Time now, ConnectionId id, const std::string& address) {
  now_ = now;
  if (over_) return handler_->Close(id);
  const absl::Status allowed = CheckUnauthenticated(options_.token, options_.allow_unauthenticated, address);
  if (!allowed.ok()) {
    strangers_.Say(now_, address, Message(allowed));
    NoteRefusal(allowed);
    handler_->Send(id, FailureEnvelope(allowed, 0, 0));
    return handler_->Close(id);
  }
  auto connection = std::make_unique<Connection>();
  connection->id = id;
  connection->address = address;
  connection->nonce = options_.random(kNonceBytes);
  connection->opened = connection->last_heard = now;
  const control::Envelope challenge = ChallengeEnvelope(connection->nonce, !options_.token.empty());
  connections_[id] = std::move(connection);
  handler_->Send(id, challenge);
}

void Coordinator::OnFrame(Time now, ConnectionId id, const control::Envelope& envelope) {
  now_ = now;
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  Connection* connection = found->second.get();
  connection->last_heard = now;
  BPS_VERBOSE(*log_, 2) << "from connection " << id << ": " << EnvelopeName(envelope);
  if (connection->member != nullptr) return OnMemberFrame(connection, envelope);
  if (envelope.message_case() == control::Envelope::kHello) return OnHello(connection, envelope.hello());
  Refuse(id,
         absl::InvalidArgumentError(std::string("a greeting was expected, not \"") + EnvelopeName(envelope) + "\""));
}

void Coordinator::OnClosed(Time now, ConnectionId id, const absl::Status& why) {
  now_ = now;
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  if (found->second->member != nullptr) return Depart(found->second->member.get(), why);
  const std::string& address = found->second->address;
  if (why.code() == absl::StatusCode::kUnavailable) {
    // It went by itself: bpslaunch --check, or a probe of this port.
    BPS_LOG(*log_, kInfo) << "a connection from " << address << " ended before it said who it is: " << Message(why);
  } else {
    strangers_.Say(now_, address, Message(why));
  }
  connections_.erase(found);
}

void Coordinator::OnNoRoom(Time now, const std::string& why) {
  now_ = now;
  if (no_room_ == why) return;
  no_room_ = why;
  announce_at_ = std::min(announce_at_, After(now_, kAnnounceDelay));
}

void Coordinator::Drop(ConnectionId id) {
  connections_.erase(id);
  handler_->Close(id);
}

void Coordinator::Refuse(ConnectionId id, const absl::Status& why) {
  strangers_.Say(now_, connections_.at(id)->address, Message(why));
  NoteRefusal(why);
  TurnAway(id, why);
}

void Coordinator::NoteRefusal(const absl::Status& why) {
  if (!refusals_.Add(Message(why))) return;
  announce_at_ = std::min(announce_at_, std::max(After(now_, kAnnounceDelay), announce_refusals_));
  announce_refusals_ = After(now_, RefusalNotes::kInterval);
}

void Coordinator::TurnAway(ConnectionId id, const absl::Status& why) {
  handler_->Send(id, FailureEnvelope(why, 0, 0));
  Drop(id);
}

// ---- Registration ----

void Coordinator::OnHello(Connection* connection, const control::Hello& hello) {
  const absl::Status version = admission_.CheckVersion(connection->address, hello);
  if (absl::Status status = admission_.CheckIdentity(connection->address, connection->nonce, hello); !status.ok()) {
    return Refuse(connection->id, version.ok() ? status : version);
  }
  const size_t sessions = sessions_.size();
  const absl::Status joined = !version.ok()                     ? Disagree(hello, version)
                              : hello.role() == control::SERVER ? AddServer(connection, hello)
                                                                : AddWorker(connection, hello);
  // Where a session or the start has failed of it, the log has it, and this was no stranger.
  if (!joined.ok() && (sessions_.size() < sessions || joined == given_up_)) return TurnAway(connection->id, joined);
  if (!joined.ok()) return Refuse(connection->id, joined);
  no_room_.clear();
  Welcome(connection, hello);
  announce_at_ = std::min(announce_at_, After(now_, kAnnounceDelay));
  ActivateIfComplete();
}

absl::Status Coordinator::AddServer(Connection* connection, const control::Hello& hello) {
  if (absl::Status late = TellLate(hello); !late.ok()) return late;
  const JoinVerdict verdict = join_check_.OfServer(hello);
  if (verdict.kind == JoinVerdict::Kind::kDisagrees) return Disagree(hello, verdict.why);
  if (!verdict.why.ok()) return verdict.why;
  disagreement_.OnServerAdded();
  connection->member = std::make_unique<JobMember>();
  servers_.push_back(connection->member.get());
  if (!gone_servers_.empty()) gone_servers_.pop_front();
  servers_came_ = servers_came_ || !ServersOnTheirWay();
  return absl::OkStatus();
}

absl::Status Coordinator::AddWorker(Connection* connection, const control::Hello& hello) {
  if (absl::Status beside = join_check_.BesideRunning(hello); !beside.ok()) return beside;
  if (absl::Status late = TellLate(hello); !late.ok()) return late;
  if (no_more_) return NoMore();
  JobSession* session = Gathering(hello.session());
  const JoinVerdict verdict = join_check_.OfWorker(hello, session);
  if (verdict.kind == JoinVerdict::Kind::kDisagrees) return Disagree(hello, verdict.why);
  if (verdict.kind == JoinVerdict::Kind::kPlaceTaken) {
    // If no other member comes, those that wait shall know of it.
    session->refused = Message(verdict.why);
    announce_at_ = std::min(announce_at_, After(now_, kAnnounceDelay));
  }
  if (!verdict.why.ok()) return verdict.why;
  if (session == nullptr) {
    if (generations_.size() >= kMaxSessionNames && generations_.count(hello.session()) == 0) {
      return absl::ResourceExhaustedError("this job has had " + std::to_string(kMaxSessionNames) +
                                          " sessions of different names; use a name again");
    }
    auto created = std::make_unique<JobSession>();
    session = created.get();
    session->id = ++last_session_;
    session->name = hello.session();
    session->generation = ++generations_[hello.session()];
    sessions_[session->id] = std::move(created);
    linger_deadline_ = kNever;
  }
  connection->member = std::make_unique<JobMember>();
  connection->member->session = session;
  session->gone.erase(PlaceOf(hello));
  session->workers.push_back(connection->member.get());
  return absl::OkStatus();
}

// The members that wait for the newcomer would wait in vain.
absl::Status Coordinator::Disagree(const control::Hello& hello, const absl::Status& why) {
  control::Hello culprit = hello;
  if (options_.num_servers) culprit.set_num_servers(*options_.num_servers);
  disagreement_.Remember(now_, why, culprit, sessions_, servers_.size());
  if (hello.role() == control::SERVER) {
    FailGathering(why);
  } else if (JobSession* session = Gathering(hello.session())) {
    FailSession(session, why, 0);
  }
  GiveUpStart(why);
  return why;
}

void Coordinator::Welcome(Connection* connection, const control::Hello& hello) {
  JobMember& member = *connection->member;
  member.id = ++last_member_;
  member.hello = hello;
  member.connection = connection->id;
  const control::Envelope envelope = WelcomeEnvelope(CoordinatorProof(options_.token, connection->nonce, hello.nonce()),
                                                     member, options_.heartbeat, options_.peer_timeout);
  handler_->OnRegistered(connection->id, hello);
  handler_->Send(connection->id, envelope);
  given_up_ = absl::OkStatus();
  stay_until_ = kNever;
  // The patience of all counts: the newcomer's own, and that for those that come after it.
  if (start_deadline_ != kNever) {
    const Time patience = std::max(options_.start_timeout, FromMilliseconds(hello.start_timeout_ms()));
    start_deadline_ = std::max(start_deadline_, After(now_, patience));
  }
  BPS_LOG(*log_, kInfo) << "member " << member.id << " is " << DescribeHello(hello);
}

// ---- Membership ----

JobSession* Coordinator::Gathering(const std::string& name) const {
  for (const auto& [id, session] : sessions_) {
    if (session->gathering() && session->name == name) return session.get();
  }
  return nullptr;
}

int32_t Coordinator::ExpectedServers() const {
  if (options_.num_servers) return *options_.num_servers;
  const control::Hello* hello = AnyHello();
  return hello == nullptr ? 0 : hello->num_servers();
}

const control::Hello* Coordinator::AnyHello() const {
  if (!servers_.empty()) return &servers_.front()->hello;
  for (const auto& [id, session] : sessions_) {
    for (const JobMember* worker : session->workers) {
      if (worker != nullptr) return &worker->hello;
    }
  }
  return nullptr;
}

bool Coordinator::ServersComplete() const {
  return AnyHello() != nullptr && servers_.size() == static_cast<size_t>(ExpectedServers());
}

void Coordinator::ActivateIfComplete() {
  if (!ServersComplete()) return;
  RankServers(options_.ordered_hosts, &servers_);
  std::vector<JobSession*> complete;
  for (const auto& [id, session] : sessions_) {
    if (session->gathering() && MissingWorkers(session->Hellos()).empty()) complete.push_back(session.get());
  }
  for (JobSession* session : complete) {
    const absl::Status status = Activate(session);
    if (!status.ok()) FailSession(session, status, 0);
  }
}

absl::Status Coordinator::Activate(JobSession* session) {
  absl::StatusOr<EpochPlan> plan = PlanEpoch(session->workers, servers_, {options_.mixed_mode, options_.hash});
  if (!plan.ok()) return plan.status();
  control::Envelope envelope;
  control::Epoch& epoch = *envelope.mutable_epoch();
  epoch = std::move(plan->epoch);
  epoch.set_session_id(session->id);
  epoch.set_epoch(1);
  epoch.set_generation(session->generation);
  epoch.set_session(session->name);
  epoch.set_nonce(options_.random(kNonceBytes));
  if (!plan->obstacle.empty()) {
    BPS_LOG(*log_, kWarning) << plan->obstacle << ": every server gets the same share";
  }
  const std::string shares = DescribeShares(plan->placement.weights);
  session->Activate(std::move(plan->workers), std::move(plan->placement), plan->served());
  served_ = true;
  refusals_.Clear();
  start_deadline_ = kNever;
  BPS_LOG(*log_, kInfo) << session->Title() << " starts: " << session->workers.size() << " workers, " << servers_.size()
                        << " servers, "
                        << (plan->local.sizes.empty() ? "no reduction within hosts (" + plan->local.refusal + ")"
                                                      : "the workers of a host reduce among themselves")
                        << (session->served    ? "; " + shares
                            : servers_.empty() ? ""
                                               : "; the servers have nothing to sum (BYTEPS_FORCE_DISTRIBUTED=1 sends "
                                                 "all tensors through them)");
  // Servers first: they should know the workers when those call.
  if (session->served) SendToServers(envelope);
  for (const JobMember* worker : session->workers) handler_->Send(worker->connection, envelope);
  return absl::OkStatus();
}

// No member waits for one that has been told to go.
void Coordinator::GiveUpStart(const absl::Status& why) {
  if (served_) return;
  for (const auto& [id, session] : sessions_) {
    if (session->gathering()) return;  // another one, which may start
  }
  if (why_not_ != Message(why)) {
    BPS_LOG(*log_, kWarning) << "the start fails: " << Message(why);
    why_not_ = Message(why);
  }
  given_up_ = why;
  if (start_deadline_ == kNever) return;
  const control::Envelope envelope = FailureEnvelope(why, 0, 0);
  for (const JobMember* server : std::exchange(servers_, {})) {
    const ConnectionId connection = server->connection;
    handler_->Send(connection, envelope);
    Drop(connection);
  }
  disagreement_.SendServersHome();
  stay_until_ = disagreement_.AllTold() ? now_ : std::min(start_deadline_, After(now_, StartupDisagreement::kLateness));
}

absl::Status Coordinator::TellLate(const control::Hello& hello) {
  absl::Status why = hello.role() == control::SERVER ? disagreement_.TellServer(now_) : disagreement_.Tell(now_, hello);
  if (!why.ok() && stay_until_ != kNever && disagreement_.AllTold()) stay_until_ = now_;
  return why;
}

void Coordinator::ForgetSession(uint64_t id) {
  sessions_.erase(id);
  if (sessions_.empty() && (served_ || no_more_)) linger_deadline_ = After(now_, options_.linger);
}

void Coordinator::SendToServers(const control::Envelope& envelope) {
  for (const JobMember* server : servers_) handler_->Send(server->connection, envelope);
}

void Coordinator::SendAway(const JobSession& session, const control::Envelope& last) {
  std::vector<ConnectionId> open;
  for (const JobMember* worker : session.Present()) open.push_back(worker->connection);
  for (const ConnectionId connection : open) {
    handler_->Send(connection, last);
    Drop(connection);
  }
}

// ---- What members ask ----

void Coordinator::OnMemberFrame(Connection* connection, const control::Envelope& envelope) {
  JobMember* member = connection->member.get();
  const bool in_session = member->session != nullptr && member->session->active();
  switch (envelope.message_case()) {
    case control::Envelope::kHeartbeat:
      return OnHeartbeat(*member, envelope.heartbeat());
    case control::Envelope::kDeclareRequest:
      if (in_session) return OnDeclare(*member, envelope.declare_request());
      break;
    case control::Envelope::kPeerAddress:
      if (in_session && member->worker()) return OnPeerAddress(*member, envelope.peer_address());
      break;
    case control::Envelope::kBarrierRequest:
      if (in_session && !member->leaving) return OnBarrier(*member, envelope.barrier_request());
      break;
    case control::Envelope::kGoodbye:
      if (in_session && !member->leaving) return OnGoodbye(member, envelope.goodbye());
      if (!member->worker()) return OnServerGoodbye(member);
      break;
    case control::Envelope::kFailure: {
      if (envelope.failure().session_id() != 0 && !member->worker()) return OnBroken(*member, envelope.failure());
      if (envelope.failure().session_id() != 0 && in_session) return OnWorkerBlocked(*member, envelope.failure());
      // Its own final message; as after any other death it is not answered.
      const ConnectionId id = connection->id;
      Depart(member, absl::AbortedError("it gave up: " + envelope.failure().error().substr(0, kMaxLastWords)));
      return Drop(id);
    }
    default:
      break;
  }
  const absl::Status why = absl::InvalidArgumentError(std::string("it does not keep to the protocol (sent \"") +
                                                      EnvelopeName(envelope) + "\")");
  const ConnectionId id = connection->id;
  handler_->Send(id, FailureEnvelope(why, member->id, 0));
  Depart(member, why);
  Drop(id);
}

void Coordinator::OnHeartbeat(const JobMember& member, const control::Heartbeat& heartbeat) {
  control::Envelope envelope;
  envelope.mutable_heartbeat()->set_sequence(heartbeat.sequence());
  envelope.mutable_heartbeat()->set_reply(true);
  handler_->Send(member.connection, envelope);
  if (member.session != nullptr && member.session->gathering()) SendWaiting(member);
}

void Coordinator::OnDeclare(const JobMember& member, const control::DeclareRequest& request) {
  control::Envelope envelope;
  size_t bytes = 0;
  for (const control::TensorSpec& spec : request.tensors()) {
    control::Assignment& assignment = *envelope.mutable_declare_reply()->add_assignments();
    assignment = member.session->tensors->Declare(spec, static_cast<uint32_t>(member.rank));
    if (spec.from_round() != 0) {
      BPS_VERBOSE(*log_, 1) << "tensor \"" << spec.name() << "\" has parts of " << assignment.part_elements()
                            << " elements from round " << spec.from_round() << " on; rank " << member.rank
                            << " has seen " << spec.bytes_per_second() << " bytes per second";
    }
    bytes += assignment.ByteSizeLong();
    if (bytes < kReplyBytes) continue;
    handler_->Send(member.connection, envelope);
    envelope.Clear();
    bytes = 0;
  }
  if (bytes > 0) handler_->Send(member.connection, envelope);
}

// A member that has left meanwhile is missing at the other's deadline.
void Coordinator::OnPeerAddress(const JobMember& member, const control::PeerAddress& address) {
  control::Envelope envelope;
  envelope.mutable_peer_address()->set_from(member.id);
  *envelope.mutable_peer_address()->mutable_lane() = address.lane();
  for (const uint32_t to : address.to()) {
    const JobMember* worker = member.session->Find(to);
    if (worker != nullptr && worker != &member) handler_->Send(worker->connection, envelope);
  }
}

void Coordinator::OnBarrier(const JobMember& member, const control::BarrierRequest& request) {
  const JobSession& session = *member.session;
  SendBarrierAnswers(session, session.barriers->Arrive(now_, static_cast<uint32_t>(member.rank), request));
}

void Coordinator::SendBarrierAnswers(const JobSession& session, const std::vector<BarrierAnswer>& answers) {
  for (const BarrierAnswer& answer : answers) {
    const JobMember* worker = session.workers[answer.rank];
    if (worker == nullptr) continue;
    control::Envelope envelope;
    *envelope.mutable_barrier_reply() = answer.reply;
    handler_->Send(worker->connection, envelope);
  }
}

// ---- The missing, and the end ----

std::vector<std::string> Coordinator::Missing(const JobSession* session) const {
  return MissingMembers(session, {ExpectedServers(), servers_.size(), gone_servers_, no_room_});
}

void Coordinator::SendWaiting(const JobMember& member) const {
  const std::vector<std::string> missing = Missing(member.session);
  if (missing.empty()) return;
  control::Envelope envelope;
  for (const std::string& each : missing) envelope.mutable_waiting()->add_missing(each);
  for (const std::string& each : refusals_.texts()) envelope.mutable_waiting()->add_refused(each);
  handler_->Send(member.connection, envelope);
}

void Coordinator::DoNotLinger(Time now) {
  if (no_more_) return;
  now_ = now;
  no_more_ = true;
  options_.linger = 0;
  FailGathering(NoMore());
  if (sessions_.empty()) linger_deadline_ = After(now, ServersOnTheirWay() ? kServersOnTheirWay : 0);
}

absl::Status Coordinator::StartTimeout(Time waited) const {
  const JobSession* gathering = sessions_.empty() ? nullptr : sessions_.begin()->second.get();
  StartReport report{.waited = waited,
                     .gathering = gathering != nullptr,
                     .several_hosts = options_.num_hosts.value_or(1) > 1,
                     .missing = Missing(gathering),
                     .members = {},
                     .refused = refusals_.texts(),
                     .failed_start = why_not_};
  for (const auto& [id, connection] : connections_) {
    if (connection->member != nullptr) report.members.push_back(connection->member->Describe());
  }
  return StartTimeoutError(report);
}

void Coordinator::Stop(Time now, const absl::Status& why) {
  now_ = now;
  if (over_) return;
  std::string reason = why.ok() ? "no session has been open for " + SecondsText(options_.linger) : Message(why);
  if (why.ok() && !served_) reason = "no session was ever opened";
  BPS_LOG(*log_, kInfo) << "the job is over: " << reason;
  const absl::Status failure = why.ok() ? absl::UnavailableError("the coordinator has ended the job: " + reason) : why;
  while (!sessions_.empty()) FailSession(sessions_.begin()->second.get(), failure, 0);
  control::Envelope envelope = FailureEnvelope(outcome_, 0, 0);
  if (outcome_.ok()) envelope.mutable_job_ended()->set_reason(reason);
  SendToServers(envelope);
  servers_.clear();
  while (!connections_.empty()) Drop(connections_.begin()->first);
  strangers_.Flush();
  over_ = true;
}

// ---- For people ----

std::vector<std::string> Coordinator::Describe() const {
  std::vector<std::string> lines;
  for (const auto& [id, session] : sessions_) {
    lines.push_back(session->Title() + ": " + SessionStateName(session->state));
  }
  for (const auto& [id, connection] : connections_) {
    lines.push_back("connection " + std::to_string(id) + " from " + connection->address + ": " +
                    (connection->member == nullptr ? "challenged" : connection->member->Describe()));
  }
  return lines;
}

}  // namespace byteps
