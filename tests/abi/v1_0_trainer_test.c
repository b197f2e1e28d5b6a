/* A trainer compiled against version 1.0 of byteps.h and linked to the library of today: one worker alone, through
 * every function there is. Exits with 0, or with the line of what went wrong on stderr. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/abi/v1_0/byteps.h"

#define EXPECT(condition)                                                   \
  do {                                                                      \
    if (condition) break;                                                   \
    fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
    exit(1);                                                                \
  } while (0)

#define EXPECT_OK(call)                                                                         \
  do {                                                                                          \
    bps_status* status_ = (call);                                                               \
    if (status_ == NULL) break;                                                                 \
    fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, bps_status_message(status_)); \
    exit(1);                                                                                    \
  } while (0)

#define EXPECT_CODE(call, code)                 \
  do {                                          \
    bps_status* status_ = (call);               \
    EXPECT(bps_status_code(status_) == (code)); \
    bps_status_free(status_);                   \
  } while (0)

static int calls = 0;
static void done(void* user, bps_status* error) {
  EXPECT(user == &calls);
  EXPECT(bps_status_code(error) == BPS_OK);
  bps_status_free(error);
  ++calls;
}

static void versions(void) {
  int32_t major = 0, minor = -1;
  bps_version(&major, &minor);
  EXPECT(major == BPS_ABI_MAJOR);
  EXPECT(minor >= BPS_ABI_MINOR);
  EXPECT(strlen(bps_version_string()) >= 5);
  bps_open_args args = BPS_OPEN_ARGS_INIT;
  bps_session* session = NULL;
  EXPECT_CODE(bps_open_versioned(BPS_ABI_MAJOR + 1, 0, &args, &session), BPS_FAILED_PRECONDITION);
  EXPECT(session == NULL);
  args.struct_size = 0;
  EXPECT_CODE(bps_open(&args, &session), BPS_INVALID_ARGUMENT);
}

static bps_tensor* declare(bps_session* session, const char* name, const int64_t* shape, int32_t ndim) {
  bps_declare_args args = BPS_DECLARE_ARGS_INIT;
  args.name = name;
  args.dtype = BPS_FLOAT32;
  args.shape = shape;
  args.ndim = ndim;
  bps_tensor* tensor = NULL;
  EXPECT_OK(bps_declare(session, &args, &tensor));
  EXPECT(tensor != NULL);
  return tensor;
}

static void train(bps_session* session) {
  const int64_t shape[] = {2, 3};
  bps_tensor* tensor = declare(session, "w", shape, 2);
  EXPECT(declare(session, "w", shape, 2) == tensor);
  float input[6] = {1, 2, 3, 4, 5, 6}, output[6] = {0};

  bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
  args.tensor = tensor;
  args.input = input;
  args.output = output;
  args.op = BPS_AVERAGE;
  args.done = done;
  args.user = &calls;
  bps_request* request = NULL;
  EXPECT_OK(bps_push_pull(session, &args, &request));
  EXPECT_OK(bps_wait(request, 10000));
  int32_t ended = 0;
  EXPECT_OK(bps_test(request, &ended));
  EXPECT(ended == 1);
  EXPECT(bps_request_state(request) == BPS_REQUEST_DONE);
  EXPECT(strcmp(bps_request_state_name(BPS_REQUEST_DONE), "done") == 0);
  EXPECT(memcmp(input, output, sizeof(input)) == 0);
  EXPECT_OK(bps_cancel(request));
  bps_request_free(request);

  bps_broadcast_args broadcast = BPS_BROADCAST_ARGS_INIT;
  broadcast.tensor = tensor;
  broadcast.input = input;
  broadcast.output = input;
  EXPECT_OK(bps_broadcast(session, &broadcast, &request));
  EXPECT_OK(bps_wait(request, 10000));
  bps_request_free(request);

  bps_barrier_args barrier = BPS_BARRIER_ARGS_INIT;
  EXPECT_OK(bps_barrier(session, &barrier));
}

int main(void) {
  versions();
  bps_open_args args = BPS_OPEN_ARGS_INIT;
  bps_session* session = NULL;
  EXPECT_OK(bps_open(&args, &session));

  bps_info info = BPS_INFO_INIT;
  EXPECT_OK(bps_session_info(session, &info));
  EXPECT(info.rank == 0 && info.size == 1 && info.local_rank == 0 && info.local_size == 1);
  EXPECT(info.num_servers == 0 && info.failed == 0);
  EXPECT(bps_transport_name(session) != NULL && bps_scheduler_name(session) != NULL);

  train(session);
  EXPECT_OK(bps_shutdown(session, 5000));
  bps_close(session);
  EXPECT(calls == 1);
  puts("a trainer of version 1.0 ran to its end");
  return 0;
}
