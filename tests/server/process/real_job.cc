#include "tests/server/process/real_job.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <random>
#include <utility>

#include "core/control/host_identity.h"
#include "server/process/listener.h"

namespace byteps {

int PortOf(const UniqueFd& listener) {
  const std::string address = ListenerAddress(listener.get());
  return std::stoi(address.substr(address.rfind(':') + 1));
}

int FreePort() {
  int lowest = 0;
  std::ifstream("/proc/sys/net/ipv4/ip_local_port_range") >> lowest;
  if (lowest <= 12'000) return PortOf(Listen({.host = "127.0.0.1", .port = 0}).value());
  std::random_device random;
  while (true) {
    const int port = std::uniform_int_distribution<int>(10'000, lowest - 1)(random);
    if (Listen({.host = "127.0.0.1", .port = port}).ok()) return port;
  }
}

std::string ServerProgram() {
  const char* path = std::getenv("BYTEPS_SERVER");
  return path == nullptr ? "" : path;
}

control::Hello LinkMember::MakeHello(control::Role role, int32_t local_rank, int32_t local_size) {
  control::Hello hello;
  hello.set_role(role);
  hello.set_job("job");
  *hello.mutable_host() = HostIdentity();
  hello.mutable_host()->set_address("127.0.0.1");
  hello.set_pid(::getpid());
  hello.set_num_hosts(1);
  hello.set_local_rank(local_rank);
  hello.set_local_size(local_size);
  hello.set_num_servers(1);
  hello.set_preferred_rank(-1);
  hello.add_lanes()->set_transport("tcp");
  hello.set_slot_bytes(4096);
  return hello;
}

LinkMember::LinkMember(control::Hello hello, int port, const std::string& token, Time start_timeout,
                       const std::string& host) {
  ControlLinkOptions options;
  if (hello.wire_version() != 0) options.client.wire_version = hello.wire_version();
  if (!hello.release().empty()) options.client.release = hello.release();
  options.client.hello = std::move(hello);
  options.client.token = token;
  options.client.start_timeout = start_timeout;
  options.connection.host = host;
  options.connection.port = port;
  link_ = std::make_unique<ControlLink>(options, this, Now());
}

bool Drive(const std::vector<LinkMember*>& members, const std::function<bool()>& done, Time timeout) {
  const Time deadline = After(Now(), timeout);
  while (!done()) {
    const Time now = Now();
    if (now >= deadline) return false;
    std::vector<struct pollfd> polled;
    Time next = std::min(deadline, After(now, 50 * kMillisecond));
    for (LinkMember* member : members) {
      if (member->vanished()) continue;
      polled.push_back({member->link().fd(), member->link().events(), 0});
      next = std::min(next, member->link().NextTimer());
    }
    ::poll(polled.data(), polled.size(), PollTimeout(now, next));
    for (LinkMember* member : members) {
      if (!member->vanished()) member->link().Drive(Now());
    }
  }
  return true;
}

bool AllAre(const std::vector<LinkMember*>& members, ControlState state) {
  for (const LinkMember* member : members) {
    if (member->state() != state) return false;
  }
  return true;
}

CoordinatorProcess::CoordinatorProcess(const std::string& name, const std::string& value) {
  const UniqueFd listener = Listen({.host = "127.0.0.1", .port = 0}).value();
  port = PortOf(listener);
  std::map<std::string, std::string> variables = {{"DMLC_ROLE", "scheduler"},
                                                  {"BYTEPS_JOB_ID", "job"},
                                                  {"BYTEPS_LOG_LEVEL", "info"},
                                                  {"BYTEPS_COORDINATOR_FD", std::to_string(listener.get())}};
  if (!name.empty()) variables[name] = value;
  child = std::make_unique<ChildProcess>(std::vector<std::string>{ServerProgram()}, variables,
                                         std::vector<int>{listener.get()});
}

}  // namespace byteps
