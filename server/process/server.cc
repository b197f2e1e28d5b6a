#include "server/process/server.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/open_files.h"

namespace byteps {
namespace {

constexpr Time kHelloInterval = 100 * kMillisecond;

std::string Mebibytes(uint64_t bytes) { return absl::StrCat(static_cast<double>(bytes * 10 >> 20) / 10, " MiB"); }

}  // namespace

uint32_t DefaultLanes(uint32_t cores) { return std::clamp<uint32_t>(cores / 2, 1, 4); }

ServerOptions ServerOptionsFrom(const Config& config, const std::string& token) {
  ServerOptions options;
  options.lanes = config.Has("BYTEPS_SERVER_ENGINE_THREAD")
                      ? static_cast<uint32_t>(config.GetInt("BYTEPS_SERVER_ENGINE_THREAD"))
                      : DefaultLanes(std::thread::hardware_concurrency());
  options.memory = static_cast<uint64_t>(config.GetInt("BYTEPS_SERVER_MEMORY"));
  const Time peer_timeout = config.GetDuration("BYTEPS_PEER_TIMEOUT").count();
  options.plugin_limit =
      peer_timeout > 0 ? Watchdog::LimitOf(peer_timeout) : config.GetDuration("BYTEPS_OP_TIMEOUT").count();
  options.lane.spin = config.GetDuration("BYTEPS_SPIN_US").count();
  ReducerOptions& reducer = options.lane.reducer;
  reducer.slot_bytes = static_cast<uint64_t>(config.GetInt("BYTEPS_SLOT_BYTES"));
  reducer.slots_per_peer = static_cast<uint32_t>(config.GetInt("BYTEPS_SLOTS_PER_PEER"));
  if (const Time stall = config.GetDuration("BYTEPS_STALL_WARNING").count(); stall != 0) reducer.stall_warning = stall;
  reducer.inline_bytes = static_cast<uint64_t>(config.GetInt("BYTEPS_INLINE_BYTES"));
  reducer.endpoint.token = token;
  reducer.endpoint.hello_interval = kHelloInterval;
  reducer.endpoint.hello_timeout = config.GetDuration("BYTEPS_START_TIMEOUT").count();
  reducer.endpoint.ping_interval = config.GetDuration("BYTEPS_HEARTBEAT_INTERVAL").count();
  reducer.endpoint.peer_timeout = peer_timeout;
  return options;
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(const ServerOptions& options, const OpenTransport& open,
                                                      const Logger& log) {
  std::unique_ptr<Server> server(new Server(options, log));
  server->wake_ = UniqueFd(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!server->wake_)
    return absl::ResourceExhaustedError(absl::StrCat("no eventfd: ", std::strerror(errno), OpenFilesAdvice(errno)));
  for (uint32_t i = 0; i < options.lanes; ++i) {
    PluginCalls* calls = server->calls_.emplace_back(std::make_unique<PluginCalls>()).get();
    server->watchdog_.Add(calls, [raw = server.get()](const absl::Status& why) { raw->OnStuck(why); });
    absl::StatusOr<Transport> transport = open(i, calls);
    if (!transport.ok()) return transport.status();
    LaneOptions lane_options = options.lane;
    lane_options.reducer.lane = i;
    // The name is the plugin's own: two paths to one plugin are one transport.
    if (lane_options.reducer.transport.empty()) lane_options.reducer.transport = transport->name();
    lane_options.reducer.memory = options.memory / options.lanes;
    absl::StatusOr<std::unique_ptr<Lane>> lane = Lane::Start(
        *std::move(transport), lane_options,
        [raw = server.get()](const BrokenSession& broken) { raw->OnBroken(broken); }, log);
    if (!lane.ok()) {
      return absl::Status(lane.status().code(),
                          absl::StrCat("lane ", i, " of ", options.lanes, " (BYTEPS_SERVER_ENGINE_THREAD), with ",
                                       lane_options.reducer.memory,
                                       " bytes of BYTEPS_SERVER_MEMORY: ", absl::string_view(lane.status().message())));
    }
    server->lanes_.push_back(*std::move(lane));
  }
  if (options.plugin_limit > 0) server->watchdog_.Start();
  return server;
}

Server::~Server() { Stop(); }

void Server::FillHello(control::Hello* hello) const {
  hello->clear_lanes();
  for (const auto& lane : lanes_) *hello->add_lanes() = lane->address();
  hello->set_slot_bytes(options_.lane.reducer.slot_bytes);
}

void Server::OnEpoch(const control::Epoch& epoch, uint32_t own_member) {
  for (const auto& lane : lanes_) lane->AddSession(epoch, own_member);
}

void Server::OnSessionEnded(uint64_t session) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    known_broken_.erase(session);
    std::erase_if(broken_, [session](const BrokenSession& broken) { return broken.session == session; });
  }
  for (const auto& lane : lanes_) lane->EndSession(session);
  BPS_VERBOSE(log_, 1) << "session " << session << " has ended; " << DescribeUse();
}

void Server::OnBroken(const BrokenSession& broken) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!known_broken_.insert(broken.session).second) return;
  broken_.push_back(broken);
  Wake();
}

void Server::OnStuck(const absl::Status& why) {
  BPS_LOG(log_, kError) << why.message();
  if (stuck_.Set(why)) Wake();
}

void Server::Wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof one);
}

std::vector<BrokenSession> Server::TakeBroken() {
  const std::lock_guard<std::mutex> lock(mutex_);
  uint64_t count;
  [[maybe_unused]] const ssize_t got = read(wake_.get(), &count, sizeof count);
  return std::exchange(broken_, {});
}

void Server::Stop() {
  watchdog_.Stop();
  if (lanes_.empty()) return;
  if (stuck_.any()) {
    // A thread that returns from the plugin after all finds everything where it was.
    for (auto& lane : lanes_) lane.release()->Detach();
    for (auto& calls : calls_) [[maybe_unused]] const PluginCalls* left = calls.release();
    lanes_.clear();
    return;
  }
  for (const auto& lane : lanes_) lane->Stop();
  BPS_LOG(log_, kInfo) << DescribeUse();
  lanes_.clear();
}

ReducerStats Server::stats() const {
  ReducerStats sum;
  for (const auto& lane : lanes_) {
    const ReducerStats stats = lane->stats();
    sum.rounds += stats.rounds;
    sum.bytes += stats.bytes;
    sum.failed += stats.failed;
    sum.in_place += stats.in_place;
    sum.mapped += stats.mapped;
    sum.landed += stats.landed;
    sum.parked += stats.parked;
    sum.dropped += stats.dropped;
    sum.sent_again += stats.sent_again;
    sum.open += stats.open;
    sum.parts += stats.parts;
    sum.pool.budget += stats.pool.budget;
    sum.pool.windows += stats.pool.windows;
    sum.pool.chunks += stats.pool.chunks;
    sum.pool.blocks += stats.pool.blocks;
    sum.pool.peak += stats.pool.peak;
    sum.pool.refused += stats.pool.refused;
  }
  return sum;
}

std::string Server::DescribeUse() const {
  const ReducerStats use = stats();
  return absl::StrCat("BYTEPS_SERVER_MEMORY: ", Mebibytes(use.pool.windows + use.pool.blocks), " in use, at most ",
                      Mebibytes(use.pool.peak), " of ", Mebibytes(use.pool.budget), "; ", use.rounds,
                      " partitions reduced (", Mebibytes(use.bytes), "), ", use.failed,
                      " failed; contributions: ", use.in_place, " read in place (", use.mapped, " of them mapped), ",
                      use.landed, " through slots, ", use.parked, " parked, ", use.dropped,
                      " dropped and asked for again, ", use.parts, " partitions known");
}

}  // namespace byteps
