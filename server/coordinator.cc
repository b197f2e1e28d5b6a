#include "server/coordinator.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "core/auth.h"
#include "core/control_codec.h"
#include "core/status.h"
#include "core/version.h"
#include "core/wire.h"
#include "server/barrier_book.h"
#include "server/membership.h"
#include "server/tensor_directory.h"

namespace byteps {
namespace {

// Lists of the missing are sent this long after a change, so that a thousand arrivals are not a million messages.
constexpr Time kAnnounceDelay = 100 * kMillisecond;
// How much later than the others of its start a member may come.
constexpr Time kLateness = 60 * kSecond;
// A declare reply is cut after this many bytes.
constexpr size_t kReplyBytes = size_t{1} << 20;
// Of a member that gives up.
constexpr size_t kMaxLastWords = 4096;
// Names of sessions whose generations are counted.
constexpr size_t kMaxSessionNames = size_t{1} << 16;

std::string Message(const absl::Status& status) {
  return std::string(status.message().data(), status.message().size());
}

std::string Seconds(Time time) { return std::to_string(time / kSecond) + " s"; }

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

const char* SessionStateName(SessionState state) { return state == SessionState::kGathering ? "gathering" : "active"; }

// A member and the connection it is reached by.
struct Coordinator::Member {
  uint32_t id = 0;
  control::Hello hello;
  ConnectionId connection = 0;
  Session* session = nullptr;  // workers
  int32_t rank = -1;           // -1: not known yet
  bool leaving = false;        // has said goodbye
  Time goodbye_deadline = kNever;
  int64_t goodbye_timeout_ms = 0;

  bool worker() const { return hello.role() == control::WORKER; }
};

struct Coordinator::Connection {
  ConnectionId id = 0;
  std::string address;
  std::string nonce;
  Time opened = 0;
  Time last_heard = 0;
  std::unique_ptr<Member> member;  // nullptr: challenged
};

struct Coordinator::Session {
  uint64_t id = 0;
  std::string name;
  uint64_t generation = 0;
  SessionState state = SessionState::kGathering;
  bool served = true;                     // active: servers take part
  std::vector<Member*> workers;           // gathering: by arrival; active: by rank, nullptr: has left
  std::map<HostPlace, std::string> gone;  // gathering: who was here before, and why no more
  std::map<uint32_t, std::string> left;   // active: who has left before the others, by member id
  uint32_t missed = 0;                    // active: one of these, whom a server or a worker misses
  bool stuck = false;                     // active: a worker cannot go on
  std::string refused;                    // gathering: the last one who wanted a place that is taken
  std::vector<std::string> names;         // active: of each rank, for errors
  std::unique_ptr<TensorDirectory> tensors;
  std::unique_ptr<BarrierBook> barriers;

  std::vector<const control::Hello*> Hellos() const {
    std::vector<const control::Hello*> hellos;
    for (const Member* worker : workers) hellos.push_back(&worker->hello);
    return hellos;
  }
};

// Those who come late for a start that failed hear why, and do not wait for who has gone. Who comes a second time, or
// the server that was in the wrong and now is not, has been started anew: then it is forgotten.
struct Coordinator::Discord {
  absl::Status why;
  Time until = 0;
  bool of_servers = false;
  std::string session;  // whose workers it concerns, unless `of_servers`
  std::set<std::pair<std::string, HostPlace>> told;
};

Coordinator::Coordinator(CoordinatorOptions options, CoordinatorHandler* handler, const Logger* log)
    : options_(std::move(options)), handler_(handler), log_(log), strangers_(log) {
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

void Coordinator::Drop(ConnectionId id) {
  connections_.erase(id);
  handler_->Close(id);
}

void Coordinator::Refuse(ConnectionId id, const absl::Status& why) {
  strangers_.Say(now_, connections_.at(id)->address, Message(why));
  handler_->Send(id, FailureEnvelope(why, 0, 0));
  Drop(id);
}

// ---- Registration ----

absl::Status Coordinator::CheckNewcomer(const Connection& connection, const control::Hello& hello) const {
  const std::string self = "the coordinator is BytePS " + std::string(kRelease) + " (control protocol " +
                           std::to_string(kControlVersion) + ", data protocol " + std::to_string(wire::kVersion) + ")";
  if (hello.control_version() != kControlVersion || hello.wire_version() != wire::kVersion) {
    return absl::FailedPreconditionError(
        "a role of another version: at " + connection.address + " is BytePS " + hello.release() +
        " (control protocol " + std::to_string(hello.control_version()) + ", data protocol " +
        std::to_string(hello.wire_version()) + "), " + self + ": install the same BytePS everywhere");
  }
  const std::string jobs = hello.job() == options_.job
                               ? "job \"" + options_.job + "\""
                               : "job \"" + hello.job() + "\", this coordinator's is \"" + options_.job + "\"";
  if (!SameProof(hello.proof(), MemberProof(options_.token, connection.nonce, hello.nonce(), hello.role(), hello.job(),
                                            hello.session()))) {
    return absl::UnauthenticatedError("somebody at " + connection.address + " (" + jobs +
                                      ") could not prove that he knows the job's token: BYTEPS_JOB_TOKEN or "
                                      "BYTEPS_JOB_TOKEN_FILE differ, or it is another job");
  }
  if (absl::Status sane = CheckHello(hello); !sane.ok()) return sane;
  if (hello.job() != options_.job) {
    return absl::FailedPreconditionError(DescribeHello(hello) + " belongs to another job: BYTEPS_JOB_ID=" +
                                         hello.job() + ", this coordinator's is " + options_.job);
  }
  return absl::OkStatus();
}

absl::Status Coordinator::CheckExpected(const control::Hello& hello) const {
  const auto differs = [&](const char* variable, int32_t there, int32_t here) {
    return absl::FailedPreconditionError(std::string(variable) + " differs: " + std::to_string(there) + " at " +
                                         DescribeHello(hello) + ", " + std::to_string(here) + " at the coordinator");
  };
  if (options_.num_servers != 0 && hello.num_servers() != options_.num_servers) {
    return differs("DMLC_NUM_SERVER", hello.num_servers(), options_.num_servers);
  }
  if (hello.role() == control::WORKER && options_.num_hosts != 0 && hello.num_hosts() != options_.num_hosts) {
    return differs("DMLC_NUM_WORKER", hello.num_hosts(), options_.num_hosts);
  }
  return absl::OkStatus();
}

void Coordinator::OnHello(Connection* connection, const control::Hello& hello) {
  if (absl::Status status = CheckNewcomer(*connection, hello); !status.ok()) return Refuse(connection->id, status);
  const absl::Status joined =
      hello.role() == control::SERVER ? AddServer(connection, hello) : AddWorker(connection, hello);
  if (!joined.ok()) return Refuse(connection->id, joined);
  Welcome(connection, hello);
  announce_at_ = std::min(announce_at_, After(now_, kAnnounceDelay));
  ActivateIfComplete();
}

// What concerns everybody who waits fails all gathering sessions, so that nobody waits in vain. Who wants what somebody
// else has is refused alone, and sessions that run are not disturbed by a newcomer, whoever he is.
absl::Status Coordinator::AddServer(Connection* connection, const control::Hello& hello) {
  for (const Member* server : servers_) {
    if (absl::Status taken = CheckPlace(hello, server->hello); !taken.ok()) return taken;
  }
  absl::Status status = CheckExpected(hello);
  for (const Member* server : servers_) {
    if (status.ok()) status = CheckAgreement(hello, server->hello);
  }
  for (const auto& [id, session] : sessions_) {
    if (!status.ok() || session->state != SessionState::kGathering) continue;
    for (const Member* worker : session->workers) {
      if (status.ok()) status = CheckAgreement(hello, worker->hello);
    }
  }
  if (status.ok() && servers_.size() >= static_cast<size_t>(hello.num_servers())) {
    std::string there;
    for (const Member* server : servers_) there += (there.empty() ? "" : ", ") + DescribeHello(server->hello);
    return absl::AlreadyExistsError(DescribeHello(hello) + " is one server too many: DMLC_NUM_SERVER=" +
                                    std::to_string(hello.num_servers()) + ", and there are " + there);
  }
  if (!status.ok()) {
    Remember(status, hello);
    FailGathering(status);
    return status;
  }
  if (discord_ != nullptr && discord_->of_servers) discord_.reset();
  connection->member = std::make_unique<Member>();
  servers_.push_back(connection->member.get());
  return absl::OkStatus();
}

absl::Status Coordinator::AddWorker(Connection* connection, const control::Hello& hello) {
  absl::Status status = CheckExpected(hello);
  for (const auto& [id, session] : sessions_) {
    if (session->name != hello.session() || session->state != SessionState::kActive) continue;
    for (const Member* worker : session->workers) {
      if (worker == nullptr || worker->leaving || PlaceOf(worker->hello) != PlaceOf(hello)) continue;
      // A stranger beside a running session: its own error, nobody else's.
      return absl::AlreadyExistsError(DescribeHello(hello) +
                                      " wants a place that is taken in a running session: rank " +
                                      std::to_string(worker->rank) + " is " + DescribeHello(worker->hello));
    }
  }
  if (absl::Status late = Remembered(hello); !late.ok()) return late;
  Session* session = Gathering(hello.session());
  if (session != nullptr) {
    for (const Member* worker : session->workers) {
      if (absl::Status taken = CheckPlace(hello, worker->hello); !taken.ok()) {
        // Likewise. But if nobody else comes, those who wait shall know of it.
        session->refused = Message(taken);
        announce_at_ = std::min(announce_at_, After(now_, kAnnounceDelay));
        return taken;
      }
    }
    for (const Member* worker : session->workers) {
      if (status.ok()) status = CheckAgreement(hello, worker->hello);
    }
  }
  if (status.ok() && !servers_.empty()) status = CheckAgreement(hello, servers_.front()->hello);
  if (!status.ok()) {
    Remember(status, hello);
    if (session != nullptr) FailSession(session, status, 0);
    return status;
  }
  if (session == nullptr) {
    if (generations_.size() >= kMaxSessionNames && generations_.count(hello.session()) == 0) {
      return absl::ResourceExhaustedError("this job has had " + std::to_string(kMaxSessionNames) +
                                          " sessions of different names; use a name again");
    }
    auto created = std::make_unique<Session>();
    session = created.get();
    session->id = ++last_session_;
    session->name = hello.session();
    session->generation = ++generations_[hello.session()];
    sessions_[session->id] = std::move(created);
    linger_deadline_ = kNever;
  }
  connection->member = std::make_unique<Member>();
  connection->member->session = session;
  session->gone.erase(PlaceOf(hello));
  session->workers.push_back(connection->member.get());
  return absl::OkStatus();
}

void Coordinator::Welcome(Connection* connection, const control::Hello& hello) {
  Member& member = *connection->member;
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
  BPS_LOG(*log_, kInfo) << "member " << member.id << " is " << DescribeHello(hello);
}

// ---- Membership ----

Coordinator::Session* Coordinator::Gathering(const std::string& name) const {
  for (const auto& [id, session] : sessions_) {
    if (session->state == SessionState::kGathering && session->name == name) return session.get();
  }
  return nullptr;
}

int32_t Coordinator::ExpectedServers() const {
  if (options_.num_servers != 0) return options_.num_servers;
  const control::Hello* hello = AnyHello();
  return hello == nullptr ? 0 : hello->num_servers();
}

const control::Hello* Coordinator::AnyHello() const {
  if (!servers_.empty()) return &servers_.front()->hello;
  for (const auto& [id, session] : sessions_) {
    for (const Member* worker : session->workers) {
      if (worker != nullptr) return &worker->hello;
    }
  }
  return nullptr;
}

bool Coordinator::ServersComplete() const {
  return AnyHello() != nullptr && servers_.size() == static_cast<size_t>(ExpectedServers());
}

// Ranks are given when all servers are there, and kept: those who asked for one get it, the others what is left, in the
// order of their hosts (BYTEPS_ORDERED_HOSTS), then of their arrival.
void Coordinator::RankServers() {
  std::vector<bool> taken(servers_.size(), false);
  for (const Member* server : servers_) {
    if (server->rank >= 0) taken[static_cast<size_t>(server->rank)] = true;
  }
  for (Member* server : servers_) {
    const int32_t wanted = server->hello.preferred_rank();
    if (server->rank >= 0 || wanted < 0 || taken[static_cast<size_t>(wanted)]) continue;
    server->rank = wanted;
    taken[static_cast<size_t>(wanted)] = true;
  }
  const auto place = [&](const Member* server) {
    const control::Host& host = server->hello.host();
    return std::find_if(options_.ordered_hosts.begin(), options_.ordered_hosts.end(),
                        [&](const std::string& one) { return one == host.name() || one == host.address(); });
  };
  std::stable_sort(servers_.begin(), servers_.end(),
                   [&](const Member* one, const Member* other) { return place(one) < place(other); });
  for (Member* server : servers_) {
    if (server->rank >= 0) continue;
    const auto free = std::find(taken.begin(), taken.end(), false);
    server->rank = static_cast<int32_t>(free - taken.begin());
    *free = true;
  }
  std::sort(servers_.begin(), servers_.end(),
            [](const Member* one, const Member* other) { return one->rank < other->rank; });
}

void Coordinator::ActivateIfComplete() {
  if (!ServersComplete()) return;
  RankServers();
  std::vector<Session*> complete;
  for (const auto& [id, session] : sessions_) {
    if (session->state == SessionState::kGathering && MissingWorkers(session->Hellos()).empty()) {
      complete.push_back(session.get());
    }
  }
  for (Session* session : complete) {
    const absl::Status status = Activate(session);
    if (!status.ok()) FailSession(session, status, 0);
  }
}

absl::Status Coordinator::Activate(Session* session) {
  const absl::StatusOr<std::vector<size_t>> order = RankOrder(session->Hellos());
  if (!order.ok()) return order.status();
  std::vector<Member*> by_rank;
  for (const size_t index : *order) by_rank.push_back(session->workers[index]);
  session->workers = std::move(by_rank);
  const absl::StatusOr<std::vector<uint32_t>> groups = GroupSizes(session->Hellos());
  if (!groups.ok()) return groups.status();
  const LocalSets local = FindLocalSets(session->Hellos(), *groups);
  if (servers_.empty() && local.sizes.size() != 1) {
    return absl::FailedPreconditionError(
        "this job has no servers (DMLC_NUM_SERVER=0), so its workers must reduce among themselves, but they cannot: " +
        local.refusal + ": start a server (bpslaunch --servers 1), or remove the cause");
  }

  control::Envelope envelope;
  control::Epoch& epoch = *envelope.mutable_epoch();
  epoch.set_session_id(session->id);
  epoch.set_epoch(1);
  epoch.set_generation(session->generation);
  epoch.set_session(session->name);
  epoch.set_nonce(options_.random(kNonceBytes));
  for (const uint32_t size : *groups) epoch.add_group_sizes(size);
  for (const uint32_t size : local.sizes) epoch.add_local_sizes(size);
  epoch.set_inline_bytes(UINT64_MAX);
  const auto fill = [](const Member& member, control::Member* out) {
    const control::Hello& hello = member.hello;
    out->set_member(member.id);
    out->set_role(hello.role());
    out->set_rank(member.rank);
    out->set_host_index(hello.host_index());
    out->set_local_rank(hello.local_rank());
    out->set_local_size(hello.local_size());
    *out->mutable_host() = hello.host();
    out->set_pid(hello.pid());
    *out->mutable_lanes() = hello.lanes();
    if (hello.has_local()) *out->mutable_local() = hello.local();
  };
  PlacementOptions placement;
  placement.slot_bytes = UINT64_MAX;
  std::vector<const control::Host*> worker_hosts, server_hosts;
  for (size_t rank = 0; rank < session->workers.size(); ++rank) {
    Member* worker = session->workers[rank];
    worker->rank = static_cast<int32_t>(rank);
    fill(*worker, epoch.add_workers());
    worker_hosts.push_back(&worker->hello.host());
    if (worker->hello.has_local()) {
      epoch.set_inline_bytes(std::min(epoch.inline_bytes(), worker->hello.inline_bytes()));
    }
    const uint64_t bound = worker->hello.partition_bytes();
    if (bound != 0 && (placement.partition_bytes == 0 || bound < placement.partition_bytes)) {
      placement.partition_bytes = bound;
    }
    session->names.push_back("rank " + std::to_string(rank) + " (" +
                             DescribeWhere(worker->hello.host(), worker->hello.pid()) + ")");
  }
  for (const Member* server : servers_) {
    fill(*server, epoch.add_servers());
    server_hosts.push_back(&server->hello.host());
    placement.slot_bytes = std::min(placement.slot_bytes, server->hello.slot_bytes());
    placement.lanes.push_back(static_cast<uint32_t>(server->hello.lanes_size()));
  }
  epoch.set_slot_bytes(placement.slot_bytes);
  const ServerShares shares = SharesOf(worker_hosts, server_hosts);
  if (options_.mixed_mode != MixedMode::kOff) placement.weights = shares.weights;
  if (options_.mixed_mode == MixedMode::kOn && !shares.obstacle.empty()) {
    BPS_LOG(*log_, kWarning) << "BYTEPS_ENABLE_MIXED_MODE=on, but " << shares.obstacle
                             << ": every server gets the same share";
  }
  if (local.sizes.size() > 1) placement.owners = *std::max_element(local.sizes.begin(), local.sizes.end());
  placement.hash = options_.hash;
  placement.hash.dedicated = shares.dedicated;

  session->state = SessionState::kActive;
  session->gone.clear();
  session->refused.clear();
  session->tensors = std::make_unique<TensorDirectory>(std::move(placement));
  session->barriers = std::make_unique<BarrierBook>(static_cast<uint32_t>(session->workers.size()),
                                                    [session](uint32_t rank) { return session->names[rank]; });
  served_ = true;
  BPS_LOG(*log_, kInfo) << "session \"" << session->name << "\" generation " << session->generation
                        << " starts: " << session->workers.size() << " workers, " << servers_.size() << " servers, "
                        << (local.sizes.empty() ? "no reduction within hosts (" + local.refusal + ")"
                                                : "the workers of a host reduce among themselves");
  // Servers first: they should know the workers when those call.
  session->served = local.sizes.size() != 1;
  if (session->served) {
    for (const Member* server : servers_) handler_->Send(server->connection, envelope);
  }
  for (const Member* worker : session->workers) handler_->Send(worker->connection, envelope);
  return absl::OkStatus();
}

void Coordinator::FailSession(Session* session, const absl::Status& why, uint32_t member) {
  BPS_LOG(*log_, kWarning) << "session \"" << session->name << "\" generation " << session->generation
                           << " fails: " << Message(why);
  const bool served = session->state == SessionState::kActive && session->served;
  const uint64_t id = session->id;
  if (served) {
    for (const Member* server : servers_) {
      handler_->Send(server->connection, FailureEnvelope(why, member, id));
    }
  }
  std::vector<ConnectionId> told;
  for (const Member* worker : session->workers) {
    if (worker != nullptr) told.push_back(worker->connection);
  }
  for (const ConnectionId connection : told) {
    handler_->Send(connection, FailureEnvelope(why, member, id));
    Drop(connection);
  }
  ForgetSession(id);
}

void Coordinator::Remember(const absl::Status& why, const control::Hello& culprit) {
  auto discord = std::make_unique<Discord>();
  discord->why = why;
  discord->until = After(now_, kLateness);
  discord->of_servers = culprit.role() == control::SERVER;
  discord->session = culprit.session();
  if (!discord->of_servers) discord->told.insert({culprit.session(), PlaceOf(culprit)});
  for (const auto& [id, session] : sessions_) {
    if (!discord->of_servers && session->name != discord->session) continue;
    // Beside a session that runs it is a stranger who is wrong, and nobody comes late.
    if (session->state != SessionState::kGathering) return;
    for (const Member* worker : session->workers) discord->told.insert({session->name, PlaceOf(worker->hello)});
  }
  discord_ = std::move(discord);
}

absl::Status Coordinator::Remembered(const control::Hello& worker) {
  if (discord_ == nullptr) return absl::OkStatus();
  if (!discord_->of_servers && discord_->session != worker.session()) return absl::OkStatus();
  if (now_ < discord_->until && discord_->told.insert({worker.session(), PlaceOf(worker)}).second) return discord_->why;
  discord_.reset();
  return absl::OkStatus();
}

void Coordinator::FailGathering(const absl::Status& why) {
  std::vector<Session*> gathering;
  for (const auto& [id, session] : sessions_) {
    if (session->state == SessionState::kGathering) gathering.push_back(session.get());
  }
  for (Session* session : gathering) FailSession(session, why, 0);
}

void Coordinator::ForgetSession(uint64_t id) {
  sessions_.erase(id);
  if (sessions_.empty() && served_) linger_deadline_ = After(now_, options_.linger);
}

void Coordinator::EndIfEverybodyLeft(Session* session) {
  for (const Member* worker : session->workers) {
    if (worker != nullptr && !worker->leaving) return;
  }
  BPS_LOG(*log_, kInfo) << "session \"" << session->name << "\" generation " << session->generation << " has ended";
  const uint64_t id = session->id;
  control::Envelope ended;
  ended.mutable_session_ended()->set_session_id(id);
  if (session->served) {
    for (const Member* server : servers_) handler_->Send(server->connection, ended);
  }
  control::Envelope reply;
  reply.mutable_goodbye_reply();
  std::vector<ConnectionId> left;
  for (const Member* worker : session->workers) {
    if (worker != nullptr) left.push_back(worker->connection);
  }
  for (const ConnectionId connection : left) {
    handler_->Send(connection, reply);
    Drop(connection);
  }
  ForgetSession(id);
}

void Coordinator::Depart(Member* member, const absl::Status& why) {
  const ConnectionId connection = member->connection;
  const uint32_t id = member->id;
  Session* session = member->session;
  if (!member->worker()) {
    const absl::Status death = absl::UnavailableError(DescribeMember(*member) + " is gone: " + Message(why));
    BPS_LOG(*log_, kWarning) << Message(death);
    servers_.erase(std::find(servers_.begin(), servers_.end(), member));
    connections_.erase(connection);
    std::vector<Session*> active;
    for (const auto& [session_id, each] : sessions_) {
      if (each->state == SessionState::kActive && each->served) active.push_back(each.get());
    }
    for (Session* each : active) FailSession(each, death, id);
    announce_at_ = std::min(announce_at_, After(now_, kAnnounceDelay));
    return;
  }
  const auto place = std::find(session->workers.begin(), session->workers.end(), member);
  if (session->state == SessionState::kGathering) {
    session->gone[PlaceOf(member->hello)] =
        DescribeWhere(member->hello.host(), member->hello.pid()) + " was here: " + Message(why);
    BPS_LOG(*log_, kInfo) << DescribeMember(*member) << " is gone before the start: " << Message(why);
    session->workers.erase(place);
    connections_.erase(connection);
    announce_at_ = std::min(announce_at_, After(now_, kAnnounceDelay));
    if (session->workers.empty()) ForgetSession(session->id);
    return;
  }
  if (!member->leaving) {
    const absl::Status death =
        absl::UnavailableError(DescribeMember(*member) + " is gone without a goodbye: " + Message(why));
    *place = nullptr;
    connections_.erase(connection);
    return FailSession(session, death, id);
  }
  *place = nullptr;
  session->left[id] = DescribeMember(*member);
  connections_.erase(connection);
  EndIfEverybodyLeft(session);
}

// ---- What members ask ----

void Coordinator::OnMemberFrame(Connection* connection, const control::Envelope& envelope) {
  Member* member = connection->member.get();
  const bool in_session = member->session != nullptr && member->session->state == SessionState::kActive;
  switch (envelope.message_case()) {
    case control::Envelope::kHeartbeat:
      return OnHeartbeat(*member, envelope.heartbeat());
    case control::Envelope::kDeclareRequest:
      if (in_session) return OnDeclare(*member, envelope.declare_request());
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
      if (envelope.failure().session_id() != 0 && in_session) return OnStuck(*member, envelope.failure().member());
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

void Coordinator::OnHeartbeat(const Member& member, const control::Heartbeat& heartbeat) {
  control::Envelope envelope;
  envelope.mutable_heartbeat()->set_sequence(heartbeat.sequence());
  envelope.mutable_heartbeat()->set_reply(true);
  handler_->Send(member.connection, envelope);
  if (member.session != nullptr && member.session->state == SessionState::kGathering) SendWaiting(member);
}

void Coordinator::OnDeclare(const Member& member, const control::DeclareRequest& request) {
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

void Coordinator::OnBarrier(const Member& member, const control::BarrierRequest& request) {
  const Session& session = *member.session;
  SendBarrierAnswers(session, session.barriers->Arrive(now_, static_cast<uint32_t>(member.rank), request));
}

void Coordinator::SendBarrierAnswers(const Session& session, const std::vector<BarrierAnswer>& answers) {
  for (const BarrierAnswer& answer : answers) {
    const Member* worker = session.workers[answer.rank];
    if (worker == nullptr) continue;
    control::Envelope envelope;
    *envelope.mutable_barrier_reply() = answer.reply;
    handler_->Send(worker->connection, envelope);
  }
}

void Coordinator::OnGoodbye(Member* member, const control::Goodbye& goodbye) {
  Session* session = member->session;
  member->leaving = true;
  member->goodbye_timeout_ms = std::max<int64_t>(goodbye.timeout_ms(), 0);
  member->goodbye_deadline = After(now_, FromMilliseconds(member->goodbye_timeout_ms));
  SendBarrierAnswers(*session, session->barriers->Leave(static_cast<uint32_t>(member->rank)));
  EndIfEverybodyLeft(session);
}

// A server cannot go on with a session, mostly because it has lost one of its workers.
void Coordinator::OnBroken(const Member& server, const control::Failure& failure) {
  const auto found = sessions_.find(failure.session_id());
  if (found == sessions_.end() || found->second->state != SessionState::kActive) return;  // it has ended meanwhile
  Session* session = found->second.get();
  std::string who = "session \"" + session->name + "\"";
  for (const Member* worker : session->workers) {
    if (worker == nullptr || worker->id != failure.member()) continue;
    // One who has said goodbye may take his links down.
    if (worker->leaving) return Miss(session, worker->id);
    who = DescribeMember(*worker);
  }
  if (session->left.count(failure.member()) != 0) return Miss(session, failure.member());
  const absl::Status why =
      MakeStatus(failure.code() == BPS_OK ? BPS_UNAVAILABLE : failure.code(),
                 who + " is lost to " + DescribeMember(server) + ": " + failure.error().substr(0, kMaxLastWords));
  FailSession(session, why, failure.member());
}

// A worker has lost another one, or was told by a server that it has: whoever died is known here by himself, and soon.
void Coordinator::OnStuck(const Member& worker, uint32_t lost) {
  Session* session = worker.session;
  session->stuck = true;
  const auto here = [lost](const Member* each) { return each != nullptr && each->id == lost && each->leaving; };
  if (session->left.count(lost) == 0 && std::none_of(session->workers.begin(), session->workers.end(), here)) {
    lost = session->missed;
  }
  if (lost != 0) Miss(session, lost);
}

// Somebody went in order, and his links with him. Whoever does not need him any more is not disturbed. Those who do are
// as lost as after a death, and should hear what it was.
void Coordinator::Miss(Session* session, uint32_t member) {
  session->missed = member;
  if (!session->stuck) return;
  const auto left = session->left.find(member);
  std::string who = left == session->left.end() ? "" : left->second;
  for (const Member* worker : session->workers) {
    if (worker != nullptr && worker->id == member) who = DescribeMember(*worker);
  }
  FailSession(session,
              absl::UnavailableError(who + " has left the session before the others: it has called shutdown, or its "
                                           "program has ended"),
              member);
}

// A server leaves when its process is told to end. Sessions that need it fail as by its death.
void Coordinator::OnServerGoodbye(Member* member) {
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
  // Each of these may forget others: look again from the start.
  std::vector<std::pair<ConnectionId, absl::Status>> silent;
  std::vector<ConnectionId> late_goodbyes;
  for (const auto& [id, connection] : connections_) {
    const Member* member = connection->member.get();
    if (member == nullptr) {
      if (now >= After(connection->opened, options_.hello_timeout)) {
        silent.emplace_back(id, absl::DeadlineExceededError("no greeting within " + Seconds(options_.hello_timeout)));
      }
    } else if (now >= After(connection->last_heard, options_.peer_timeout)) {
      silent.emplace_back(id, absl::DeadlineExceededError("silent for " + Seconds(now - connection->last_heard) +
                                                          ": its host or the network is gone, or it was stopped"));
    } else if (member->leaving && now >= member->goodbye_deadline) {
      late_goodbyes.push_back(id);
    }
  }
  for (const auto& [id, why] : silent) {
    if (connections_.count(id) == 0) continue;
    // Should it wake up, it shall know why it is alone.
    handler_->Send(id, FailureEnvelope(Annotate(why, "the coordinator has given this connection up"), 0, 0));
    OnClosed(now, id, why);
    handler_->Close(id);
  }
  for (const ConnectionId id : late_goodbyes) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) continue;
    const Member& member = *found->second->member;
    std::string missing;
    for (const Member* worker : member.session->workers) {
      if (worker == nullptr || worker->leaving) continue;
      missing += (missing.empty() ? "" : ", ") + member.session->names[static_cast<size_t>(worker->rank)];
    }
    control::Envelope envelope;
    envelope.mutable_goodbye_reply()->set_code(BPS_DEADLINE_EXCEEDED);
    envelope.mutable_goodbye_reply()->set_error("within " + std::to_string(member.goodbye_timeout_ms) +
                                                " ms these have not left the session: " + missing);
    handler_->Send(id, envelope);
    Depart(found->second->member.get(), absl::OkStatus());
    handler_->Close(id);
  }
  for (const auto& [id, session] : sessions_) {
    if (session->state == SessionState::kActive) SendBarrierAnswers(*session, session->barriers->Tick(now));
  }
  AnnounceMissing(now);
  CheckLinger(now);
}

Time Coordinator::NextTimer() const {
  if (over_) return kNever;
  Time next = std::min(linger_deadline_, announce_at_);
  for (const auto& [id, connection] : connections_) {
    const Member* member = connection->member.get();
    if (member == nullptr) {
      next = std::min(next, After(connection->opened, options_.hello_timeout));
      continue;
    }
    next = std::min(next, After(connection->last_heard, options_.peer_timeout));
    if (member->leaving) next = std::min(next, member->goodbye_deadline);
  }
  for (const auto& [id, session] : sessions_) {
    if (session->state == SessionState::kActive) next = std::min(next, session->barriers->NextTimer());
  }
  return next;
}

std::vector<std::string> Coordinator::Missing(const Session* session) const {
  std::vector<std::string> missing;
  if (session != nullptr) {
    missing = MissingWorkers(session->Hellos());
    for (const auto& [place, why] : session->gone) {
      if (missing.size() <= 2 * kMaxMissing) missing.push_back("(" + why + ")");
    }
    if (!missing.empty() && !session->refused.empty()) missing.push_back("(refused: " + session->refused + ")");
  }
  const int32_t expected = ExpectedServers();
  const auto present = static_cast<int32_t>(servers_.size());
  if (present < expected) {
    missing.push_back(std::to_string(expected - present) + " of " + std::to_string(expected) +
                      (expected == 1 ? " server" : " servers"));
  }
  return missing;
}

void Coordinator::SendWaiting(const Member& member) const {
  const std::vector<std::string> missing = Missing(member.session);
  if (missing.empty()) return;
  control::Envelope envelope;
  for (const std::string& each : missing) envelope.mutable_waiting()->add_missing(each);
  handler_->Send(member.connection, envelope);
}

void Coordinator::AnnounceMissing(Time now) {
  if (now < announce_at_) return;
  announce_at_ = kNever;
  for (const Member* server : servers_) SendWaiting(*server);
  for (const auto& [id, session] : sessions_) {
    if (session->state != SessionState::kGathering) continue;
    for (const Member* worker : session->workers) SendWaiting(*worker);
  }
}

void Coordinator::CheckLinger(Time now) {
  if (!sessions_.empty() || now < linger_deadline_) return;
  Stop(now, absl::OkStatus());
}

void Coordinator::Stop(Time now, const absl::Status& why) {
  now_ = now;
  if (over_) return;
  const std::string reason = why.ok() ? "no session has been open for " + Seconds(options_.linger) : Message(why);
  BPS_LOG(*log_, kInfo) << "the job is over: " << reason;
  const absl::Status failure = why.ok() ? absl::UnavailableError("the coordinator has ended the job: " + reason) : why;
  while (!sessions_.empty()) FailSession(sessions_.begin()->second.get(), failure, 0);
  control::Envelope envelope;
  envelope.mutable_job_ended()->set_reason(reason);
  for (const Member* server : servers_) handler_->Send(server->connection, envelope);
  servers_.clear();
  while (!connections_.empty()) Drop(connections_.begin()->first);
  strangers_.Flush();
  over_ = true;
}

// ---- For people ----

std::string Coordinator::DescribeMember(const Member& member) const {
  const std::string where = " (" + DescribeWhere(member.hello.host(), member.hello.pid()) + ")";
  if (member.rank < 0) return DescribeHello(member.hello);
  return (member.worker() ? "worker rank " : "server rank ") + std::to_string(member.rank) + where;
}

std::vector<std::string> Coordinator::Describe() const {
  std::vector<std::string> lines;
  for (const auto& [id, session] : sessions_) {
    lines.push_back("session \"" + session->name + "\" generation " + std::to_string(session->generation) + ": " +
                    SessionStateName(session->state));
  }
  for (const auto& [id, connection] : connections_) {
    lines.push_back("connection " + std::to_string(id) + " from " + connection->address + ": " +
                    (connection->member == nullptr ? "challenged" : DescribeMember(*connection->member)));
  }
  return lines;
}

}  // namespace byteps
