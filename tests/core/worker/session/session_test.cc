// The C ABI with a worker alone, and openings that fail. Whole jobs are in tests/e2e.
#include "core/worker/session/session.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "abi/byteps.h"
#include "tests/core/c_api.h"
#include "tests/server/process/idleness.h"

namespace byteps {
namespace {

class SessionTest : public testing::Test {
 protected:
  void SetUp() override {
    // The environment in which the tests run is not the subject.
    for (const char* name :
         {"DMLC_NUM_WORKER", "DMLC_NUM_SERVER", "DMLC_WORKER_ID", "BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE",
          "BYTEPS_FORCE_DISTRIBUTED", "DMLC_PS_ROOT_URI", "DMLC_PS_ROOT_PORT", "BYTEPS_JOB_TOKEN",
          "BYTEPS_PARTITION_BYTES", "BYTEPS_SCHEDULING_CREDIT", "BYTEPS_START_TIMEOUT", "BYTEPS_TRANSPORT"}) {
      ::unsetenv(name);
    }
  }
  void TearDown() override { SetUp(); }

  SessionOwner Open(const bps_open_args& args = BPS_OPEN_ARGS_INIT) {
    bps_session* session = nullptr;
    const Said said = bps_open(&args, &session);
    EXPECT_TRUE(said.ok()) << said;
    return SessionOwner(session);
  }
  Said OpenError(const bps_open_args& args = BPS_OPEN_ARGS_INIT) {
    bps_session* session = nullptr;
    Said said = bps_open(&args, &session);
    EXPECT_EQ(session, nullptr);
    EXPECT_FALSE(said.ok());
    return said;
  }
};

TEST_F(SessionTest, AWorkerAloneNeedsNoOther) {
  SessionOwner session = Open();
  ASSERT_NE(session, nullptr);
  bps_info info = BPS_INFO_INIT;
  ASSERT_SAID_OK(bps_session_info(session.get(), &info));
  EXPECT_EQ(info.rank, 0);
  EXPECT_EQ(info.size, 1);
  EXPECT_EQ(info.local_size, 1);
  EXPECT_EQ(info.num_servers, 0);
  EXPECT_EQ(info.shared_buffers, 0);
  EXPECT_EQ(info.failed, 0);
  for (size_t count : {0, 1, 1000, 3000000}) {
    bps_tensor* tensor =
        DeclareTensor(session.get(), "w" + std::to_string(count), BPS_FLOAT32, {static_cast<int64_t>(count)});
    std::vector<float> input(count), output(count);
    std::iota(input.begin(), input.end(), 1.0f);
    const bps_push_pull_args args = PushPullArgs(tensor, input.data(), output.data(), BPS_AVERAGE);
    for (int round = 0; round < 3; ++round) {
      bps_request* request = nullptr;
      ASSERT_SAID_OK(bps_push_pull(session.get(), &args, &request));
      RequestOwner owner(request);
      ASSERT_SAID_OK(bps_wait(request, 0));
      ASSERT_SAID_OK(bps_wait(request, 0));
      int32_t done = 0;
      ASSERT_SAID_OK(bps_test(request, &done));
      EXPECT_EQ(done, 1);
      EXPECT_EQ(bps_request_state(request), BPS_REQUEST_DONE);
      EXPECT_EQ(output, input);
    }
  }
  bps_barrier_args barrier = BPS_BARRIER_ARGS_INIT;
  EXPECT_SAID_OK(bps_barrier(session.get(), &barrier));
  EXPECT_SAID_OK(bps_shutdown(session.get(), 0));
  EXPECT_SAID_OK(bps_shutdown(session.get(), 0));
}

// Alone as among others: each way of operations, without memory.
TEST_F(SessionTest, ARoundThatIsGivenUpNeedsNoMemory) {
  SessionOwner session = Open();
  ASSERT_NE(session, nullptr);
  bps_give_up give_up = BPS_GIVE_UP_INIT;
  give_up.reason = "the step ended half-way";
  bps_tensor* tensor = DeclareTensor(session.get(), "t", BPS_FLOAT32, {3});
  const int64_t shape[] = {3};

  bps_push_pull_args push_pull = BPS_PUSH_PULL_ARGS_INIT;
  push_pull.tensor = tensor;
  push_pull.ext = &give_up.ext;
  bps_broadcast_args broadcast = BPS_BROADCAST_ARGS_INIT;
  broadcast.tensor = tensor;
  broadcast.ext = &give_up.ext;
  bps_collective_args collective = BPS_COLLECTIVE_ARGS_INIT;
  collective.kind = BPS_ALL_REDUCE;
  collective.name = "t";
  collective.shape = shape;
  collective.ndim = 1;
  collective.dtype = BPS_FLOAT32;
  collective.scaled = 1;
  collective.prescale = collective.postscale = 0.5;
  collective.ext = &give_up.ext;
  bps_sparse_args sparse = BPS_SPARSE_ARGS_INIT;
  sparse.name = "t";
  sparse.shape = shape;
  sparse.ndim = 1;
  sparse.num_rows = 2;
  sparse.dtype = BPS_FLOAT32;
  sparse.ext = &give_up.ext;

  for (const int32_t kind : {0, 1, 2, 3}) {
    bps_request* request = nullptr;
    ASSERT_SAID_OK(kind == 0   ? bps_push_pull(session.get(), &push_pull, &request)
                   : kind == 1 ? bps_broadcast(session.get(), &broadcast, &request)
                   : kind == 2 ? bps_collective(session.get(), &collective, &request)
                               : bps_sparse_all_reduce(session.get(), &sparse, &request));
    RequestOwner owner(request);
    const Said said = bps_wait(request, 0);
    EXPECT_EQ(said.code, BPS_CANCELLED) << said;
    EXPECT_TRUE(said.Contains("the step ended half-way")) << said;
  }
  std::vector<float> values = {1, 2, 3};
  const bps_push_pull_args args = PushPullArgs(tensor, values.data(), values.data());
  bps_request* request = nullptr;
  ASSERT_SAID_OK(bps_push_pull(session.get(), &args, &request));
  RequestOwner owner(request);
  EXPECT_SAID_OK(bps_wait(request, 0));
  EXPECT_SAID_OK(bps_shutdown(session.get(), 0));
}

struct Called {
  std::atomic<int> times{0};
  std::atomic<int32_t> code{-1};
  std::thread::id thread;
  bps_session* session = nullptr;
  int32_t code_of_wait = -1;
  bps_request* other = nullptr;
};

void Remember(void* user, bps_status* error) {
  Called* called = static_cast<Called*>(user);
  called->code = bps_status_code(error);
  called->thread = std::this_thread::get_id();
  bps_status_free(error);
  if (called->other != nullptr) called->code_of_wait = Said(bps_wait(called->other, 0)).code;
  ++called->times;
}

// Closes the session that calls it, which cannot be done.
struct Closing {
  bps_session* session = nullptr;
  Said answer = nullptr;
  std::atomic<bool> called{false};

  static void Run(void* user, bps_status* error) {
    auto* self = static_cast<Closing*>(user);
    bps_status_free(error);
    self->answer = Said(bps_close(self->session));
    self->called = true;
  }
};

// Waits for what has no request, but not for ever.
void WaitFor(const std::function<bool()>& done) {
  const Time deadline = Now() + 60 * kSecond;
  while (!done()) {
    ASSERT_LT(Now(), deadline) << "it never happened";
    std::this_thread::yield();
  }
}

TEST_F(SessionTest, CallbacksRunOnceOnALibraryThreadAndMustNotBlock) {
  SessionOwner session = Open();
  float value = 0;
  const bps_push_pull_args ended_args =
      PushPullArgs(DeclareTensor(session.get(), "v", BPS_FLOAT32, {1}), &value, &value);
  bps_request* ended = nullptr;
  ASSERT_SAID_OK(bps_push_pull(session.get(), &ended_args, &ended));
  RequestOwner owner(ended);
  ASSERT_SAID_OK(bps_wait(ended, 0));
  for (size_t count : {1, 500000}) {
    std::vector<float> values(count);
    Called called;
    called.other = ended;
    bps_push_pull_args args = PushPullArgs(
        DeclareTensor(session.get(), "w", BPS_FLOAT32, {static_cast<int64_t>(count)}), values.data(), values.data());
    args.done = &Remember;
    args.user = &called;
    ASSERT_SAID_OK(bps_push_pull(session.get(), &args, nullptr));
    WaitFor([&] { return called.times.load() == 1; });
    EXPECT_EQ(called.code, BPS_OK);
    EXPECT_NE(called.thread, std::this_thread::get_id());
    EXPECT_EQ(called.code_of_wait, BPS_FAILED_PRECONDITION);
  }
}

// A worker alone ends a small operation in its call: with done_in_call the callback has run when the call returns.
TEST_F(SessionTest, ACallbackMayRunInTheCallThatSubmits) {
  SessionOwner session = Open();
  struct Seen {
    bps_session* session;
    bps_tensor* tensor;
    float value = 1;
    std::atomic<int> runs{0};
    std::thread::id thread;
    std::atomic<bool> recursed{false};  // a callback ran inside of another
  } seen{session.get(), DeclareTensor(session.get(), "w", BPS_FLOAT32, {1})};
  bps_push_pull_args args = PushPullArgs(seen.tensor, &seen.value, &seen.value);
  args.done_in_call = 1;
  args.user = &seen;
  args.done = [](void* user, bps_status* error) {
    EXPECT_EQ(error, nullptr);
    Seen& seen = *static_cast<Seen*>(user);
    seen.thread = std::this_thread::get_id();
    if (seen.runs.fetch_add(1) != 0) return;
    // It may submit and must not block. The callback of what it submits may run meanwhile, but on another thread.
    thread_local bool inside = false;
    inside = true;
    bps_tensor* other = DeclareTensor(seen.session, "other", BPS_FLOAT32, {1});
    bps_push_pull_args again = PushPullArgs(other, &seen.value, &seen.value);
    again.done_in_call = 1;
    again.user = user;
    again.done = [](void* again_user, bps_status* failure) {
      EXPECT_EQ(failure, nullptr);
      if (inside) static_cast<Seen*>(again_user)->recursed = true;
      static_cast<Seen*>(again_user)->runs.fetch_add(1);
    };
    EXPECT_SAID_OK(bps_push_pull(seen.session, &again, nullptr));
    EXPECT_EQ(Said(bps_barrier(seen.session, nullptr)).code, BPS_FAILED_PRECONDITION);
    inside = false;
  };
  // Another thread may hold the engine for a moment; then the callback comes on a thread of the library.
  int in_call = 0;
  for (int round = 0; round < 200; ++round) {
    seen.runs = 1;
    seen.thread = {};
    ASSERT_SAID_OK(bps_push_pull(session.get(), &args, nullptr));
    const bool here = seen.runs.load() == 2 && seen.thread == std::this_thread::get_id();
    in_call += here ? 1 : 0;
    WaitFor([&] { return seen.runs.load() == 2; });
  }
  EXPECT_GT(in_call, 0);
  // Without it, never.
  args.done_in_call = 0;
  for (int round = 0; round < 50; ++round) {
    seen.runs = 1;
    ASSERT_SAID_OK(bps_push_pull(session.get(), &args, nullptr));
    WaitFor([&] { return seen.runs.load() == 2; });
    EXPECT_NE(seen.thread, std::this_thread::get_id());
  }
  args.done_in_call = 1;
  in_call = 0;
  for (int round = 0; round < 200; ++round) {
    seen.runs = 0;
    ASSERT_SAID_OK(bps_push_pull(session.get(), &args, nullptr));
    WaitFor([&] { return seen.runs.load() == 2; });
    in_call += seen.thread == std::this_thread::get_id() ? 1 : 0;
  }
  EXPECT_GT(in_call, 0);
  EXPECT_FALSE(seen.recursed);
}

TEST_F(SessionTest, CloseEndsWhatIsRunningBeforeItReturns) {
  for (int i = 0; i < 20; ++i) {
    SessionOwner session = Open();
    std::vector<float> values(2000000);
    constexpr int kTensors = 6;
    Called called[kTensors];
    std::vector<std::vector<float>> outputs(kTensors, values);
    std::vector<RequestOwner> requests;
    for (int t = 0; t < kTensors; ++t) {
      bps_push_pull_args args =
          PushPullArgs(DeclareTensor(session.get(), "w" + std::to_string(t), BPS_FLOAT32, {2000000}), values.data(),
                       outputs[static_cast<size_t>(t)].data());
      args.done = &Remember;
      args.user = &called[t];
      bps_request* request = nullptr;
      ASSERT_SAID_OK(bps_push_pull(session.get(), &args, &request));
      requests.emplace_back(request);
    }
    session.reset();
    for (int t = 0; t < kTensors; ++t) {
      EXPECT_EQ(called[t].times, 1);
      EXPECT_EQ(called[t].code, Said(bps_wait(requests[static_cast<size_t>(t)].get(), 0)).code);
      EXPECT_TRUE(called[t].code == BPS_OK || called[t].code == BPS_CANCELLED) << called[t].code;
      EXPECT_SAID_OK(bps_cancel(requests[static_cast<size_t>(t)].get()));
    }
  }
}

TEST_F(SessionTest, AfterShutdownOnlyCloseIsLeft) {
  SessionOwner session = Open();
  bps_tensor* tensor = DeclareTensor(session.get(), "w", BPS_FLOAT32, {1});
  ASSERT_SAID_OK(bps_shutdown(session.get(), 0));
  float value = 1;
  const bps_push_pull_args args = PushPullArgs(tensor, &value, &value);
  const Said said = bps_push_pull(session.get(), &args, nullptr);
  EXPECT_EQ(said.code, BPS_FAILED_PRECONDITION);
  EXPECT_TRUE(said.Contains("shut down")) << said;
  bps_barrier_args barrier = BPS_BARRIER_ARGS_INIT;
  EXPECT_EQ(Said(bps_barrier(session.get(), &barrier)).code, BPS_FAILED_PRECONDITION);
  bps_declare_args declare = BPS_DECLARE_ARGS_INIT;
  declare.name = "v";
  declare.dtype = BPS_FLOAT32;
  bps_tensor* other = nullptr;
  EXPECT_EQ(Said(bps_declare(session.get(), &declare, &other)).code, BPS_FAILED_PRECONDITION);
  EXPECT_EQ(other, nullptr);
}

TEST_F(SessionTest, AForkedChildIsToldSoAndDisturbsNothing) {
  SessionOwner session = Open();
  bps_tensor* tensor = DeclareTensor(session.get(), "w", BPS_FLOAT32, {1});
  float value = 1;
  const bps_push_pull_args args = PushPullArgs(tensor, &value, &value);
  bps_request* request = nullptr;
  ASSERT_SAID_OK(bps_push_pull(session.get(), &args, &request));
  RequestOwner owner(request);
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    int wrong = 0;
    const auto expect = [&](bps_status* status) {
      const Said said = status;
      if (said.code != BPS_FAILED_PRECONDITION || !said.Contains("fork")) ++wrong;
    };
    bps_info info = BPS_INFO_INIT;
    bps_barrier_args barrier = BPS_BARRIER_ARGS_INIT;
    int32_t done;
    expect(bps_push_pull(session.get(), &args, nullptr));
    expect(bps_session_info(session.get(), &info));
    expect(bps_barrier(session.get(), &barrier));
    expect(bps_wait(request, 0));
    expect(bps_test(request, &done));
    expect(bps_shutdown(session.get(), 0));
    bps_request_free(owner.release());
    expect(bps_close(session.release()));
    ::_exit(wrong);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  ASSERT_SAID_OK(bps_wait(request, 0));
  EXPECT_SAID_OK(bps_shutdown(session.get(), 0));
}

TEST_F(SessionTest, ClosingInsideACallbackIsRefusedAndSaid) {
  const auto logged = [](void* user, int32_t, const char*, int32_t, const char* message) {
    static_cast<std::vector<std::string>*>(user)->emplace_back(message);
  };
  std::vector<std::string> lines;
  bps_open_args open_args = BPS_OPEN_ARGS_INIT;
  open_args.log = logged;
  open_args.log_user = &lines;
  bps_session* session = nullptr;
  ASSERT_SAID_OK(bps_open(&open_args, &session));
  bps_tensor* tensor = DeclareTensor(session, "w", BPS_FLOAT32, {1});
  float value = 3;
  Closing closing;
  closing.session = session;
  bps_push_pull_args args = PushPullArgs(tensor, &value, &value);
  args.done = &Closing::Run;
  args.user = &closing;
  ASSERT_SAID_OK(bps_push_pull(session, &args, nullptr));
  WaitFor([&] { return closing.called.load(); });
  EXPECT_EQ(closing.answer.code, BPS_FAILED_PRECONDITION);
  EXPECT_TRUE(closing.answer.Contains("bps_close")) << closing.answer;
  EXPECT_TRUE(closing.answer.Contains("another thread")) << closing.answer;
  // It is as good as before, and can be closed.
  args.done = nullptr;
  bps_request* request = nullptr;
  ASSERT_SAID_OK(bps_push_pull(session, &args, &request));
  RequestOwner owner(request);
  ASSERT_SAID_OK(bps_wait(request, 0));
  EXPECT_SAID_OK(bps_shutdown(session, 0));
  EXPECT_SAID_OK(bps_close(session));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find("bps_close"), std::string::npos) << lines[0];
  EXPECT_SAID_OK(bps_close(nullptr));
}

size_t OpenDescriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

TEST_F(SessionTest, ManyLives) {
  const auto live = [&] {
    SessionOwner session = Open();
    float value = 1;
    const bps_push_pull_args args = PushPullArgs(DeclareTensor(session.get(), "w", BPS_FLOAT32, {1}), &value, &value);
    bps_request* request = nullptr;
    ASSERT_SAID_OK(bps_push_pull(session.get(), &args, &request));
    RequestOwner owner(request);
    ASSERT_SAID_OK(bps_wait(request, 0));
    ASSERT_SAID_OK(bps_shutdown(session.get(), 0));
  };
  live();
  const size_t before = OpenDescriptors();
  for (int i = 0; i < 200; ++i) live();
  EXPECT_EQ(OpenDescriptors(), before);
}

TEST_F(SessionTest, ManySessionsSideBySideOnManyThreads) {
  std::vector<SessionOwner> sessions;
  for (int i = 0; i < 8; ++i) sessions.push_back(Open());
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 300; ++i) {
        bps_session* session = sessions[static_cast<size_t>(i + t) % sessions.size()].get();
        const size_t count = i % 3 == 0 ? 100000 : 10;
        std::vector<float> input(count, static_cast<float>(t)), output(count);
        const bps_push_pull_args args =
            PushPullArgs(DeclareTensor(session, "t" + std::to_string(t), BPS_FLOAT32, {static_cast<int64_t>(count)}),
                         input.data(), output.data());
        bps_request* request = nullptr;
        ASSERT_SAID_OK(bps_push_pull(session, &args, &request));
        RequestOwner owner(request);
        ASSERT_SAID_OK(bps_wait(request, 0));
        ASSERT_EQ(output, input);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(SessionTest, IdleUsesNoProcessor) {
  SessionOwner session = Open();
  EXPECT_TRUE(AreIdle({::getpid()}));
}

// ---- What cannot be opened ----

TEST_F(SessionTest, ArgumentsThatMakeNoSense) {
  bps_open_args args = BPS_OPEN_ARGS_INIT;
  bps_session* session = nullptr;
  EXPECT_EQ(Said(bps_open(nullptr, &session)).code, BPS_INVALID_ARGUMENT);
  EXPECT_EQ(Said(bps_open(&args, nullptr)).code, BPS_INVALID_ARGUMENT);
  const Said version = bps_open_versioned(BPS_ABI_MAJOR + 1, 0, &args, &session);
  EXPECT_EQ(version.code, BPS_FAILED_PRECONDITION);
  EXPECT_TRUE(version.Contains("version 2.0") && version.Contains("1." + std::to_string(BPS_ABI_MINOR))) << version;
  args.coordinator = "nonsense";
  EXPECT_EQ(OpenError(args).code, BPS_INVALID_ARGUMENT);
  args.coordinator = nullptr;
  args.has_place = 1;
  args.num_hosts = args.local_size = 1;
  args.local_rank = 1;
  const Said rank = OpenError(args);
  EXPECT_EQ(rank.code, BPS_INVALID_ARGUMENT);
  EXPECT_TRUE(rank.Contains("bps_open_args.local_rank is 1, but local_size is 1")) << rank;
  EXPECT_FALSE(rank.Contains("BYTEPS_LOCAL_RANK")) << "no variable has said it: " << rank;
  for (const auto& [field, value] : {std::pair{&bps_open_args::num_hosts, "num_hosts is -1"},
                                     {&bps_open_args::local_size, "local_size is -1"},
                                     {&bps_open_args::num_servers, "num_servers is -1"},
                                     {&bps_open_args::host_index, "host_index is -1"},
                                     {&bps_open_args::local_rank, "local_rank is -1"},
                                     {&bps_open_args::has_place, "has_place is -1"}}) {
    bps_open_args wrong = args;
    wrong.local_rank = 0;
    wrong.*field = -1;
    const Said said = OpenError(wrong);
    EXPECT_EQ(said.code, BPS_INVALID_ARGUMENT);
    EXPECT_TRUE(said.Contains(std::string("bps_open_args.") + value)) << said;
  }
}

TEST_F(SessionTest, TextThatIsNotUtf8IsRefusedByItsField) {
  constexpr char kLatin1[] = "caf\xe9";
  for (const auto& [field, name] : {std::pair{&bps_open_args::job, "job"},
                                    {&bps_open_args::name, "name"},
                                    {&bps_open_args::coordinator, "coordinator"},
                                    {&bps_open_args::host, "host"},
                                    {&bps_open_args::token, "token"}}) {
    bps_open_args args = BPS_OPEN_ARGS_INIT;
    args.*field = kLatin1;
    const Said said = OpenError(args);
    EXPECT_EQ(said.code, BPS_INVALID_ARGUMENT);
    EXPECT_TRUE(said.Contains(std::string("bps_open_args.") + name + " is not UTF-8")) << said;
  }
  ::setenv("BYTEPS_JOB_ID", kLatin1, 1);
  const Said job = OpenError();
  ::unsetenv("BYTEPS_JOB_ID");
  EXPECT_TRUE(job.Contains("BYTEPS_JOB_ID is not UTF-8")) << job;
  SessionOwner session = Open();
  bps_barrier_args barrier = BPS_BARRIER_ARGS_INIT;
  barrier.name = kLatin1;
  EXPECT_TRUE(Said(bps_barrier(session.get(), &barrier)).Contains("bps_barrier_args.name is not UTF-8"));
}

// What has no meaning yet must be zero, or it could never be given one.
TEST_F(SessionTest, FieldsWithoutMeaningMustBeZero) {
  SessionOwner session = Open();
  float value = 1;
  const bps_push_pull_args right = PushPullArgs(DeclareTensor(session.get(), "w", BPS_FLOAT32, {1}), &value, &value);
  const auto expect_refused = [](bps_status* status, const char* says) {
    const Said said(status);
    EXPECT_EQ(said.code, BPS_INVALID_ARGUMENT);
    EXPECT_TRUE(said.Contains(says)) << said;
  };
  for (const auto& [field, name] : {std::pair{&bps_push_pull_args::reserved, "bps_push_pull_args.reserved is 3"},
                                    {&bps_push_pull_args::reserved2, "bps_push_pull_args.reserved2 is 3"},
                                    {&bps_push_pull_args::done_in_call, "done_in_call is 3, not 0 or 1"},
                                    {&bps_push_pull_args::input_device_id, "input_device_id is 3: CPU memory"},
                                    {&bps_push_pull_args::output_device_id, "output_device_id is 3: CPU memory"}}) {
    bps_push_pull_args args = right;
    args.*field = 3;
    expect_refused(bps_push_pull(session.get(), &args, nullptr), name);
  }
  for (const auto& [field, name] : {std::pair{&bps_broadcast_args::reserved, "bps_broadcast_args.reserved is 3"},
                                    {&bps_broadcast_args::reserved2, "bps_broadcast_args.reserved2 is 3"},
                                    {&bps_broadcast_args::done_in_call, "done_in_call is 3, not 0 or 1"},
                                    {&bps_broadcast_args::input_device_id, "input_device_id is 3: CPU memory"},
                                    {&bps_broadcast_args::output_device_id, "output_device_id is 3: CPU memory"}}) {
    bps_broadcast_args args = BPS_BROADCAST_ARGS_INIT;
    args.tensor = right.tensor;
    args.input = args.output = &value;
    args.*field = 3;
    expect_refused(bps_broadcast(session.get(), &args, nullptr), name);
  }
  bps_buffer_args buffer_args = BPS_BUFFER_ARGS_INIT;
  buffer_args.device = BPS_CPU;
  buffer_args.device_id = 4;
  bps_buffer* buffer = nullptr;
  expect_refused(bps_buffer_alloc(session.get(), &buffer_args, &buffer), "bps_buffer_args.device_id is 4: CPU memory");
  EXPECT_EQ(buffer, nullptr);
  EXPECT_EQ(value, 1);
}

// The header promises it: a thread that waits may free what the callback uses.
TEST_F(SessionTest, DoneHasReturnedBeforeWaitDoes) {
  SessionOwner session = Open();
  std::vector<float> data(1 << 20, 1.0f);
  bps_push_pull_args args = PushPullArgs(
      DeclareTensor(session.get(), "w", BPS_FLOAT32, {static_cast<int64_t>(data.size())}), data.data(), data.data());
  for (int round = 0; round < 200; ++round) {
    std::atomic<bool> returned{false};
    args.user = &returned;
    args.done = [](void* user, bps_status* error) {
      bps_status_free(error);
      std::this_thread::yield();
      static_cast<std::atomic<bool>*>(user)->store(true);
    };
    bps_request* request = nullptr;
    ASSERT_SAID_OK(bps_push_pull(session.get(), &args, &request));
    RequestOwner owner(request);
    ASSERT_SAID_OK(bps_wait(request, 0));
    ASSERT_TRUE(returned.load()) << "in round " << round;
  }
}

TEST_F(SessionTest, EnvironmentThatMakesNoSense) {
  ::setenv("BYTEPS_PARTITION_BYTES", "abc", 1);
  const Said said = OpenError();
  EXPECT_EQ(said.code, BPS_INVALID_ARGUMENT);
  EXPECT_TRUE(said.Contains("BYTEPS_PARTITION_BYTES") && said.Contains("abc")) << said;
  ::unsetenv("BYTEPS_PARTITION_BYTES");
  ::setenv("BYTEPS_SCHEDULING_CREDIT", "-4", 1);
  const Said credit = OpenError();
  EXPECT_EQ(credit.code, BPS_INVALID_ARGUMENT);
  EXPECT_TRUE(credit.Contains("BYTEPS_SCHEDULING_CREDIT=-4 is not accepted")) << credit;
}

// A worker that was started by hand, and no coordinator that could be told: the user sees the error before it has
// waited.
TEST_F(SessionTest, WhatIsWrongIsLoggedAtOnceThoughTheCoordinatorIsWaitedFor) {
  struct Log {
    Time began = 0;
    Time after = kNever;
  };
  const auto logged = [](void* user, int32_t level, const char*, int32_t, const char* message) {
    if (level != BPS_LOG_ERROR || std::string(message).find("BYTEPS_PARTITION_BYTES=abc") == std::string::npos) return;
    Log* log = static_cast<Log*>(user);
    log->after = std::min(log->after, Now() - log->began);
  };
  ::setenv("BYTEPS_PARTITION_BYTES", "abc", 1);
  ::setenv("BYTEPS_LOCAL_SIZE", "2", 1);
  bps_open_args args = BPS_OPEN_ARGS_INIT;
  args.coordinator = "127.0.0.1:1";
  ::setenv("BYTEPS_START_TIMEOUT", "1", 1);  // the coordinator is waited for a little longer, all the same
  args.log = logged;
  Log log;
  args.log_user = &log;
  // On a machine that has more to do one attempt may take longer.
  for (int attempt = 0; attempt < 5 && log.after >= kSecond / 2; ++attempt) {
    log.began = Now();
    const Said said = OpenError(args);
    EXPECT_TRUE(said.Contains("BYTEPS_PARTITION_BYTES=abc")) << said;
    EXPECT_GE(Now() - log.began, kSecond) << "nobody was waited for";
  }
  EXPECT_LT(log.after, kSecond / 2);
}

TEST_F(SessionTest, SeveralHostsNeedServersAndSeveralWorkersACoordinator) {
  ::setenv("DMLC_NUM_WORKER", "2", 1);
  const Said no_server = OpenError();
  EXPECT_EQ(no_server.code, BPS_INVALID_ARGUMENT);
  EXPECT_TRUE(no_server.Contains("DMLC_NUM_SERVER")) << no_server;
  ::unsetenv("DMLC_NUM_WORKER");
  ::setenv("BYTEPS_LOCAL_SIZE", "2", 1);
  const Said no_coordinator = OpenError();
  EXPECT_EQ(no_coordinator.code, BPS_INVALID_ARGUMENT);
  EXPECT_TRUE(no_coordinator.Contains("DMLC_PS_ROOT_URI")) << no_coordinator;
}

TEST_F(SessionTest, AnUnknownTransportIsNamedWithWhereItWasLookedFor) {
  ::setenv("BYTEPS_FORCE_DISTRIBUTED", "1", 1);
  ::setenv("DMLC_NUM_SERVER", "1", 1);
  ::setenv("BYTEPS_START_TIMEOUT", "1", 1);  // it would tell the coordinator
  bps_open_args args = BPS_OPEN_ARGS_INIT;
  args.coordinator = "127.0.0.1:1";
  args.transport = "carrierpigeon";
  const Said said = OpenError(args);
  EXPECT_EQ(said.code, BPS_NOT_FOUND);
  EXPECT_TRUE(said.Contains("libbyteps_transport_carrierpigeon.so")) << said;
}

}  // namespace
}  // namespace byteps
