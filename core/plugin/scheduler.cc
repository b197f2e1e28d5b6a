#include "core/plugin/scheduler.h"

#include <cassert>
#include <cstddef>
#include <exception>
#include <utility>

#include "absl/strings/str_cat.h"

namespace byteps {
namespace {

// Is an optional entry within the table the plugin was compiled with, and set?
#define BPS_HAS_ENTRY(table, entry) \
  ((table)->struct_size >= offsetof(bps_scheduler_table, entry) + sizeof((table)->entry) && (table)->entry != nullptr)

}  // namespace

void Scheduler::Destroyer::operator()(bps_scheduler* scheduler) const {
  try {
    table->destroy(scheduler);
  } catch (...) {  // no error can be reported any more
  }
}

Scheduler::Scheduler(std::string name, const bps_scheduler_table* table, bps_scheduler* handle)
    : name_(std::move(name)),
      title_(std::make_unique<const std::string>(absl::StrCat("scheduler \"", name_, "\""))),
      table_(table),
      handle_(handle, Destroyer{table}) {}

absl::StatusOr<Scheduler> Scheduler::Create(const bps_scheduler_plugin& plugin, int32_t direction,
                                            const PluginConfig* config, const Logger* log) {
  bps_scheduler_create_args args = {};
  args.struct_size = sizeof(args);
  args.config = config;
  args.log = const_cast<Logger*>(log);
  // A plugin of 1.0 knows two directions.
  const bool knows_local = plugin.info.abi_minor >= 1;
  args.direction = direction == BPS_DIRECTION_LOCAL && !knows_local ? BPS_DIRECTION_PUSH : direction;
  const std::string subject = absl::StrCat("scheduler \"", plugin.info.name, "\"");
  bps_scheduler* handle = nullptr;
  bps_failure failure;
  int32_t code = BPS_OK;
  try {
    code = plugin.table->create(&args, &handle, &failure);
  } catch (const std::exception& error) {
    return absl::InternalError(absl::StrCat(subject, " threw an exception in create: ", error.what()));
  } catch (...) {
    return absl::InternalError(absl::StrCat(subject, " threw an exception in create"));
  }
  if (code != BPS_OK) return FailureStatus(code, failure, subject + " could not be created");
  if (handle == nullptr) return absl::InternalError(subject + " answered create with success and no instance");
  return Scheduler(plugin.info.name, plugin.table, handle);
}

template <typename Call>
void Scheduler::Run(const char* verb, Call&& call) {
  if (!status_.ok()) return;
  const PluginCalls::Scope scope(calls_, title_->c_str(), verb);
  try {
    std::forward<Call>(call)();
  } catch (const std::exception& error) {
    Fail(absl::StrCat("threw an exception in ", verb, ": ", error.what())).IgnoreError();
  } catch (...) {
    Fail(absl::StrCat("threw an exception in ", verb)).IgnoreError();
  }
}

absl::Status Scheduler::Fail(std::string_view what) {
  if (status_.ok()) status_ = absl::InternalError(absl::StrCat("scheduler \"", name_, "\" ", std::string(what)));
  return status_;
}

void Scheduler::Peers(std::span<const uint32_t> peers) {
  if (!BPS_HAS_ENTRY(table_, peers)) return;
  Run("peers", [&] { table_->peers(handle_.get(), peers.data(), peers.size()); });
}

void Scheduler::Enqueue(Time now, const bps_task& task) {
  Entry* entry = tasks_.Add(task);
  assert(entry != nullptr && "task ids are unique");
  if (entry == nullptr) return;
  ++queued_;
  bps_task known = task;
  known.struct_size = sizeof known;
  Run("enqueue", [&] { table_->enqueue(handle_.get(), now, &known); });
}

absl::Status Scheduler::Check(Time now, uint64_t id, const Entry* entry, std::span<const bps_budget> budgets) {
  const auto error = [&](auto... what) {
    return absl::InternalError(absl::StrCat("answered next with task ", id, ", ", what...));
  };
  if (entry == nullptr) return error("which it was not given or which has ended");
  if (entry->state != State::kQueued) return error("which it has answered before");
  if (entry->earliest > now) return error("whose time comes only in ", entry->earliest - now, " ns");
  for (const bps_budget& budget : budgets) {
    if (budget.peer != entry->peer) continue;
    if (budget.tasks > 0 && budget.bytes >= entry->bytes) return absl::OkStatus();
    return error("of ", entry->bytes, " bytes, but its peer ", entry->peer, " can take ", budget.tasks, " tasks and ",
                 budget.bytes, " bytes");
  }
  return error("but its peer ", entry->peer, " can take nothing");
}

absl::StatusOr<std::optional<Scheduler::Started>> Scheduler::Next(Time now, std::span<const bps_budget> budgets) {
  uint64_t id = 0;
  int32_t answered = 0;
  if (queued_ > 0)
    Run("next", [&] { answered = table_->next(handle_.get(), now, budgets.data(), budgets.size(), &id); });
  if (!status_.ok()) return status_;
  if (answered == 0) return std::nullopt;
  if (answered != 1) return Fail(absl::StrCat("answered next with ", answered, ", which is neither 0 nor 1"));
  Entry* entry = tasks_.Find(id);
  const absl::Status allowed = Check(now, id, entry, budgets);
  if (!allowed.ok()) return Fail(std::string_view(allowed.message().data(), allowed.message().size()));
  entry->state = State::kInFlight;
  --queued_;
  return Started{id, entry->peer};
}

void Scheduler::Sent(Time now, uint64_t id) {
  Entry* entry = tasks_.Find(id);
  assert(entry != nullptr && entry->state == State::kInFlight && "a task is sent once, after Next");
  if (entry == nullptr || entry->state != State::kInFlight) return;
  entry->state = State::kSent;
  Run("sent", [&] { table_->sent(handle_.get(), now, id); });
}

void Scheduler::Complete(Time now, uint64_t id, int32_t outcome) {
  const Entry* entry = tasks_.Find(id);
  assert(entry != nullptr && entry->state != State::kQueued && "a task completes once, after Next");
  if (entry == nullptr || entry->state == State::kQueued) return;
  tasks_.Erase(id);
  Run("complete", [&] { table_->complete(handle_.get(), now, id, outcome); });
}

bool Scheduler::Withdraw(uint64_t id) {
  if (!Queued(id)) return false;
  tasks_.Erase(id);
  --queued_;
  Run("withdraw", [&] { table_->withdraw(handle_.get(), id); });
  return true;
}

bool Scheduler::Queued(uint64_t id) const {
  const Entry* entry = tasks_.Find(id);
  return entry != nullptr && entry->state == State::kQueued;
}

bps_scheduler_stats Scheduler::Stats() {
  bps_scheduler_stats stats = {};
  stats.struct_size = sizeof(stats);
  if (BPS_HAS_ENTRY(table_, stats)) {
    Run("stats", [&] { table_->stats(handle_.get(), &stats); });
    return stats;
  }
  tasks_.ForEach([&](const Entry& entry) {
    if (entry.state == State::kSent) return;
    const bool queued = entry.state == State::kQueued;
    (queued ? stats.queued_tasks : stats.in_flight_tasks) += 1;
    (queued ? stats.queued_bytes : stats.in_flight_bytes) += entry.bytes;
  });
  return stats;
}

Time Scheduler::WakeAt(Time now) {
  Time at = kNever;
  if (queued_ > 0 && BPS_HAS_ENTRY(table_, wake_at)) {
    Run("wake_at", [&] { at = table_->wake_at(handle_.get(), now); });
  }
  return at;
}

uint64_t Scheduler::Rate() {
  uint64_t rate = 0;
  if (BPS_HAS_ENTRY(table_, rate)) {
    Run("rate", [&] { rate = table_->rate(handle_.get()); });
  }
  return rate;
}

void Scheduler::Agreed(Time now, uint64_t rate) {
  if (!BPS_HAS_ENTRY(table_, agreed)) return;
  Run("agreed", [&] { table_->agreed(handle_.get(), now, rate); });
}

}  // namespace byteps
