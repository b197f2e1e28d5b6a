/* scheduler.h - the contract of a scheduler plugin: which partition goes next.
 *
 * A scheduler is a pure state machine: no threads, no input or output, no clock but `now`. The library calls it by one
 * thread at a time and does what it says:
 *
 *     create(&args, &scheduler, failure)
 *     enqueue(scheduler, now, &task)                    a partition became ready to go
 *     next(scheduler, now, budgets, n, &id) == 1        take task `id` out of the queue and start it
 *     sent(scheduler, now, id)                          its bytes have left: credit returns here
 *     complete(scheduler, now, id, outcome)             its result is home, or it failed: forget it
 *
 * A worker has one instance per session and direction; a server, where it is to have any
 * (BYTEPS_SERVER_ENABLE_SCHEDULE), one for each of its threads, which orders the results of all sessions. Times are
 * nanoseconds of a monotonic clock (virtual in simulations); `now` never goes back. Every task is enqueued once and
 * answered by next() at most once; after `complete` or `withdraw` its id is never seen again. The library checks this
 * and names the plugin that breaks it.
 */
#ifndef BYTEPS_ABI_SCHEDULER_H_
#define BYTEPS_ABI_SCHEDULER_H_

#include "plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

#define BPS_SCHEDULER_ABI_MINOR 1

typedef struct bps_scheduler bps_scheduler;

#define BPS_DIRECTION_PUSH 0   /* worker to server */
#define BPS_DIRECTION_RESULT 1 /* server to worker */
/* Since 1.1: no network. The order in which a worker folds and copies in the memory of its own host: one peer, its own
 * hands, and a task is the next piece of a tensor. A plugin of 1.0 is created with BPS_DIRECTION_PUSH instead. */
#define BPS_DIRECTION_LOCAL 2

/* One partition that wants to go. */
typedef struct bps_task {
  size_t struct_size;
  uint64_t id;           /* chosen by the library, unique within the instance */
  uint64_t tensor;       /* key of the tensor */
  uint64_t bytes;        /* payload; may be 0 */
  int64_t priority;      /* larger is sooner */
  uint64_t order;        /* order of declaration of its tensor: lower was declared earlier */
  int64_t earliest;      /* not before this time; 0: at once */
  uint32_t part;         /* its turn among the partitions of its tensor: lower goes first */
  uint32_t peer;         /* where it goes */
  uint32_t contributors; /* on a server: contributors that have arrived; else 0 */
  /* Since 1.1, of BPS_DIRECTION_PUSH: which operation of its tensor's name it belongs to, counted alike by all workers,
   * from 1, modulo 2^32; 0: not known. A partition may be enqueued again in its round, with a new id, where a server
   * had no room for it. */
  uint32_t round;
} bps_task;

/* What a peer can take now. A task fits if its peer's `tasks` is not 0 and its bytes are at most `bytes`. */
typedef struct bps_budget {
  uint32_t peer;
  uint32_t tasks;
  uint64_t bytes;
} bps_budget;

typedef struct bps_scheduler_stats {
  size_t struct_size;
  uint64_t queued_tasks;
  uint64_t queued_bytes;
  uint64_t in_flight_tasks; /* answered by next(), not yet sent */
  uint64_t in_flight_bytes;
  uint64_t credit_bytes; /* the credit in force; 0: unbounded */
} bps_scheduler_stats;

typedef struct bps_scheduler_create_args {
  size_t struct_size;
  const void* config; /* for host->config */
  void* log;          /* for host->log */
  int32_t direction;  /* BPS_DIRECTION_* */
  int32_t reserved;
} bps_scheduler_create_args;

typedef struct bps_scheduler_table {
  size_t struct_size;

  /* -- Required -- */
  int32_t (*create)(const bps_scheduler_create_args* args, bps_scheduler** scheduler, bps_failure* failure);
  void (*destroy)(bps_scheduler* scheduler);
  /* The task is copied. */
  void (*enqueue)(bps_scheduler* scheduler, int64_t now, const bps_task* task);
  /* Returns 1 and stores the id of a queued task that fits the budget of its peer, or returns 0. A peer that is not
   * among `budgets` can take nothing. */
  int32_t (*next)(bps_scheduler* scheduler, int64_t now, const bps_budget* budgets, size_t count, uint64_t* id);
  void (*sent)(bps_scheduler* scheduler, int64_t now, uint64_t id);
  /* `outcome`: BPS_OK or the code of its failure. Also called for tasks in flight whose `sent` never came. */
  void (*complete)(bps_scheduler* scheduler, int64_t now, uint64_t id, int32_t outcome);
  /* A queued task (not yet answered by next) is taken back. */
  void (*withdraw)(bps_scheduler* scheduler, uint64_t id);

  /* -- Optional -- */
  /* The peers there are now; called before the first task and when they change. */
  void (*peers)(bps_scheduler* scheduler, const uint32_t* peers, size_t count);
  void (*stats)(bps_scheduler* scheduler, bps_scheduler_stats* stats);
  /* When next() may have something although nothing else happens; INT64_MAX: never. */
  int64_t (*wake_at)(bps_scheduler* scheduler, int64_t now);
  /* Since 1.1, of BPS_DIRECTION_PUSH: what the link of this instance carries, in bytes per second, as far as it has
   * found out; 0: not known. The others are told with each partition. */
  uint64_t (*rate)(bps_scheduler* scheduler);
  /* Since 1.1: the least of the rates that all workers have told with a partition, when its result comes and this has
   * changed. All of them get the same number with the same partition, so workers that follow it stay alike. Never 0. */
  void (*agreed)(bps_scheduler* scheduler, int64_t now, uint64_t rate);
} bps_scheduler_table;

struct bps_scheduler_plugin {
  size_t struct_size;
  bps_plugin_info info;
  const bps_scheduler_table* table;
};

typedef int32_t (*bps_scheduler_plugin_fn)(const bps_plugin_host* host, const bps_scheduler_plugin** plugin);

#define BPS_SCHEDULER_ENTRY "bps_scheduler_plugin_v1"

#ifdef __cplusplus
}
#endif

#endif /* BYTEPS_ABI_SCHEDULER_H_ */
