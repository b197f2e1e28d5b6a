/* What a push_pull of 4 bytes takes from C, in a job of one worker: submit, wait, free. Nothing travels, so what
 * another language takes more is its wrapper's. tools/overhead/README.md says how the programs are run. */
#define _POSIX_C_SOURCE 200809L
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "abi/byteps.h"

enum { kBatches = 200, kRounds = 2000 };

static void Check(bps_status* status) {
  if (status == NULL) return;
  fprintf(stderr, "overhead: %s\n", bps_status_message(status));
  exit(1);
}

static double Nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* Its end comes on a thread of the library, as that of futures in other languages. */
static void Done(void* user, bps_status* error) {
  *(int*)user += 1;
  Check(error);
}

static void Measure(const char* what, bps_session* session, bps_tensor* tensor, bps_done_fn done) {
  float value = 1;
  int ended = 0;
  const int rounds = done == NULL ? kRounds : kRounds / 10; /* each waits for a thread */
  double best = 1e18;
  for (int batch = 0; batch < kBatches; batch++) {
    const double start = Nanoseconds();
    for (int round = 0; round < rounds; round++) {
      bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
      args.tensor = tensor;
      args.input = &value;
      args.output = &value;
      args.op = BPS_SUM;
      args.done = done;
      args.user = &ended;
      bps_request* request = NULL;
      Check(bps_push_pull(session, &args, &request));
      Check(bps_wait(request, 0));
      bps_request_free(request);
    }
    const double each = (Nanoseconds() - start) / rounds;
    if (each < best) best = each;
  }
  printf("%s %.1f\n", what, best);
}

int main(void) {
  bps_open_args open_args = BPS_OPEN_ARGS_INIT;
  bps_session* session = NULL;
  Check(bps_open(&open_args, &session));
  const int64_t shape[1] = {1};
  bps_declare_args declare = BPS_DECLARE_ARGS_INIT;
  declare.name = "overhead";
  declare.dtype = BPS_FLOAT32;
  declare.shape = shape;
  declare.ndim = 1;
  bps_tensor* tensor = NULL;
  Check(bps_declare(session, &declare, &tensor));
  Measure("C", session, tensor, NULL);
  Measure("C, callback", session, tensor, Done);
  Check(bps_shutdown(session, 0));
  Check(bps_close(session));
  return 0;
}
