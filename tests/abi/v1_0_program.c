/* Compiled against the frozen headers alone. */
#include "tests/abi/v1_0_program.h"

#include <stdlib.h>

#include "tests/abi/v1_0/byteps.h"
#include "tests/abi/v1_0/scheduler.h"

const void* v1_0_open_args(void) {
  static bps_open_args args = BPS_OPEN_ARGS_INIT;
  args.coordinator = "host:9000";
  args.job = "job";
  args.has_place = 1;
  args.local_size = 4;
  args.timeout_ms = 1234;
  args.log_user = &args;
  return &args;
}

const void* v1_0_declare_args(void) {
  static bps_declare_args args = BPS_DECLARE_ARGS_INIT;
  static const int64_t shape[] = {2, 3};
  args.name = "w";
  args.shape = shape;
  args.ndim = 2;
  args.dtype = BPS_BFLOAT16;
  args.staleness = 5;
  return &args;
}

const void* v1_0_push_pull_args(void) {
  static bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
  args.priority = -7;
  args.op = BPS_PRODUCT;
  args.output_device = BPS_CPU;
  args.timeout_ms = 99;
  args.user = &args;
  return &args;
}

const void* v1_0_broadcast_args(void) {
  static bps_broadcast_args args = BPS_BROADCAST_ARGS_INIT;
  args.root = 3;
  args.timeout_ms = 98;
  args.user = &args;
  return &args;
}

const void* v1_0_barrier_args(void) {
  static bps_barrier_args args = BPS_BARRIER_ARGS_INIT;
  args.name = "b";
  args.timeout_ms = 97;
  return &args;
}

static bps_info info = BPS_INFO_INIT;
void* v1_0_info(void) { return &info; }
unsigned long long v1_0_info_generation(void) { return info.generation; }

/* ---- A scheduler: the last task first, as long as it fits ---- */

struct bps_scheduler {
  bps_task tasks[64];
  size_t count;
};

static int32_t create(const bps_scheduler_create_args* args, bps_scheduler** scheduler, bps_failure* failure) {
  (void)failure;
  /* As it was then: there are two. */
  if (args->direction != BPS_DIRECTION_PUSH && args->direction != BPS_DIRECTION_RESULT) return BPS_UNIMPLEMENTED;
  *scheduler = calloc(1, sizeof(bps_scheduler));
  return *scheduler == NULL ? BPS_RESOURCE_EXHAUSTED : BPS_OK;
}

static void destroy(bps_scheduler* scheduler) { free(scheduler); }

static void enqueue(bps_scheduler* scheduler, int64_t now, const bps_task* task) {
  (void)now;
  scheduler->tasks[scheduler->count++] = *task;
}

static int32_t next(bps_scheduler* scheduler, int64_t now, const bps_budget* budgets, size_t count, uint64_t* id) {
  (void)now;
  if (scheduler->count == 0) return 0;
  const bps_task* last = &scheduler->tasks[scheduler->count - 1];
  for (size_t i = 0; i < count; ++i) {
    if (budgets[i].peer != last->peer || budgets[i].tasks == 0 || budgets[i].bytes < last->bytes) continue;
    *id = last->id;
    --scheduler->count;
    return 1;
  }
  return 0;
}

static void sent(bps_scheduler* scheduler, int64_t now, uint64_t id) {
  (void)scheduler;
  (void)now;
  (void)id;
}

static void complete(bps_scheduler* scheduler, int64_t now, uint64_t id, int32_t outcome) {
  (void)scheduler;
  (void)now;
  (void)id;
  (void)outcome;
}

static void withdraw(bps_scheduler* scheduler, uint64_t id) {
  for (size_t i = 0; i < scheduler->count; ++i) {
    if (scheduler->tasks[i].id == id) scheduler->tasks[i] = scheduler->tasks[--scheduler->count];
  }
}

static const bps_scheduler_table table = {
    sizeof(bps_scheduler_table), create, destroy, enqueue, next, sent, complete, withdraw, NULL, NULL, NULL};

static const bps_scheduler_plugin plugin_of_1_0 = {
    sizeof(bps_scheduler_plugin),
    {sizeof(bps_plugin_info), BPS_SCHEDULER_ABI_MINOR, "scheduler", "lifo", "1.0", "last come, first served"},
    &table};

int v1_0_scheduler_entry(const void* host, const void** plugin) {
  if (((const bps_plugin_host*)host)->struct_size < sizeof(bps_plugin_host)) return BPS_FAILED_PRECONDITION;
  *plugin = &plugin_of_1_0;
  return BPS_OK;
}
