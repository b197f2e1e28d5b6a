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
#include "server/membership/epoch_plan.h"
#include "server/membership/membership.h"
#include "server/membership/server_ranks.h"
#include "server/membership/server_weights.h"

namespace byteps {
namespace {

// Lists of the missing are sent this long after a change, so that a thousand arrivals are not a million messages.
constexpr Time kAnnounceDelay = 100 * kMillisecond;
// A declare reply is cut after this many bytes.
constexpr size_t kReplyBytes = size_t{1} << 20;
// Of a member that gives up.
constexpr size_t kMaxLastWords = 4096;
// Names of sessions whose generations are counted.
constexpr size_t kMaxSessionNames = size_t{1} << 16;

std::string Message(const absl::Status& status) {
  return std::string(status.message().data(), status.message().size());
}

// The same error with more words behind its own.
absl::Status Extended(const absl::Status& status, const std::string& more) {
  return absl::Status(status.code(), Message(status) + more);
}

control::Envelope FailureEnvelope(const absl::Status& why, uint32_t member, uint64_t session_id) {
  control::Envelope envelope;
  control::Failure& failure = *envelope.mutable_failure();
  failure.set_code(StatusCode(why));
  failure.set_error(Message(why));
  failure.set_member(member);
  failure.set_session_id(session_id);
  return envelope;
}

int64_t Milliseconds(Time time) { return time == kNever ? 0 : time / kMillisecond; }

}  // namespace

struct Coordinator::Connection {
  ConnectionId id = 0;
  std::string address;
  std::string nonce;
  Time opened = 0;
  Time last_heard = 0;
  std::unique_ptr<JobMember> member;  // nullptr: challenged
};

Coordinator::Coordinator(CoordinatorOptions options, CoordinatorHandler* handler, const Logger* log, Time now)
    : options_(std::move(options)),
      admission_({options_.job, options_.token, options_.num_hosts, options_.num_servers, options_.transport,
                  options_.self, options_.unable}),
      handler_(handler),
      log_(log),
      strangers_(log),
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
  control::Envelope envelope;
  control::Challenge& challenge = *envelope.mutable_challenge();
  challenge.set_nonce(connection->nonce);
  challenge.set_control_version(kControlVersion);
  challenge.set_wire_version(wire::kVersion);
  challenge.set_release(kRelease);
  challenge.set_token_required(!options_.token.empty());
  connections_[id] = std::move(connection);
  handler_->Send(id, envelope);
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
    // It went by itself: bpslaunch --check, or somebody who looks whether this port answers.
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

// To whoever is refused beside a job that is there already.
std::string Coordinator::OtherJob() const {
  return "; if this is another job, it needs a coordinator of its own beside " + options_.self +
         ": another DMLC_PS_ROOT_PORT, for all of its roles";
}

// What concerns everybody who waits fails all gathering sessions, so that nobody waits in vain. Who wants what somebody
// else has is refused alone, and sessions that run are not disturbed by a newcomer, whoever he is.
absl::Status Coordinator::AddServer(Connection* connection, const control::Hello& hello) {
  if (absl::Status late = TellLate(hello); !late.ok()) return late;
  for (const JobMember* server : servers_) {
    if (absl::Status taken = CheckPlace(hello, server->hello); !taken.ok()) return WithRefusal(hello, taken);
  }
  absl::Status status = admission_.CheckExpected(hello);
  for (const JobMember* server : servers_) {
    if (status.ok()) status = CheckAgreement(hello, server->hello);
  }
  for (const auto& [id, session] : sessions_) {
    if (!status.ok() || !session->gathering()) continue;
    for (const JobMember* worker : session->workers) {
      if (status.ok()) status = CheckAgreement(hello, worker->hello);
    }
  }
  // (Of one that cannot take part, this number may be what it could not read.)
  const int32_t expected = servers_.empty() ? hello.num_servers() : servers_.front()->hello.num_servers();
  if (status.ok() && !servers_.empty() && servers_.size() >= static_cast<size_t>(expected)) {
    std::string there;
    for (const JobMember* server : servers_) there += (there.empty() ? "" : ", ") + DescribeHello(server->hello);
    return absl::AlreadyExistsError(DescribeHello(hello) + " is one server too many: DMLC_NUM_SERVER=" +
                                    std::to_string(hello.num_servers()) + ", and there are " + there + OtherJob());
  }
  if (status.ok()) status = CheckAble(hello);
  if (!status.ok()) return Disagree(hello, WithRefusal(hello, status));
  discord_.OnServerAdded();
  connection->member = std::make_unique<JobMember>();
  servers_.push_back(connection->member.get());
  if (!gone_servers_.empty()) gone_servers_.pop_front();
  return absl::OkStatus();
}

// A stranger beside a running session: its own error, nobody else's. (Who has left a session that has begun to end may open
// the next one.)
absl::Status Coordinator::CheckBesideRunning(const control::Hello& hello) const {
  for (const auto& [id, session] : sessions_) {
    if (session->name != hello.session() || !session->active()) continue;
    for (const JobMember* worker : session->workers) {
      if (worker == nullptr || worker->leaving || PlaceOf(worker->hello) != PlaceOf(hello)) continue;
      return absl::AlreadyExistsError(
          DescribeHello(hello) + " wants a place that is taken in a running session: rank " +
          std::to_string(worker->rank) + " is " + DescribeHello(worker->hello) + OtherJob());
    }
    if (session->Ending()) continue;
    for (const JobMember* worker : session->workers) {
      const absl::Status agrees = CheckAgreement(hello, worker->hello);
      if (agrees.ok()) continue;
      return WithRefusal(hello, absl::FailedPreconditionError(
                                    Message(agrees) + ", and a session is running: its rank " +
                                    std::to_string(worker->rank) + " is " + DescribeHello(worker->hello) + OtherJob()));
    }
  }
  return absl::OkStatus();
}

absl::Status Coordinator::AddWorker(Connection* connection, const control::Hello& hello) {
  absl::Status status = admission_.CheckExpected(hello);
  if (absl::Status beside = CheckBesideRunning(hello); !beside.ok()) return beside;
  if (absl::Status late = TellLate(hello); !late.ok()) return late;
  JobSession* session = Gathering(hello.session());
  if (session != nullptr) {
    for (const JobMember* worker : session->workers) {
      if (absl::Status taken = WithRefusal(hello, CheckPlace(hello, worker->hello)); !taken.ok()) {
        // Likewise. But if nobody else comes, those who wait shall know of it.
        session->refused = Message(taken);
        announce_at_ = std::min(announce_at_, After(now_, kAnnounceDelay));
        return taken;
      }
    }
    for (const JobMember* worker : session->workers) {
      if (status.ok()) status = CheckAgreement(hello, worker->hello);
    }
  }
  if (status.ok() && !servers_.empty()) status = CheckAgreement(hello, servers_.front()->hello);
  if (status.ok()) status = CheckAble(hello);
  if (!status.ok()) return Disagree(hello, WithRefusal(hello, status));
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

// Who waits for him would wait in vain.
absl::Status Coordinator::Disagree(const control::Hello& hello, const absl::Status& why) {
  control::Hello culprit = hello;
  if (options_.num_servers) culprit.set_num_servers(*options_.num_servers);
  discord_.Remember(now_, why, culprit, sessions_, servers_.size());
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
  control::Envelope envelope;
  control::Welcome& welcome = *envelope.mutable_welcome();
  welcome.set_proof(CoordinatorProof(options_.token, connection->nonce, hello.nonce()));
  welcome.set_member(member.id);
  if (member.session != nullptr) {
    welcome.set_session_id(member.session->id);
    welcome.set_generation(member.session->generation);
  }
  welcome.set_heartbeat_ms(Milliseconds(options_.heartbeat));
  welcome.set_peer_timeout_ms(Milliseconds(options_.peer_timeout));
  handler_->OnRegistered(connection->id, hello);
  handler_->Send(connection->id, envelope);
  given_up_ = absl::OkStatus();
  stay_until_ = kNever;
  // Everybody's patience counts: the newcomer's own, and that for those who come after it.
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

void Coordinator::FailSession(JobSession* session, const absl::Status& why, uint32_t member) {
  BPS_LOG(*log_, kWarning) << session->Title() << " fails: " << Message(why);
  if (session->gathering()) why_not_ = Message(why);
  const uint64_t id = session->id;
  const control::Envelope envelope = FailureEnvelope(why, member, id);
  if (session->active() && session->served) SendToServers(envelope);
  SendAway(*session, envelope);
  ForgetSession(id);
}

void Coordinator::FailGathering(const absl::Status& why) {
  std::vector<JobSession*> gathering;
  for (const auto& [id, session] : sessions_) {
    if (session->gathering()) gathering.push_back(session.get());
  }
  for (JobSession* session : gathering) FailSession(session, why, 0);
}

// Nobody waits for somebody who has been told to go.
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
  discord_.SendServersHome();
  stay_until_ = discord_.EverybodyTold() ? now_ : std::min(start_deadline_, After(now_, Discord::kLateness));
}

absl::Status Coordinator::TellLate(const control::Hello& hello) {
  absl::Status why = hello.role() == control::SERVER ? discord_.TellServer(now_) : discord_.Tell(now_, hello);
  if (!why.ok() && stay_until_ != kNever && discord_.EverybodyTold()) stay_until_ = now_;
  return why;
}

void Coordinator::ForgetSession(uint64_t id) {
  sessions_.erase(id);
  if (sessions_.empty() && served_) linger_deadline_ = After(now_, options_.linger);
}

void Coordinator::EndIfEverybodyLeft(JobSession* session) {
  if (!session->EverybodyLeft()) return;
  BPS_LOG(*log_, kInfo) << session->Title() << " has ended";
  const uint64_t id = session->id;
  control::Envelope ended;
  ended.mutable_session_ended()->set_session_id(id);
  if (session->served) SendToServers(ended);
  control::Envelope reply;
  reply.mutable_goodbye_reply();
  SendAway(*session, reply);
  ForgetSession(id);
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

void Coordinator::Depart(JobMember* member, const absl::Status& why) {
  const ConnectionId connection = member->connection;
  const uint32_t id = member->id;
  JobSession* session = member->session;
  if (!member->worker()) return DepartServer(member, why);
  const auto place = std::find(session->workers.begin(), session->workers.end(), member);
  if (session->gathering()) {
    session->gone[PlaceOf(member->hello)] =
        DescribeWhere(member->hello.host(), member->hello.pid()) + " was here: " + Message(why);
    BPS_LOG(*log_, kInfo) << member->Describe() << " is gone before the start: " << Message(why);
    session->workers.erase(place);
    connections_.erase(connection);
    announce_at_ = std::min(announce_at_, After(now_, kAnnounceDelay));
    if (session->workers.empty()) ForgetSession(session->id);
    return;
  }
  if (!member->leaving) {
    const absl::Status death =
        absl::UnavailableError(member->Describe() + " is gone without a goodbye: " + Message(why));
    *place = nullptr;
    connections_.erase(connection);
    return FailSession(session, death, id);
  }
  *place = nullptr;
  session->left[id] = member->Describe();
  connections_.erase(connection);
  EndIfEverybodyLeft(session);
}

void Coordinator::DepartServer(JobMember* server, const absl::Status& why) {
  const uint32_t id = server->id;
  const absl::Status death = absl::UnavailableError(server->Describe() + " is gone: " + Message(why));
  BPS_LOG(*log_, kWarning) << Message(death);
  gone_servers_.push_back(Message(death) + "; another one may take its place");
  if (gone_servers_.size() > kMaxMissing) gone_servers_.pop_front();
  servers_.erase(std::find(servers_.begin(), servers_.end(), server));
  connections_.erase(server->connection);
  std::vector<JobSession*> active;
  for (const auto& [session_id, session] : sessions_) {
    if (session->active() && session->served) active.push_back(session.get());
  }
  for (JobSession* session : active) FailSession(session, death, id);
  announce_at_ = std::min(announce_at_, After(now_, kAnnounceDelay));
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
      if (envelope.failure().session_id() != 0 && in_session) return OnStuck(*member, envelope.failure());
      // Its own last words; as after any other death it is not answered.
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

// Who has left meanwhile is missing at the other's deadline.
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

void Coordinator::OnGoodbye(JobMember* member, const control::Goodbye& goodbye) {
  JobSession* session = member->session;
  member->leaving = true;
  member->goodbye_deadline = After(now_, FromMilliseconds(std::max<int64_t>(goodbye.timeout_ms(), 0)));
  SendBarrierAnswers(*session, session->barriers->Leave(static_cast<uint32_t>(member->rank)));
  EndIfEverybodyLeft(session);
}

// A server cannot go on with a session, mostly because it has lost one of its workers.
void Coordinator::OnBroken(const JobMember& server, const control::Failure& failure) {
  const auto found = sessions_.find(failure.session_id());
  if (found == sessions_.end() || !found->second->active()) return;  // it has ended meanwhile
  JobSession* session = found->second.get();
  // One who has said goodbye may take his links down.
  if (session->HasLeft(failure.member())) return Miss(session, failure.member());
  const JobMember* lost = session->Find(failure.member());
  const std::string who = lost == nullptr ? "session \"" + session->name + "\"" : lost->Describe();
  if (!session->broken.ok()) return;
  session->broken =
      MakeStatus(failure.code() == BPS_OK ? BPS_UNAVAILABLE : failure.code(),
                 who + " is lost to " + server.Describe() + ": " + failure.error().substr(0, kMaxLastWords));
  session->broken_by = failure.member();
}

// Behind all that has come: if the lost one has said goodbye or something else itself, it is no loss, or that is the cause.
void Coordinator::FailTheBroken() {
  std::vector<JobSession*> broken;
  for (const auto& [id, session] : sessions_) {
    if (!session->broken.ok()) broken.push_back(session.get());
  }
  for (JobSession* session : broken) {
    const uint32_t member = session->broken_by;
    absl::Status why = std::exchange(session->broken, absl::OkStatus());
    if (session->HasLeft(member)) {
      Miss(session, member);
      continue;
    }
    const auto trouble = session->troubles.find(member);
    if (trouble != session->troubles.end() && !absl::IsUnavailable(trouble->second)) {
      why = trouble->second;
    } else if (trouble != session->troubles.end()) {
      // That links are gone is what the other end of the same ones says, too: only both together may tell which was it.
      why = Extended(why, "; " + Message(trouble->second));
    }
    if (const JobMember* lost = session->Find(member); lost != nullptr) {
      // A link that fails in one direction only: it has given up for want of an answer, and its last words are stuck.
      const Time silence = now_ - connections_.at(lost->connection)->last_heard;
      if (silence / 3 * 2 > options_.heartbeat) {
        why = Extended(why,
                       "; the coordinator has not heard of it for " + SecondsText(WholeSeconds(silence)) + " either");
      }
    }
    FailSession(session, why, member);
  }
}

// A worker has lost another one, or was told by a server that it has: whoever died is known here by himself, and soon.
// One that cannot go on for another reason, or has lost a server, gives up soon; should its links be missed before, what
// it says now is known.
void Coordinator::OnStuck(const JobMember& worker, const control::Failure& failure) {
  JobSession* session = worker.session;
  session->stuck = true;
  uint32_t lost = failure.member();
  if (lost == 0) {
    session->troubles.try_emplace(
        worker.id, MakeStatus(failure.code() == BPS_OK ? BPS_UNAVAILABLE : failure.code(),
                              worker.Describe() + " cannot go on: " + failure.error().substr(0, kMaxLastWords)));
  }
  if (!session->HasLeft(lost)) lost = session->missed;
  if (lost != 0) Miss(session, lost);
}

// Somebody went in order, and his links with him. Whoever does not need him any more is not disturbed. Those who do are
// as lost as after a death, and should hear what it was.
void Coordinator::Miss(JobSession* session, uint32_t member) {
  session->missed = member;
  if (!session->stuck) return;
  FailSession(session,
              absl::UnavailableError(session->NameOf(member) +
                                     " has left the session before the others: it has called shutdown, or its "
                                     "program has ended"),
              member);
}

// A server leaves when its process is told to end. Sessions that need it fail as by its death.
void Coordinator::OnServerGoodbye(JobMember* member) {
  const ConnectionId id = member->connection;
  control::Envelope reply;
  reply.mutable_goodbye_reply();
  handler_->Send(id, reply);
  Depart(member, absl::CancelledError("it was told to end"));
  Drop(id);
}

// ---- Time ----

void Coordinator::Tick(Time now) {
  now_ = now;
  if (over_) return;
  FailTheBroken();
  GiveUpTheSilent(now);
  EndLateGoodbyes(now);
  for (const auto& [id, session] : sessions_) {
    if (session->active()) SendBarrierAnswers(*session, session->barriers->Tick(now));
  }
  AnnounceMissing(now);
  CheckLinger(now);
  CheckGivenUp(now);
  CheckStart(now);
}

void Coordinator::GiveUpTheSilent(Time now) {
  std::vector<std::pair<ConnectionId, absl::Status>> silent;
  for (const auto& [id, connection] : connections_) {
    if (connection->member == nullptr) {
      if (now >= After(connection->opened, options_.hello_timeout)) {
        silent.emplace_back(id,
                            absl::DeadlineExceededError("no greeting within " + SecondsText(options_.hello_timeout)));
      }
    } else if (now >= After(connection->last_heard, options_.peer_timeout)) {
      silent.emplace_back(
          id, absl::DeadlineExceededError("silent for " + SecondsText(WholeSeconds(now - connection->last_heard)) +
                                          ": its host or the network is gone, or it was stopped"));
    }
  }
  for (const auto& [id, why] : silent) {
    if (connections_.count(id) == 0) continue;  // one of the others took it along
    // Should it wake up, it shall know why it is alone.
    handler_->Send(id, FailureEnvelope(Annotate(why, "the coordinator has given this connection up"), 0, 0));
    OnClosed(now, id, why);
    handler_->Close(id);
  }
}

void Coordinator::EndLateGoodbyes(Time now) {
  std::vector<ConnectionId> late;
  for (const auto& [id, connection] : connections_) {
    const JobMember* member = connection->member.get();
    if (member != nullptr && member->leaving && now >= member->goodbye_deadline) late.push_back(id);
  }
  for (const ConnectionId id : late) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) continue;  // likewise
    JobMember* member = found->second->member.get();
    control::Envelope envelope;
    const std::string staying = member->session->Staying();
    envelope.mutable_goodbye_reply()->set_staying(staying);
    BPS_LOG(*log_, kInfo) << member->Describe() << " has left in order; still there: " << staying;
    handler_->Send(id, envelope);
    Depart(member, absl::OkStatus());
    handler_->Close(id);
  }
}

Time Coordinator::NextTimer() const {
  if (over_) return kNever;
  Time next = std::min({linger_deadline_, announce_at_, start_deadline_, stay_until_});
  for (const auto& [id, connection] : connections_) {
    const JobMember* member = connection->member.get();
    if (member == nullptr) {
      next = std::min(next, After(connection->opened, options_.hello_timeout));
      continue;
    }
    next = std::min(next, After(connection->last_heard, options_.peer_timeout));
    if (member->leaving) next = std::min(next, member->goodbye_deadline);
  }
  for (const auto& [id, session] : sessions_) {
    if (session->active()) next = std::min(next, session->barriers->NextTimer());
    if (!session->broken.ok()) next = now_;
  }
  return next;
}

std::vector<std::string> Coordinator::Missing(const JobSession* session) const {
  std::vector<std::string> missing;
  if (session != nullptr) missing = session->Missing();
  const int32_t expected = ExpectedServers();
  const auto present = static_cast<int32_t>(servers_.size());
  if (present < expected) {
    missing.push_back(std::to_string(expected - present) + " of " + std::to_string(expected) +
                      (expected == 1 ? " server" : " servers"));
    for (const std::string& gone : gone_servers_) missing.push_back("(" + gone + ")");
  }
  if (!missing.empty() && !no_room_.empty()) missing.push_back("(somebody was refused: " + no_room_ + ")");
  return missing;
}

void Coordinator::SendWaiting(const JobMember& member) const {
  const std::vector<std::string> missing = Missing(member.session);
  if (missing.empty()) return;
  control::Envelope envelope;
  for (const std::string& each : missing) envelope.mutable_waiting()->add_missing(each);
  for (const std::string& each : refusals_.texts()) envelope.mutable_waiting()->add_refused(each);
  handler_->Send(member.connection, envelope);
}

void Coordinator::AnnounceMissing(Time now) {
  if (now < announce_at_) return;
  announce_at_ = kNever;
  for (const JobMember* server : servers_) SendWaiting(*server);
  for (const auto& [id, session] : sessions_) {
    if (!session->gathering()) continue;
    for (const JobMember* worker : session->workers) SendWaiting(*worker);
  }
}

void Coordinator::DoNotLinger(Time now) {
  if (options_.linger == 0) return;
  options_.linger = 0;
  if (sessions_.empty()) linger_deadline_ = now;
}

void Coordinator::CheckLinger(Time now) {
  if (!sessions_.empty() || now < linger_deadline_) return;
  Stop(now, absl::OkStatus());
}

// Workers that wait give up by themselves; servers, and whoever was started for a job that never came, hear it here.
void Coordinator::CheckStart(Time now) {
  if (over_ || now < start_deadline_) return;
  outcome_ = StartTimeoutError(now - created_);
  Stop(now, outcome_);
}

void Coordinator::CheckGivenUp(Time now) {
  if (over_ || now < stay_until_) return;
  outcome_ = given_up_;
  Stop(now, outcome_);
}

absl::Status Coordinator::StartTimeoutError(Time waited) const {
  const JobSession* gathering = sessions_.empty() ? nullptr : sessions_.begin()->second.get();
  std::string missing;
  if (gathering == nullptr) missing = "all workers";
  for (const std::string& each : Missing(gathering)) missing += (missing.empty() ? "" : ", ") + each;
  std::string there;
  size_t members = 0;
  for (const auto& [id, connection] : connections_) {
    if (connection->member == nullptr || ++members > kMaxMissing) continue;
    there += (there.empty() ? "; there are " : ", ") + connection->member->Describe();
  }
  if (members > kMaxMissing) there += " and " + std::to_string(members - kMaxMissing) + " more";
  for (const std::string& each : refusals_.texts()) there += "; it has refused: " + each;
  return absl::DeadlineExceededError("no session has started within " + SecondsText(WholeSeconds(waited)) +
                                     ": missing are " + missing + there +
                                     (why_not_.empty() ? "" : "; the last start failed: " + why_not_) +
                                     ". Do they know this address (DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT), and the job "
                                     "(BYTEPS_JOB_ID)? " +
                                     (gathering != nullptr || options_.num_hosts.value_or(1) > 1
                                          ? ""
                                          : "(The worker of a single host comes only where "
                                            "BYTEPS_FORCE_DISTRIBUTED=1 is set for it, too.) ") +
                                     "BYTEPS_START_TIMEOUT says how long they are waited for");
}

void Coordinator::Stop(Time now, const absl::Status& why) {
  now_ = now;
  if (over_) return;
  const std::string reason = why.ok() ? "no session has been open for " + SecondsText(options_.linger) : Message(why);
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
