/* scheduler_smallest_first.c - a scheduler plugin in plain C11: the smallest partition first.
 *
 *     cc -std=c11 -Wall -Wextra -O2 -shared -fPIC -fvisibility=hidden $(pkg-config --cflags byteps) \
 *        scheduler_smallest_first.c -o libbyteps_scheduler_smallest_first.so
 *     bps_conformance --scheduler ./libbyteps_scheduler_smallest_first.so
 *
 * Of the partitions that fit the budget of their peer, the larger priority goes first, then the smaller one, then the
 * earlier one. Every fourth answer is the partition that has waited longest, whatever its size: a stream of small ones
 * must not keep a large one for ever. The tasks lie in an array in the order in which they came; searching it costs
 * microseconds for hundreds of tasks, which is enough for an example. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tests/abi/v1_0/scheduler.h"

enum { kFairTurn = 4 };

struct bps_scheduler {
  bps_task* tasks; /* queued; oldest first */
  size_t queued, capacity;
  bps_task* flying; /* answered by next, not yet sent: id and bytes count */
  size_t in_flight, flying_capacity;
  uint64_t queued_bytes, in_flight_bytes;
  uint64_t answers;
};

static const bps_plugin_host* host;

static int32_t create(const bps_scheduler_create_args* args, bps_scheduler** out, bps_failure* failure) {
  (void)args; /* the same for every direction */
  *out = calloc(1, sizeof **out);
  return *out != NULL ? BPS_OK : host->fail(failure, BPS_RESOURCE_EXHAUSTED, "no memory for a scheduler");
}

static void destroy(bps_scheduler* s) {
  free(s->tasks);
  free(s->flying);
  free(s);
}

/* Room for one more. There is no way to refuse a task: without memory the process ends, as that of malloc's users. */
static bps_task* grow(bps_task* tasks, size_t count, size_t* capacity) {
  if (count < *capacity) return tasks;
  *capacity = 2 * *capacity + 16;
  tasks = realloc(tasks, *capacity * sizeof *tasks);
  if (tasks == NULL) abort();
  return tasks;
}

/* Takes tasks[at] out; the others keep their order. */
static void erase(bps_task* tasks, size_t* count, size_t at) {
  --*count;
  memmove(tasks + at, tasks + at + 1, (*count - at) * sizeof *tasks);
}

/* The index of task `id`, or `count`. */
static size_t index_of(const bps_task* tasks, size_t count, uint64_t id) {
  size_t at = 0;
  while (at < count && tasks[at].id != id) ++at;
  return at;
}

static void enqueue(bps_scheduler* s, int64_t now, const bps_task* task) {
  (void)now;
  s->tasks = grow(s->tasks, s->queued, &s->capacity);
  /* A newer library may pass a larger struct: what this plugin knows of it is copied. */
  memset(&s->tasks[s->queued], 0, sizeof *task);
  memcpy(&s->tasks[s->queued], task, task->struct_size < sizeof *task ? task->struct_size : sizeof *task);
  ++s->queued;
  s->queued_bytes += task->bytes;
}

static bool fits(const bps_task* task, int64_t now, const bps_budget* budgets, size_t count) {
  if (task->earliest > now) return false;
  for (size_t i = 0; i < count; ++i) {
    if (budgets[i].peer == task->peer) return budgets[i].tasks > 0 && budgets[i].bytes >= task->bytes;
  }
  return false; /* a peer that is not named can take nothing */
}

static bool goes_before(const bps_task* a, const bps_task* b) {
  return a->priority != b->priority ? a->priority > b->priority : a->bytes < b->bytes;
}

static int32_t next(bps_scheduler* s, int64_t now, const bps_budget* budgets, size_t count, uint64_t* id) {
  const bool fair = s->answers % kFairTurn == kFairTurn - 1;
  size_t best = s->queued;
  for (size_t i = 0; i < s->queued; ++i) {
    if (!fits(&s->tasks[i], now, budgets, count)) continue;
    if (best == s->queued || goes_before(&s->tasks[i], &s->tasks[best])) best = i;
    if (fair) break; /* the oldest that fits */
  }
  if (best == s->queued) return 0;
  const bps_task task = s->tasks[best];
  erase(s->tasks, &s->queued, best);
  s->flying = grow(s->flying, s->in_flight, &s->flying_capacity);
  s->flying[s->in_flight++] = task;
  s->queued_bytes -= task.bytes;
  s->in_flight_bytes += task.bytes;
  ++s->answers;
  *id = task.id;
  return 1;
}

static void sent(bps_scheduler* s, int64_t now, uint64_t id) {
  (void)now;
  const size_t at = index_of(s->flying, s->in_flight, id);
  if (at == s->in_flight) return;
  s->in_flight_bytes -= s->flying[at].bytes;
  erase(s->flying, &s->in_flight, at);
}

/* Of a task that failed before it was sent, this is the end of its flight. */
static void complete(bps_scheduler* s, int64_t now, uint64_t id, int32_t outcome) {
  (void)outcome;
  sent(s, now, id);
}

static void withdraw(bps_scheduler* s, uint64_t id) {
  const size_t at = index_of(s->tasks, s->queued, id);
  if (at == s->queued) return;
  s->queued_bytes -= s->tasks[at].bytes;
  erase(s->tasks, &s->queued, at);
}

static void stats(bps_scheduler* s, bps_scheduler_stats* out) {
  const bps_scheduler_stats known = {.struct_size = out->struct_size,
                                     .queued_tasks = s->queued,
                                     .queued_bytes = s->queued_bytes,
                                     .in_flight_tasks = s->in_flight,
                                     .in_flight_bytes = s->in_flight_bytes};
  memcpy(out, &known, out->struct_size < sizeof known ? out->struct_size : sizeof known);
}

/* When the next task that waits for its time may go. */
static int64_t wake_at(bps_scheduler* s, int64_t now) {
  int64_t at = INT64_MAX;
  for (size_t i = 0; i < s->queued; ++i) {
    if (s->tasks[i].earliest > now && s->tasks[i].earliest < at) at = s->tasks[i].earliest;
  }
  return at;
}

static const bps_scheduler_table table = {
    .struct_size = sizeof(bps_scheduler_table),
    .create = create,
    .destroy = destroy,
    .enqueue = enqueue,
    .next = next,
    .sent = sent,
    .complete = complete,
    .withdraw = withdraw,
    .stats = stats,
    .wake_at = wake_at,
};

static const bps_scheduler_plugin plugin = {
    .struct_size = sizeof(bps_scheduler_plugin),
    .info = {.struct_size = sizeof(bps_plugin_info),
             .abi_minor = BPS_SCHEDULER_ABI_MINOR,
             .kind = "scheduler",
             .name = "smallest_first",
             .version = "1.0",
             .description = "the smallest partition first (an example)"},
    .table = &table,
};

BPS_PLUGIN_EXPORT int32_t bps_scheduler_plugin_v1(const bps_plugin_host* services, const bps_scheduler_plugin** out) {
  host = services;
  *out = &plugin;
  return BPS_OK;
}
