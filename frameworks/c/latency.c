/* latency.c - what one small push_pull takes, from C: submitted, waited for, again.
 *
 *     bpslaunch --workers 2 --servers 1 -- latency [bytes [rounds [work]]]        (4 bytes, 4000 rounds, 0)
 *
 * Every round sums float32 values over all workers into an output of its own and checks the sum; there is no barrier
 * between rounds, the result of one is what lets a worker begin the next. `work`: microseconds of computation before
 * each, which count. Rank 0 says what its rounds took. The same from PyTorch, in turns with Gloo:
 * `bps_perf --mode bandwidth --tensors 1 --sizes 4`.
 * The exit status is 0 if every sum was right.
 */
#define _POSIX_C_SOURCE 200809L
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "abi/byteps.h"

enum { kWarmUp = 200 };

/* Ends the program with the error, if there is one. */
static void Check(bps_status* status, const char* what) {
  if (status == NULL) return;
  fprintf(stderr, "latency: %s: %s\n", what, bps_status_message(status));
  bps_status_free(status);
  exit(2);
}

static int64_t Number(int argc, char** argv, int index, int64_t otherwise, int64_t least) {
  if (index >= argc) return otherwise;
  char* end = NULL;
  const long long value = strtoll(argv[index], &end, 10);
  if (end == argv[index] || *end != '\0' || value < least) {
    fprintf(stderr, "usage: latency [bytes [rounds [work]]]: \"%s\" is no whole number of at least %lld\n", argv[index],
            (long long)least);
    exit(2);
  }
  return value;
}

static double Microseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static int Less(const void* left, const void* right) {
  const double a = *(const double*)left;
  const double b = *(const double*)right;
  return (a > b) - (a < b);
}

int main(int argc, char** argv) {
  const int64_t elements = Number(argc, argv, 1, 4, 4) / (int64_t)sizeof(float);
  const int64_t rounds = Number(argc, argv, 2, 4000, 1);
  const int64_t work = Number(argc, argv, 3, 0, 0);

  bps_open_args open_args = BPS_OPEN_ARGS_INIT;
  bps_session* session = NULL;
  Check(bps_open(&open_args, &session), "open");
  bps_info info = BPS_INFO_INIT;
  Check(bps_session_info(session, &info), "info");

  bps_declare_args declare = BPS_DECLARE_ARGS_INIT;
  declare.name = "latency";
  declare.dtype = BPS_FLOAT32;
  declare.shape = &elements;
  declare.ndim = 1;
  bps_tensor* tensor = NULL;
  Check(bps_declare(session, &declare, &tensor), "declare");

  float* input = malloc((size_t)elements * sizeof(float));
  float* output = malloc((size_t)elements * sizeof(float));
  double* times = malloc((size_t)rounds * sizeof(double));
  if (input == NULL || output == NULL || times == NULL) {
    fprintf(stderr, "latency: out of memory\n");
    return 2;
  }
  bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
  args.tensor = tensor;
  args.input = input;
  args.output = output;
  args.op = BPS_SUM;
  int wrong = 0;
  for (int64_t round = -kWarmUp; round < rounds; round++) {
    /* Small whole numbers, other ones each round: their sums are exact, and those of the round before are wrong. */
    const float shift = (float)((round + kWarmUp) % 7);
    for (int64_t i = 0; i < elements; i++) input[i] = shift + (float)(i % 5 + info.rank);
    const double began = Microseconds();
    while (Microseconds() < began + (double)work) {
    }
    bps_request* request = NULL;
    Check(bps_push_pull(session, &args, &request), "push_pull");
    Check(bps_wait(request, 0), "wait");
    bps_request_free(request);
    if (round >= 0) times[round] = Microseconds() - began;
    const float ranks = (float)info.size * (float)(info.size - 1) / 2;
    for (int64_t i = 0; i < elements; i++) {
      wrong += output[i] != (float)info.size * (shift + (float)(i % 5)) + ranks;
    }
  }
  if (wrong != 0) fprintf(stderr, "latency: rank %d: %d values were not the sum\n", info.rank, wrong);
  if (info.rank == 0) {
    qsort(times, (size_t)rounds, sizeof(double), Less);
    printf("latency: %lld bytes, %d workers, %d servers, transport %s: median %.1f us, p90 %.1f us, p99 %.1f us\n",
           (long long)elements * (long long)sizeof(float), info.size, info.num_servers, bps_transport_name(session),
           times[rounds / 2], times[rounds * 9 / 10], times[rounds * 99 / 100]);
  }
  Check(bps_shutdown(session, 0), "shutdown");
  bps_close(session);
  free(times);
  free(output);
  free(input);
  return wrong == 0 ? 0 : 1;
}
