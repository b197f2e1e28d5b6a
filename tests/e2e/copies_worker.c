/* copies_worker.c - a trainer that loads libbyteps.so by dlopen, and unloads it while its code is still needed.
 *
 *     copies_worker SCENARIO FIRST,SECOND      two files of the library; the environment says which job
 *
 * Each copy opens a session of its own name in the same job, with the same plugin files. Scenarios:
 *   second_unloaded   closes the session of the second copy and unloads that copy; the first goes on
 *   unloaded_open     unloads both while their sessions are open, then goes on through pointers found before
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "abi/byteps.h"

#define CHECK(condition)                                                    \
  do {                                                                      \
    if (condition) break;                                                   \
    fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
    exit(1);                                                                \
  } while (0)

/* One copy of the library, and its session. */
struct copy {
  void* handle;
  bps_session* session;
  bps_status* (*open)(int32_t, int32_t, const bps_open_args*, bps_session**);
  bps_status* (*declare)(bps_session*, const bps_declare_args*, bps_tensor**);
  bps_status* (*push_pull)(bps_session*, const bps_push_pull_args*, bps_request**);
  bps_status* (*wait)(bps_request*, int64_t);
  bps_status* (*shutdown)(bps_session*, int64_t);
  bps_status* (*close)(bps_session*);
  const char* (*message)(const bps_status*);
};

static void expect_ok(const struct copy* copy, bps_status* status) {
  if (status == NULL) return;
  fprintf(stderr, "copies_worker: %s\n", copy->message(status));
  exit(1);
}

static void find(const struct copy* copy, const char* name, void* function) {
  void* found = dlsym(copy->handle, name);
  CHECK(found != NULL);
  memcpy(function, &found, sizeof found);
}

static void load(struct copy* copy, const char* path, const char* name) {
  copy->handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (copy->handle == NULL) fprintf(stderr, "copies_worker: %s\n", dlerror());
  CHECK(copy->handle != NULL);
  find(copy, "bps_open_versioned", &copy->open);
  find(copy, "bps_declare", &copy->declare);
  find(copy, "bps_push_pull", &copy->push_pull);
  find(copy, "bps_wait", &copy->wait);
  find(copy, "bps_shutdown", &copy->shutdown);
  find(copy, "bps_close", &copy->close);
  find(copy, "bps_status_message", &copy->message);
  bps_open_args args = BPS_OPEN_ARGS_INIT;
  args.name = name;
  expect_ok(copy, copy->open(BPS_ABI_MAJOR, BPS_ABI_MINOR, &args, &copy->session));
}

/* Large enough to pass through scheduler and transport in several partitions. */
static void reduce(const struct copy* copy) {
  enum { kCount = 1 << 20 };
  static float data[kCount];
  for (size_t i = 0; i < kCount; ++i) data[i] = (float)(i % 1000);
  const int64_t shape = kCount;
  bps_declare_args declare = BPS_DECLARE_ARGS_INIT;
  declare.name = "w";
  declare.dtype = BPS_FLOAT32;
  declare.shape = &shape;
  declare.ndim = 1;
  bps_tensor* tensor = NULL;
  expect_ok(copy, copy->declare(copy->session, &declare, &tensor));
  bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
  args.tensor = tensor;
  args.input = data;
  args.output = data;
  bps_request* request = NULL;
  expect_ok(copy, copy->push_pull(copy->session, &args, &request));
  expect_ok(copy, copy->wait(request, 20000));
  for (size_t i = 0; i < kCount; ++i) CHECK(data[i] == (float)(i % 1000));
}

static void end(const struct copy* copy) {
  expect_ok(copy, copy->shutdown(copy->session, 5000));
  expect_ok(copy, copy->close(copy->session));
}

int main(int argc, char** argv) {
  CHECK(argc == 3);
  char* comma = strchr(argv[2], ',');
  CHECK(comma != NULL);
  *comma = '\0';
  struct copy first = {0}, second = {0};
  load(&first, argv[2], "first");
  load(&second, comma + 1, "second");
  CHECK(memcmp(&first.open, &second.open, sizeof first.open) != 0); /* two copies indeed */
  reduce(&first);
  reduce(&second);
  if (strcmp(argv[1], "second_unloaded") == 0) {
    end(&second);
    CHECK(dlclose(second.handle) == 0);
    reduce(&first);
    end(&first);
    CHECK(dlclose(first.handle) == 0);
  } else {
    CHECK(strcmp(argv[1], "unloaded_open") == 0);
    CHECK(dlclose(first.handle) == 0);
    CHECK(dlclose(second.handle) == 0);
    reduce(&second);
    reduce(&first);
    end(&first);
    end(&second);
  }
  puts("copies_worker: all was as it should be");
  return 0;
}
