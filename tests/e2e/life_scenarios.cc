// Sessions that come and go, and processes that fork or do nothing.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "abi/byteps.h"
#include "tests/e2e/scenarios.h"
#include "tests/e2e/trainer.h"

namespace byteps::e2e {
namespace {

// Many tensors at once, the most and the least urgent there can be among them.
void Priorities(bps_session* session) {
  constexpr int64_t kPriorities[] = {INT64_MIN, INT64_MAX, 0, INT64_MIN + 1, INT64_MAX - 1, -1, 1};
  const int32_t size = Info(session).size;
  std::vector<std::vector<float>> values;
  std::vector<bps_request*> requests;
  for (size_t i = 0; i < 7; ++i) values.emplace_back(100'000, static_cast<float>(i + 1));
  for (size_t i = 0; i < 7; ++i) {
    bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
    args.tensor = Declare(session, "priority." + std::to_string(i), BPS_FLOAT32, 100'000);
    args.input = args.output = values[i].data();
    args.op = BPS_SUM;
    args.priority = kPriorities[i];
    Ok(bps_push_pull(session, &args, &requests.emplace_back()), "bps_push_pull");
  }
  for (size_t i = 0; i < 7; ++i) {
    CHECK(Wait(requests[i]).code == BPS_OK);
    CHECK(values[i] == std::vector<float>(100'000, static_cast<float>(size) * static_cast<float>(i + 1)));
  }
}

}  // namespace

void Lives(int count) {
  size_t descriptors = 0, begin = 0, middle = 0;
  for (int life = 0; life < count; ++life) {
    bps_session* session = Open();
    const bps_info info = Info(session);
    CHECK(info.generation == static_cast<uint64_t>(life) + 1);
    CheckSum(session, info, BPS_FLOAT32, BPS_SUM, 100000, false);
    End(session);
    if (life == count / 5) descriptors = Descriptors(), begin = ResidentKiB();
    if (life == count * 3 / 5) middle = ResidentKiB();
  }
  const size_t end = ResidentKiB();
  std::printf("descriptors %zu -> %zu, resident %zu -> %zu -> %zu KiB\n", descriptors, Descriptors(), begin, middle,
              end);
  CHECK(Descriptors() <= descriptors);
  // Few lives say nothing about memory.
  if (count >= 50) CHECK(middle <= begin + 1024 || end <= middle + 1024);
}

void OtherServers(int port) {
  int32_t before = 0;
  for (int life = 0; life < 2; ++life) {
    bps_session* session = Open();
    const bps_info info = Info(session);
    CHECK(info.generation == 1);
    CHECK(info.num_servers == std::atoi(std::getenv("DMLC_NUM_SERVER")) && info.num_servers != before);
    before = info.num_servers;
    // The same names, which have other places now.
    for (size_t elements : {1, 1000, 1'000'000}) CheckSum(session, info, BPS_FLOAT32, BPS_SUM, elements, false);
    Priorities(session);
    End(session);
    setenv("DMLC_PS_ROOT_PORT", std::to_string(port).c_str(), 1);
    setenv("DMLC_NUM_SERVER", "3", 1);
  }
}

void Idle() {
  // Of the library's threads, too: it must not end one of them.
  sigset_t go_on;
  ::sigemptyset(&go_on);
  ::sigaddset(&go_on, SIGUSR1);
  ::sigprocmask(SIG_BLOCK, &go_on, nullptr);
  bps_session* session = Open();
  CheckSum(session, Info(session), BPS_FLOAT32, BPS_SUM, 100000, false);
  bps_barrier_args barrier = BPS_BARRIER_ARGS_INIT;
  Ok(bps_barrier(session, &barrier), "barrier");
  Say("idle");
  int signal = 0;
  CHECK(::sigwait(&go_on, &signal) == 0);
  End(session);
}

void Fork() {
  bps_session* session = Open();
  const bps_info info = Info(session);
  bps_tensor* tensor = Declare(session, "w", BPS_FLOAT32, 4);
  for (int i = 0; i < 5; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      float values[4] = {};
      bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
      args.tensor = tensor;
      args.input = args.output = values;
      const Error error =
          i % 2 == 0 ? Error{BPS_FAILED_PRECONDITION, "fork", false} : Take(bps_push_pull(session, &args, nullptr));
      if (i % 2 == 1) bps_close(session);
      ::_exit(error.code == BPS_FAILED_PRECONDITION && Has(error, "fork") ? 0 : 1);
    }
    CheckSum(session, info, BPS_FLOAT32, BPS_SUM, 500000, false);
    int status = 0;
    CHECK(::waitpid(child, &status, 0) == child);
    CHECK(status == 0);
    CheckSum(session, info, BPS_FLOAT32, BPS_SUM, 10, false);
  }
  End(session);
}

int OpenFails() {
  bps_open_args args = BPS_OPEN_ARGS_INIT;
  bps_session* session = nullptr;
  const Error error = Take(bps_open(&args, &session));
  std::printf("error %d: %s\n", error.code, error.message.c_str());
  return error.code == BPS_OK ? 0 : 3;
}

}  // namespace byteps::e2e
