#include "tests/server/membership/control_job.h"

#include <algorithm>
#include <utility>

namespace byteps {
namespace {

LogOptions Quiet() {
  LogOptions options;
  options.level = LogLevel::kFatal;
  return options;
}

ControlClientOptions ClientOptions(control::Hello hello, std::string token) {
  ControlClientOptions options;
  if (hello.wire_version() != 0) options.wire_version = hello.wire_version();
  if (!hello.release().empty()) options.release = hello.release();
  options.hello = std::move(hello);
  options.token = std::move(token);
  options.coordinator = "127.0.0.1:9000";
  return options;
}

}  // namespace

ControlMember::ControlMember(ControlJob* job, control::Hello hello, std::string token, Time now)
    : job_(job), client_(ClientOptions(std::move(hello), std::move(token)), this, now) {}

void ControlMember::Send(const control::Envelope& envelope) { job_->SendToCoordinator(connection, envelope); }

ControlJob::ControlJob(CoordinatorOptions options)
    : token(options.token),
      log_(Quiet()),
      coordinator_(
          [&] {
            if (options.job.empty()) options.job = "job";
            options.random = [this](size_t size) {
              std::string bytes(size, '\0');
              for (char& byte : bytes) byte = static_cast<char>(random_());
              return bytes;
            };
            return options;
          }(),
          this, &log_, now_) {}

control::Hello ControlJob::WorkerHello(const WorkerSpec& spec) {
  control::Hello hello;
  hello.set_role(control::WORKER);
  hello.set_job("job");
  hello.set_session(spec.session);
  hello.mutable_host()->set_name("host" + std::to_string(spec.host));
  hello.mutable_host()->set_address("10.0.0." + std::to_string(spec.host));
  hello.set_pid(1000 + 10 * spec.host + spec.local_rank);
  hello.set_host_index(spec.host);
  hello.set_num_hosts(spec.hosts);
  hello.set_local_rank(spec.local_rank);
  hello.set_local_size(spec.local_size);
  hello.set_num_servers(spec.servers);
  hello.set_preferred_rank(spec.global_rank);
  hello.add_lanes()->set_transport(spec.transport);
  hello.set_groups(spec.groups);
  hello.set_partition_bytes(spec.partition_bytes);
  return hello;
}

control::Hello ControlJob::ServerHello(const ServerSpec& spec) {
  control::Hello hello;
  hello.set_role(control::SERVER);
  hello.set_job("job");
  hello.mutable_host()->set_name("serverhost");
  hello.mutable_host()->set_address("10.0.1.1");
  hello.set_pid(7);
  hello.set_num_servers(spec.servers);
  hello.set_preferred_rank(spec.preferred_rank);
  for (int lane = 0; lane < spec.lanes; ++lane) hello.add_lanes()->set_transport(spec.transport);
  hello.set_slot_bytes(spec.slot_bytes);
  return hello;
}

ControlMember& ControlJob::AddWorker(const WorkerSpec& spec) { return Add(WorkerHello(spec)); }
ControlMember& ControlJob::AddServer(const ServerSpec& spec) { return Add(ServerHello(spec)); }

ControlMember& ControlJob::Add(control::Hello hello) {
  members_.push_back(std::make_unique<ControlMember>(this, std::move(hello), token, now_));
  Connect(*members_.back());
  return *members_.back();
}

void ControlJob::Connect(ControlMember& member, const std::string& address) {
  member.connection = ++last_connection_;
  connections_[member.connection] = &member;
  member.client().OnConnected(now_);
  coordinator_.OnOpened(now_, member.connection, address);
}

void ControlJob::Send(ConnectionId connection, const control::Envelope& envelope) {
  on_the_way_.push_back({connection, false, false, envelope});
}

void ControlJob::Close(ConnectionId connection) { on_the_way_.push_back({connection, false, true, {}}); }

void ControlJob::SendToCoordinator(ConnectionId connection, const control::Envelope& envelope) {
  on_the_way_.push_back({connection, true, false, envelope});
}

void ControlJob::Deliver(const Delivery& delivery) {
  const auto found = connections_.find(delivery.connection);
  if (found == connections_.end() || frozen_.count(delivery.connection) != 0) return;
  if (delivery.to_coordinator) return coordinator_.OnFrame(now_, delivery.connection, delivery.envelope);
  ControlMember& member = *found->second;
  if (!delivery.close) return member.client().OnFrame(now_, delivery.envelope);
  connections_.erase(found);
  member.connection = 0;
  member.client().OnClosed(now_, absl::UnavailableError("the other side has closed the connection"));
}

void ControlJob::Settle() {
  // Declares go out with the tick that they ask for.
  for (int round = 0; round < 100; ++round) {
    while (!on_the_way_.empty()) {
      const Delivery delivery = std::move(on_the_way_.front());
      on_the_way_.pop_front();
      Deliver(delivery);
    }
    if (NextTimer() > now_) return;
    TickAll();
  }
}

Time ControlJob::NextTimer() {
  Time next = coordinator_.NextTimer();
  for (const auto& [id, member] : connections_) {
    if (frozen_.count(id) == 0) next = std::min(next, member->client().NextTimer());
  }
  return next;
}

void ControlJob::TickAll() {
  coordinator_.Tick(now_);
  const std::map<ConnectionId, ControlMember*> connections = connections_;
  for (const auto& [id, member] : connections) {
    if (frozen_.count(id) == 0) member->client().Tick(now_);
  }
}

void ControlJob::Advance(Time by) {
  const Time end = now_ + by;
  Settle();
  while (NextTimer() <= end) {
    now_ = std::max(now_, NextTimer());
    TickAll();
    Settle();
  }
  now_ = end;
  TickAll();
  Settle();
}

void ControlJob::Kill(ControlMember& member) {
  Settle();
  const ConnectionId id = member.connection;
  connections_.erase(id);
  member.connection = 0;
  coordinator_.OnClosed(now_, id, absl::UnavailableError("the other side has closed the connection"));
  Settle();
}

}  // namespace byteps
