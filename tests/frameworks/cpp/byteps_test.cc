// A C++ program that is linked with libbyteps.so directly, uses protobuf and glog itself, and trains alone.

#include "frameworks/cpp/byteps.hpp"

#include <glog/logging.h>
#include <google/protobuf/struct.pb.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace byteps {
namespace {

TEST(SessionTest, OneWorkerAlone) {
  Session session;
  EXPECT_EQ(session.Info().rank, 0);
  EXPECT_EQ(session.Info().size, 1);
  EXPECT_EQ(session.Info().failed, 0);

  std::vector<float> input(1000);
  std::iota(input.begin(), input.end(), 0.5f);
  std::vector<float> output(input.size());
  Tensor tensor = session.Declare("tensor", BPS_FLOAT32, {10, 100});
  for (int32_t op : {BPS_SUM, BPS_AVERAGE, BPS_MIN, BPS_MAX, BPS_PRODUCT}) {
    output.assign(output.size(), 0);
    Request request = session.PushPull(tensor, input.data(), output.data(), op);
    request.Wait();
    EXPECT_TRUE(request.Test());
    EXPECT_EQ(output, input);
  }
  session.Broadcast(tensor, input.data(), input.data(), /*root=*/0).Wait();
  EXPECT_EQ(output, input);
  session.Barrier();
  session.Shutdown();
}

TEST(SessionTest, ErrorsAreExceptions) {
  Session session;
  try {
    session.Declare("", BPS_FLOAT32, {1});
    FAIL() << "a tensor without a name was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), BPS_INVALID_ARGUMENT);
    EXPECT_FALSE(error.retryable());
    EXPECT_NE(std::string(error.what()), "");
  }
  session.Shutdown();
  EXPECT_THROW(session.Declare("late", BPS_FLOAT32, {1}), Error);
}

TEST(SessionTest, ManySideBySideAndOneAfterAnother) {
  for (int turn = 0; turn < 10; ++turn) {
    Session first;
    Session second = Session();
    Session moved = std::move(first);
    double value = turn;
    for (Session* session : {&second, &moved}) {
      session->PushPull(session->Declare("x", BPS_FLOAT64, {}), &value, &value, BPS_SUM).Wait();
    }
    EXPECT_EQ(value, turn);
  }
}

TEST(SessionTest, ErrorsAreValues) {
  bps_open_args args = BPS_OPEN_ARGS_INIT;
  args.scheduler = "nowhere";
  EXPECT_EQ(Session::TryOpen(args).status().code(), BPS_NOT_FOUND);
  Result<Session> opened = Session::TryOpen();
  ASSERT_TRUE(opened.ok()) << opened.status().message();
  Session session = std::move(opened).value();
  Result<TensorOf<float>> tensor = session.TryDeclare<float>("t", {2, 3});
  ASSERT_TRUE(tensor.ok());
  EXPECT_EQ(tensor->size(), 6u);
  EXPECT_EQ(session.TryDeclare<float>("", {1}).status().code(), BPS_INVALID_ARGUMENT);
  std::vector<float> values(5);
  const Result<Request> refused = session.TryPushPull(*tensor, values, values, Op::kSum);
  EXPECT_EQ(refused.status().code(), BPS_INVALID_ARGUMENT);
  EXPECT_NE(refused.status().message().find("6 elements"), std::string::npos);
  EXPECT_EQ(session.TryNewBuffer<double>(SIZE_MAX / 4).status().code(), BPS_RESOURCE_EXHAUSTED);
  EXPECT_TRUE(session.TryBarrier().ok());
  EXPECT_TRUE(session.TryShutdown().ok());
  EXPECT_EQ(session.TryBarrier().code(), BPS_FAILED_PRECONDITION);
}

// A callback runs once if the operation was accepted, and never if it was not.
TEST(SessionTest, CallbacksFuturesAndOwnedMemory) {
  Session session;
  const TensorOf<double> tensor = session.Declare<double>("t", {4});
  std::vector<double> values(4, 3);
  int calls = 0;
  Request request =
      session.PushPull(tensor, values, Op::kSum, {.done = [&calls](const Status& status) { calls += status.ok(); }});
  request.Wait();
  EXPECT_EQ(calls, 1);
  std::vector<double> wrong(3);
  EXPECT_THROW(session.PushPull(tensor, wrong, Op::kSum, {.done = [&calls](const Status&) { ++calls; }}), Error);
  EXPECT_EQ(calls, 1);
  EXPECT_THROW(session.PushPullFuture(tensor, wrong, Op::kSum), Error);
  session.PushPullFuture(tensor, values, Op::kMax, {.done = [&calls](const Status&) { ++calls; }}).get();
  EXPECT_EQ(session.PushPullOwned(tensor, std::move(values), Op::kSum).Wait(), std::vector<double>(4, 3));
  EXPECT_EQ(session.PushPullOwned(tensor, session.NewBuffer<double>(4), Op::kSum).Wait()[3], 0);
  session.Shutdown();
  EXPECT_EQ(calls, 2);
}

TEST(SessionTest, ATimelineHasOperationsAndMarks) {
  const std::string path = ::testing::TempDir() + "cpp_timeline.json";
  Session session;
  EXPECT_EQ(session.TryStopTimeline().code(), BPS_FAILED_PRECONDITION);
  EXPECT_EQ(session.TryStartTimeline("/dev/null/t.json").code(), BPS_INVALID_ARGUMENT);
  session.StartTimeline(path, BPS_TIMELINE_MARK_STEPS);
  {
    const Session::Span span = session.MarkSpan("reduction");
    session.Mark("begins");
    std::vector<float> values(3);
    session.PushPull(session.Declare<float>("gradient", {3}), values, Op::kSum).Wait();
  }
  session.StopTimeline();
  std::ifstream file(path);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  for (const char* part :
       {"\"reduction\",\"ph\":\"B\"", "\"begins\",\"ph\":\"i\"", "\"gradient\"", "\"ph\":\"E\"", "\"STEP\"", "\n]\n"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " is not in " << text;
  }
  session.Shutdown();
}

// The program's own copies of what the library is made of go on working beside it.
TEST(GuestTest, ProtobufAndGlogOfTheHost) {
  google::protobuf::Struct message;
  (*message.mutable_fields())["rank"].set_number_value(3);
  Session session;
  google::protobuf::Struct copy;
  ASSERT_TRUE(copy.ParseFromString(message.SerializeAsString()));
  EXPECT_EQ(copy.fields().at("rank").number_value(), 3);
  testing::internal::CaptureStderr();
  LOG(ERROR) << "the host's own line";
  google::FlushLogFiles(google::INFO);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("the host's own line"), std::string::npos);
  session.Shutdown();
}

// On a simulated GPU.
TEST(SessionTest, MemoryForGpus) {
  ::setenv("BYTEPS_DEVICE", std::filesystem::absolute(std::getenv("CPP_FAKE_GPU")).c_str(), 1);
  Session session;
  Buffer<float> pinned = session.NewPinnedBuffer<float>(1000);
  EXPECT_EQ(std::accumulate(pinned.begin(), pinned.end(), 0.0f), 0);
  pinned[999] = 2.5f;
  session.PushPull(session.Declare<float>("pinned", {1000}), pinned.span(), Op::kSum).Wait();
  EXPECT_EQ(pinned[999], 2.5f);
  const DeviceBuffer<float> device = session.NewDeviceBuffer<float>(1000);
  EXPECT_NE(device.data(), nullptr);
  EXPECT_EQ(device.size(), 1000u);
  EXPECT_EQ(device.gpu(), 0);
  EXPECT_EQ(session.TryNewDeviceBuffer<float>(1, 7).status().code(), BPS_INVALID_ARGUMENT);
  EXPECT_EQ(session.TryNewPinnedBuffer<float>(1, 7).status().code(), BPS_INVALID_ARGUMENT);
  session.Shutdown();
}

}  // namespace
}  // namespace byteps
