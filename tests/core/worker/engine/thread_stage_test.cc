// A stage that waits for something that is no connection: a thread of its own, which does its work behind the engine's
// back. The thread that drives the engine sleeps on the descriptor that the stage has named.

#include <poll.h>

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/base/log.h"
#include "core/base/time.h"
#include "core/base/waker.h"
#include "core/worker/engine/engine.h"
#include "core/worker/tensor/relay_stage.h"
#include "gtest/gtest.h"

namespace byteps {
namespace {

// Doubles all numbers on its way out, on a thread.
class ThreadStage : public RelayStage {
 public:
  ThreadStage() : thread_([this] { Work(); }) {}
  ~ThreadStage() override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      over_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  const char* name() const override { return "thread"; }
  void Push(Time, Operation* operation, uint32_t part, const Payload& source, const Payload& target) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      asked_.push_back({operation, part, source, target});
    }
    changed_.notify_one();
  }
  bool Run(Time now) override {
    waker_.Clear();
    std::deque<Part> done;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      done.swap(done_);
    }
    for (const Part& part : done) next()->Push(now, part.operation, part.part, part.source, part.target);
    return !done.empty();
  }
  void AddDescriptors(std::vector<int>* all) override { all->push_back(waker_.fd()); }

 private:
  struct Part {
    Operation* operation;
    uint32_t part;
    Payload source, target;
  };

  void Work() {
    std::unique_lock<std::mutex> lock(mutex_);
    while (true) {
      changed_.wait(lock, [&] { return over_ || !asked_.empty(); });
      if (over_) return;
      Part part = asked_.front();
      asked_.pop_front();
      lock.unlock();
      auto* numbers = reinterpret_cast<float*>(part.source.address);
      for (uint64_t i = 0; i < part.source.elements; ++i) numbers[i] *= 2;
      lock.lock();
      done_.push_back(part);
      waker_.Signal();
    }
  }

  Waker waker_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Part> asked_, done_;
  bool over_ = false;
  std::thread thread_;
};

class Handler : public EngineHandler {
 public:
  void OnDeclare(const std::vector<control::TensorSpec>&) override {}
  void OnFailed(const absl::Status& why) override { ADD_FAILURE() << why; }
};

TEST(ThreadStageTest, ItsDescriptorWakesTheDrivingThread) {
  Logger log;
  Handler handler;
  Engine engine({}, &handler, &log);
  engine.UseStage("", std::make_unique<ThreadStage>());
  engine.UseAlone();
  EXPECT_EQ(engine.DescribeStages(), "thread > alone");
  ASSERT_EQ(engine.descriptors().size(), 1u);
  for (int round = 0; round < 100; ++round) {
    std::vector<float> numbers(1000, 1.5F);
    const int64_t shape[] = {1000};
    Submission asked;
    asked.tensor = *engine.tensors().Declare("w", BPS_FLOAT32, shape);
    asked.input = asked.output = reinterpret_cast<std::byte*>(numbers.data());
    asked.timeout = 60 * kSecond;
    asked.request = std::make_shared<Request>(nullptr, nullptr);
    ASSERT_TRUE(engine.Admit(asked).ok());
    engine.Submit(Now(), asked);
    while (!asked.request->ended()) {
      if (!engine.Poll(Now())) {
        pollfd entry{engine.descriptors().front(), POLLIN, 0};
        ASSERT_EQ(::poll(&entry, 1, 30'000), 1) << "nobody was woken";
      }
      for (Completion& completion : engine.TakeCompletions()) completion.Run();
    }
    EXPECT_TRUE(asked.request->outcome().ok()) << asked.request->outcome();
    EXPECT_EQ(numbers, std::vector<float>(1000, 3.0F));
  }
}

// Behind operations in flight: these pass it by.
TEST(ThreadStageTest, AStageMayComeBeforeAllOthersLater) {
  Logger log;
  Handler handler;
  Engine engine({}, &handler, &log);
  engine.UseAlone();
  std::vector<float> numbers(1000, 1.5F), later(1000, 1.5F);
  const int64_t shape[] = {1000};
  const auto submit = [&](const char* name, std::vector<float>* memory) {
    Submission asked;
    asked.tensor = *engine.tensors().Declare(name, BPS_FLOAT32, shape);
    asked.input = asked.output = reinterpret_cast<std::byte*>(memory->data());
    asked.timeout = 60 * kSecond;
    asked.request = std::make_shared<Request>(nullptr, nullptr);
    EXPECT_TRUE(engine.Admit(asked).ok());
    engine.Submit(Now(), asked);
    return asked.request;
  };
  const auto before = submit("before", &numbers);
  engine.UseStage("", std::make_unique<ThreadStage>());
  const auto behind = submit("behind", &later);
  const Time deadline = Now() + 60 * kSecond;
  while ((!before->ended() || !behind->ended()) && Now() < deadline) {
    engine.Poll(Now());
    for (Completion& completion : engine.TakeCompletions()) completion.Run();
  }
  ASSERT_TRUE(before->ended() && behind->ended());
  EXPECT_EQ(numbers, std::vector<float>(1000, 1.5F));
  EXPECT_EQ(later, std::vector<float>(1000, 3.0F));
}

}  // namespace
}  // namespace byteps
