#include "server/membership/membership.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>

#include "core/base/auth.h"
#include "core/control/host_identity.h"

namespace byteps {
namespace {

constexpr size_t kMaxText = 256;
constexpr size_t kMaxReason = 4096;

absl::Status Invalid(const control::Hello& hello, const std::string& what) {
  return absl::InvalidArgumentError(DescribeHello(hello) + ": " + what);
}

absl::Status CheckRange(const control::Hello& hello, const char* variable, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return Invalid(hello, std::string(variable) + "=" + std::to_string(value) + " is not between " +
                            std::to_string(least) + " and " + std::to_string(most));
}

absl::Status Differs(const char* what, const std::string& newcomer_says, const control::Hello& newcomer,
                     const std::string& present_says, const control::Hello& present) {
  return absl::FailedPreconditionError(std::string(what) + " differs: " + newcomer_says + " at " +
                                       DescribeHello(newcomer) + ", " + present_says + " at " + DescribeHello(present));
}

// Without servers there are no lanes, only what the user has asked for.
std::string TransportName(const control::Hello& hello) {
  return hello.lanes_size() == 0 ? hello.named_transport() : hello.lanes(0).transport();
}

// `tcp (tcp)`; with `whole` also what is between members alone: on which host.
std::string Transport(const control::Hello& hello, bool whole) {
  std::string name = TransportName(hello);
  if (hello.lanes_size() == 0 || hello.lanes(0).provider().empty()) return name;
  const std::string& provider = hello.lanes(0).provider();
  return name + " (" + (whole ? provider : provider.substr(0, provider.find(';'))) + ")";
}

absl::Status TransportDiffers(const std::string& newcomer_has, const control::Hello& newcomer,
                              const std::string& other_has, const std::string& other) {
  return absl::FailedPreconditionError(
      "the transport differs: " + newcomer_has + " at " + DescribeHello(newcomer) + ", " + other_has + " at " + other +
      "; set BYTEPS_TRANSPORT to one value everywhere (auto goes by what each host has)" +
      (newcomer.refusal().empty() ? "" : "; " + newcomer_has + " cannot be used there: " + newcomer.refusal()));
}

// One transport that does not lead from one to the other.
absl::Status TransportsDoNotMeet(const control::Hello& newcomer, const control::Hello& present) {
  return absl::FailedPreconditionError(
      "the transport " + TransportName(newcomer) + " does not lead from one host to another: it is that of " +
      DescribeHello(newcomer) + " and of " + DescribeHello(present) +
      ", whose memory is not shared; set BYTEPS_TRANSPORT to tcp, verbs, efa or auto everywhere");
}

std::string Quoted(const std::string& text) { return "\"" + text + "\""; }

std::string Lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

std::string Plural(size_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

// "4-7" or "4"; what is left of `text` begins behind it.
std::optional<std::pair<uint64_t, uint64_t>> ReadRange(std::string_view* text) {
  uint64_t first = 0, last = 0;
  const char* end = text->data() + text->size();
  auto read = std::from_chars(text->data(), end, first);
  if (read.ec != std::errc()) return std::nullopt;
  last = first;
  if (read.ptr != end && *read.ptr == '-') {
    read = std::from_chars(read.ptr + 1, end, last);
    if (read.ec != std::errc()) return std::nullopt;
  }
  text->remove_prefix(static_cast<size_t>(read.ptr - text->data()));
  return std::make_pair(first, last);
}

absl::StatusOr<std::vector<uint32_t>> ReadGroups(const std::string& groups, uint64_t size) {
  const absl::Status wrong = absl::InvalidArgumentError("BYTEPS_GROUPS=" + groups +
                                                        ": expected host, none, or ranges that cover the ranks 0 to " +
                                                        std::to_string(size - 1) + " in order, such as 0-1,2-3");
  std::vector<uint32_t> sizes;
  std::string_view rest = groups;
  uint64_t next = 0;
  while (true) {
    const auto range = ReadRange(&rest);
    if (!range || range->first != next || range->second < range->first || range->second >= size) return wrong;
    sizes.push_back(static_cast<uint32_t>(range->second - range->first + 1));
    next = range->second + 1;
    if (rest.empty()) break;
    if (rest.front() != ',') return wrong;
    rest.remove_prefix(1);
  }
  if (next != size) return wrong;
  return sizes;
}

}  // namespace

HostPlace PlaceOf(const control::Hello& worker) { return {worker.host_index(), worker.local_rank()}; }

std::string DescribeWhere(const control::Host& host, int64_t pid) {
  return "host " + Quoted(host.name()) + ", " + host.address() + ", pid " + std::to_string(pid);
}

std::string DescribeHello(const control::Hello& hello) {
  std::string text;
  if (hello.role() == control::WORKER) {
    text = "worker host " + std::to_string(hello.host_index()) + " local rank " + std::to_string(hello.local_rank());
  } else if (hello.preferred_rank() >= 0) {
    text = "server " + std::to_string(hello.preferred_rank());
  } else {
    text = "server";
  }
  return text + " (" + DescribeWhere(hello.host(), hello.pid()) + ")";
}

absl::Status CheckHello(const control::Hello& hello) {
  if (hello.role() != control::WORKER && hello.role() != control::SERVER) {
    return absl::InvalidArgumentError("a role that is neither worker nor server: " + std::to_string(hello.role()));
  }
  if (hello.nonce().size() != kNonceBytes) return Invalid(hello, "its nonce has a wrong size");
  const control::Host& host = hello.host();
  const std::pair<const char*, const std::string*> texts[] = {
      {"BYTEPS_JOB_ID", &hello.job()},
      {"the session's name", &hello.session()},
      {"the release", &hello.release()},
      {"the host's name", &host.name()},
      {"the host's address", &host.address()},
      {"the host's boot id", &host.boot_id()},
      {"the host's IPC namespace", &host.ipc_namespace()},
      {"the host's PID namespace", &host.pid_namespace()},
      {"the host's id", &host.id()},
      {"the transport that was named", &hello.named_transport()},
  };
  for (const auto& [name, text] : texts) {
    if (text->size() <= kMaxText) continue;
    return absl::InvalidArgumentError(std::string(name) + " has " + std::to_string(text->size()) + " bytes; at most " +
                                      std::to_string(kMaxText) + " are possible");
  }
  const bool worker = hello.role() == control::WORKER;
  const bool takes_part = hello.refusal().empty();
  // The workers of one host can do without servers. What does not fit may be why a member cannot take part.
  const bool alone = (worker && hello.num_hosts() == 1) || !takes_part;
  absl::Status range = CheckRange(hello, "DMLC_NUM_SERVER", hello.num_servers(), alone ? 0 : 1, kMaxServers);
  if (range.ok()) range = CheckRange(hello, "DMLC_NUM_WORKER", hello.num_hosts(), worker ? 1 : 0, kMaxHosts);
  if (range.ok() && worker) {
    range =
        CheckRange(hello, "DMLC_WORKER_ID", hello.host_index(), 0, (takes_part ? hello.num_hosts() : kMaxHosts) - 1);
  }
  if (range.ok() && worker) range = CheckRange(hello, "BYTEPS_LOCAL_SIZE", hello.local_size(), 1, kMaxLocalSize);
  if (range.ok() && worker) {
    range = CheckRange(hello, "BYTEPS_LOCAL_RANK", hello.local_rank(), 0,
                       (takes_part ? hello.local_size() : kMaxLocalSize) - 1);
  }
  if (range.ok() && !worker) {
    range = CheckRange(hello, "DMLC_RANK", hello.preferred_rank(), -1,
                       (takes_part ? hello.num_servers() : kMaxServers) - 1);
  }
  if (!range.ok()) return range;

  const int most_lanes = worker ? 1 : kMaxServerLanes;
  const int least_lanes = hello.num_servers() == 0 || !takes_part ? 0 : 1;
  if (hello.lanes_size() < least_lanes || hello.lanes_size() > most_lanes) {
    return Invalid(hello, "it has " + Plural(static_cast<size_t>(hello.lanes_size()), "lane") + "; between " +
                              std::to_string(least_lanes) + " and " + std::to_string(most_lanes) + " are possible");
  }
  const auto too_long = [](const control::Lane& lane) {
    return lane.address().size() > kMaxLaneAddress || lane.transport().size() > kMaxText ||
           lane.provider().size() > kMaxText;
  };
  if (too_long(hello.local()) || hello.local_refusal().size() > kMaxReason || hello.refusal().size() > kMaxReason) {
    return Invalid(hello, "its address for the workers of its host is too long");
  }
  for (const control::Lane& lane : hello.lanes()) {
    if (too_long(lane)) return Invalid(hello, "the address of a lane is too long");
    if (lane.transport() != hello.lanes(0).transport() || lane.provider() != hello.lanes(0).provider()) {
      return Invalid(hello, "its lanes have different transports");
    }
  }
  if (!worker && takes_part && hello.slot_bytes() < sizeof(double))
    return Invalid(hello, "its landing slots are too small");
  return absl::OkStatus();
}

absl::Status CheckPlace(const control::Hello& newcomer, const control::Hello& present) {
  const auto taken = [&](const std::string& place, const std::string& rest) {
    return absl::AlreadyExistsError(DescribeHello(newcomer) + " wants a place that is taken: " + place + " is " +
                                    DescribeHello(present) + rest);
  };
  const bool same_rank = newcomer.preferred_rank() >= 0 && newcomer.preferred_rank() == present.preferred_rank();
  if (newcomer.role() != control::WORKER) {
    if (!same_rank) return absl::OkStatus();
    return taken("DMLC_RANK=" + std::to_string(newcomer.preferred_rank()),
                 "; give each server its own, or none of them one");
  }
  if (PlaceOf(newcomer) == PlaceOf(present)) {
    return taken("DMLC_WORKER_ID=" + std::to_string(newcomer.host_index()) +
                     ", BYTEPS_LOCAL_RANK=" + std::to_string(newcomer.local_rank()),
                 "; give each host its own DMLC_WORKER_ID, and each worker of a host its own BYTEPS_LOCAL_RANK");
  }
  if (!same_rank) return absl::OkStatus();
  return taken("BYTEPS_GLOBAL_RANK=" + std::to_string(newcomer.preferred_rank()), "; give each worker its own");
}

namespace {

absl::Status CheckTransports(const control::Hello& newcomer, const control::Hello& present) {
  const std::string one = Transport(newcomer, false), other = Transport(present, false);
  if (newcomer.lanes_size() == 0 || present.lanes_size() == 0) {
    // All that is known of one of them is the name, if that.
    if (CheckTransport(newcomer, TransportName(present), "").ok()) return absl::OkStatus();
  } else {
    if (Transport(newcomer, true) == Transport(present, true)) return absl::OkStatus();
    if (one == other) return TransportsDoNotMeet(newcomer, present);
  }
  return TransportDiffers(one, newcomer, other, DescribeHello(present));
}

std::string StalenessText(const control::Hello& hello) {
  return hello.staleness() == 0 ? "(unset)" : std::to_string(hello.staleness() - 1);
}

}  // namespace

absl::Status CheckAgreement(const control::Hello& newcomer, const control::Hello& present) {
  if (newcomer.num_servers() != present.num_servers()) {
    return Differs("DMLC_NUM_SERVER", std::to_string(newcomer.num_servers()), newcomer,
                   std::to_string(present.num_servers()), present);
  }
  if (absl::Status status = CheckTransports(newcomer, present); !status.ok()) return status;
  // (A server need not know it.)
  if (newcomer.num_hosts() != 0 && present.num_hosts() != 0 && newcomer.num_hosts() != present.num_hosts()) {
    return Differs("DMLC_NUM_WORKER", std::to_string(newcomer.num_hosts()), newcomer,
                   std::to_string(present.num_hosts()), present);
  }
  if (newcomer.asynchronous() != present.asynchronous()) {
    return Differs("BYTEPS_ENABLE_ASYNC", newcomer.asynchronous() ? "1" : "0", newcomer,
                   present.asynchronous() ? "1" : "0", present);
  }
  if (newcomer.staleness() != present.staleness()) {
    return Differs("BYTEPS_STALENESS", StalenessText(newcomer), newcomer, StalenessText(present), present);
  }
  if (newcomer.role() != control::WORKER || present.role() != control::WORKER) return absl::OkStatus();
  if (newcomer.host_index() == present.host_index() && newcomer.local_size() != present.local_size()) {
    return Differs("BYTEPS_LOCAL_SIZE on one host", std::to_string(newcomer.local_size()), newcomer,
                   std::to_string(present.local_size()), present);
  }
  if (Lower(newcomer.groups()) != Lower(present.groups())) {
    return Differs("BYTEPS_GROUPS", Quoted(newcomer.groups()), newcomer, Quoted(present.groups()), present);
  }
  if (newcomer.collective_path() != present.collective_path()) {
    return Differs("BYTEPS_COLLECTIVE_PATH", Quoted(newcomer.collective_path()), newcomer,
                   Quoted(present.collective_path()), present);
  }
  return absl::OkStatus();
}

absl::Status CheckTransport(const control::Hello& newcomer, const std::string& named, const std::string& by) {
  const std::string name = TransportName(newcomer);
  if (named.empty() || name.empty() || Lower(name) == Lower(named)) return absl::OkStatus();
  return TransportDiffers(Transport(newcomer, false), newcomer, named, by);
}

absl::Status CheckAble(const control::Hello& newcomer) {
  if (newcomer.refusal().empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(DescribeHello(newcomer) + " cannot take part: " + newcomer.refusal());
}

absl::Status WithRefusal(const control::Hello& newcomer, const absl::Status& why) {
  const absl::string_view said = why.message();
  if (why.ok() || newcomer.refusal().empty() || said.find(newcomer.refusal()) != absl::string_view::npos) return why;
  return absl::Status(why.code(), CheckAble(newcomer).message());
}

std::vector<std::string> MissingWorkers(const std::vector<const control::Hello*>& workers) {
  std::vector<std::string> missing;
  if (workers.empty()) return {"all workers"};
  struct HostWorkers {
    int32_t local_size = 0;
    std::set<int32_t> local_ranks;
  };
  std::map<int32_t, HostWorkers> hosts;
  for (const control::Hello* hello : workers) {
    hosts[hello->host_index()].local_size = hello->local_size();
    hosts[hello->host_index()].local_ranks.insert(hello->local_rank());
  }
  size_t more = 0;
  const auto add = [&](std::string text) {
    if (missing.size() < kMaxMissing) {
      missing.push_back(std::move(text));
    } else {
      ++more;
    }
  };
  const int32_t num_hosts = workers.front()->num_hosts();
  size_t hosts_missing = static_cast<size_t>(num_hosts) - std::min(static_cast<size_t>(num_hosts), hosts.size());
  for (int32_t host = 0; hosts_missing > 0 && missing.size() < kMaxMissing; ++host) {
    if (hosts.count(host) != 0) continue;
    add("all workers of host " + std::to_string(host));
    --hosts_missing;
  }
  more += hosts_missing;
  for (const auto& [host, there] : hosts) {
    if (there.local_ranks.size() == static_cast<size_t>(there.local_size)) continue;
    for (int32_t rank = 0; rank < there.local_size; ++rank) {
      if (there.local_ranks.count(rank) != 0) continue;
      add("worker host " + std::to_string(host) + " local rank " + std::to_string(rank));
    }
  }
  if (more > 0) missing.push_back("and " + std::to_string(more) + " more");
  return missing;
}

absl::StatusOr<std::vector<size_t>> RankOrder(const std::vector<const control::Hello*>& workers) {
  std::vector<size_t> order(workers.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto named = static_cast<size_t>(
      std::count_if(workers.begin(), workers.end(), [](const auto* hello) { return hello->preferred_rank() >= 0; }));
  if (named == 0) {
    std::sort(order.begin(), order.end(),
              [&](size_t one, size_t other) { return PlaceOf(*workers[one]) < PlaceOf(*workers[other]); });
    return order;
  }
  if (named != workers.size()) {
    const auto is_named = [](const control::Hello* hello) { return hello->preferred_rank() >= 0; };
    const auto with = std::find_if(workers.begin(), workers.end(), is_named);
    const auto without = std::find_if_not(workers.begin(), workers.end(), is_named);
    return absl::FailedPreconditionError("BYTEPS_GLOBAL_RANK is set at " + DescribeHello(**with) + ", but not at " +
                                         DescribeHello(**without) + ": all workers need it, or none");
  }
  std::vector<const control::Hello*> by_rank(workers.size(), nullptr);
  for (size_t i = 0; i < workers.size(); ++i) {
    const auto rank = static_cast<size_t>(workers[i]->preferred_rank());
    if (rank >= workers.size()) {
      return absl::FailedPreconditionError("BYTEPS_GLOBAL_RANK=" + std::to_string(rank) + " at " +
                                           DescribeHello(*workers[i]) + ": there are " +
                                           Plural(workers.size(), "worker"));
    }
    if (by_rank[rank] != nullptr) {
      return absl::FailedPreconditionError("BYTEPS_GLOBAL_RANK=" + std::to_string(rank) + " at both " +
                                           DescribeHello(*by_rank[rank]) + " and " + DescribeHello(*workers[i]));
    }
    by_rank[rank] = workers[i];
    order[rank] = i;
  }
  return order;
}

absl::StatusOr<std::vector<uint32_t>> GroupSizes(const std::vector<const control::Hello*>& workers_by_rank) {
  const std::string groups = Lower(workers_by_rank.front()->groups());
  const uint64_t size = workers_by_rank.size();
  if (groups == "none") return std::vector<uint32_t>{static_cast<uint32_t>(size)};
  if (!groups.empty() && groups != "host") return ReadGroups(groups, size);
  std::vector<uint32_t> sizes;
  for (size_t rank = 0; rank < size; ++rank) {
    const bool same = rank > 0 && workers_by_rank[rank]->host_index() == workers_by_rank[rank - 1]->host_index();
    if (same) {
      ++sizes.back();
    } else {
      sizes.push_back(1);
    }
  }
  return sizes;
}

namespace {

// Why this one cannot reduce with others; empty: it can.
std::string WhyNotLocal(const control::Hello& worker) {
  if (!worker.local_refusal().empty()) return DescribeHello(worker) + ": " + worker.local_refusal();
  if (!worker.has_local()) return DescribeHello(worker) + " has no transport for its own host";
  if (worker.force_servers()) return DescribeHello(worker) + ": BYTEPS_FORCE_DISTRIBUTED=1";
  // What the servers keep is each worker's to add to.
  if (worker.asynchronous()) return DescribeHello(worker) + ": BYTEPS_ENABLE_ASYNC=1";
  return "";
}

// Why these two cannot reduce together; empty: they can.
std::string WhyNotTogether(const control::Hello& first, const control::Hello& other) {
  const std::string both = DescribeHello(first) + " and " + DescribeHello(other);
  const std::string difference = HostDifference(first.host(), other.host());
  if (!difference.empty()) return both + " " + difference;
  if (other.host_index() != first.host_index()) return both + " are of different hosts (DMLC_WORKER_ID)";
  const control::Lane &one = first.local(), &two = other.local();
  if (one.transport() != two.transport() || one.provider() != two.provider()) {
    return both + " have different transports for one host";
  }
  return "";
}

// Why these ranks cannot reduce among themselves; empty: they can.
std::string WhyNotAmong(std::span<const control::Hello* const> workers) {
  for (const control::Hello* worker : workers) {
    if (std::string why = WhyNotLocal(*worker); !why.empty()) return why;
    if (std::string why = WhyNotTogether(*workers.front(), *worker); !why.empty()) return why;
  }
  return "";
}

}  // namespace

LocalSets FindLocalSets(const std::vector<const control::Hello*>& workers_by_rank,
                        const std::vector<uint32_t>& groups) {
  LocalSets sets;
  sets.refusal = WhyNotAmong(workers_by_rank);
  if (sets.refusal.empty()) {
    sets.sizes = {static_cast<uint32_t>(workers_by_rank.size())};
    return sets;
  }
  if (groups.size() < 2 || groups.size() == workers_by_rank.size()) return sets;
  std::span<const control::Hello* const> rest = workers_by_rank;
  for (const uint32_t size : groups) {
    // A worker alone needs no other.
    if (std::string why = size == 1 ? "" : WhyNotAmong(rest.first(size)); !why.empty()) {
      sets.refusal = why;
      return sets;
    }
    rest = rest.subspan(size);
  }
  sets.refusal.clear();
  sets.sizes = groups;
  return sets;
}

}  // namespace byteps
