// Copies out of GPUs: the most urgent first, a few ahead, each in its order.
#include "core/worker/device/gpu_lanes.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "abi/device.h"
#include "device_plugins/fake/control.h"
#include "gtest/gtest.h"
#include "tests/core/worker/device/fake_gpus.h"

namespace byteps {
namespace {

constexpr uint64_t kPiece = 1000;

// So many pieces of one allocation, and which of them have come.
class Source : public CopySource {
 public:
  Source(Gpu* gpu, int64_t priority, uint64_t order, size_t pieces)
      : gpu_(gpu), priority_(priority), order_(order), left_(pieces) {
    from_ = static_cast<std::byte*>(*gpu->Allocate(kPiece));
    to_ = static_cast<std::byte*>(*gpu->AllocateHost(kPiece));
  }
  ~Source() override {
    gpu_->Release(from_).IgnoreError();
    gpu_->ReleaseHost(to_).IgnoreError();
  }
  int64_t priority() const override { return priority_; }
  uint64_t order() const override { return order_; }
  bool NextPiece(Piece* piece) override {
    if (left_ == 0) return false;
    --left_;
    *piece = {to_, from_, kPiece};
    return true;
  }
  void OnCopied(const absl::Status& status) override { outcomes_.push_back(status); }
  void OnUntold(const absl::Status& status) override {
    EXPECT_FALSE(status.ok());
    ++untold_;
  }

  size_t left() const { return left_; }
  size_t untold() const { return untold_; }
  const std::vector<absl::Status>& outcomes() const { return outcomes_; }

 private:
  Gpu* const gpu_;
  const int64_t priority_;
  const uint64_t order_;
  size_t left_;
  size_t untold_ = 0;
  std::byte *from_ = nullptr, *to_ = nullptr;
  std::vector<absl::Status> outcomes_;
};

class GpuLanesTest : public testing::Test {
 protected:
  void Use(const std::string& options) {
    gpus_ = FakeGpus(options.c_str());
    gpu_ = gpus_->Get(0)->gpu;
    lanes_ = std::make_unique<GpuLanes>(gpus_);
    lane_ = *lanes_->Get(gpu_);
  }
  std::unique_ptr<Source> New(int64_t priority, size_t pieces) {
    auto source = std::make_unique<Source>(gpu_.get(), priority, ++sources_, pieces);
    lanes_->Add(lane_, source.get());
    return source;
  }
  void RunUntil(const Source& source, size_t copied) {
    for (int i = 0; i < 10'000 && source.outcomes().size() < copied; ++i) lanes_->Run();
    ASSERT_EQ(source.outcomes().size(), copied);
  }

  std::shared_ptr<Gpus> gpus_;
  std::shared_ptr<Gpu> gpu_;
  std::unique_ptr<GpuLanes> lanes_;
  GpuLane* lane_ = nullptr;
  uint64_t sources_ = 0;
};

TEST_F(GpuLanesTest, TheMostUrgentOvertakesTheRest) {
  Use("devices=1,schedule=late,patience=5");
  const std::unique_ptr<Source> plain = New(0, 100);
  lanes_->Run();
  EXPECT_EQ(plain->left(), 100 - GpuLanes::kCopiesAhead);
  const std::unique_ptr<Source> late = New(0, 1), urgent = New(7, 20);
  RunUntil(*urgent, 20);
  // What was ahead of it, and what has taken its places.
  EXPECT_GE(plain->left(), 100 - 2 * GpuLanes::kCopiesAhead);
  EXPECT_EQ(late->left(), 1u);
  // Of equal ones the first goes first.
  RunUntil(*plain, 100);
  RunUntil(*late, 1);
  for (const absl::Status& outcome : plain->outcomes()) EXPECT_TRUE(outcome.ok()) << outcome;
}

TEST_F(GpuLanesTest, AFailureIsTheSourcesOwn) {
  Use("devices=1,schedule=early");
  bps_fake_gpu()->fail("copy_to_host", 1, BPS_INTERNAL);
  const std::unique_ptr<Source> source = New(0, 3);
  RunUntil(*source, 3);
  int failed = 0;
  for (const absl::Status& outcome : source->outcomes()) failed += outcome.ok() ? 0 : 1;
  EXPECT_EQ(failed, 1);
}

TEST_F(GpuLanesTest, ACopyWithoutAnEventIsToldOfApart) {
  Use("devices=1,schedule=late");
  bps_fake_gpu()->fail("event_record", 1, BPS_INTERNAL);
  const std::unique_ptr<Source> source = New(0, 3);
  RunUntil(*source, 2);
  for (const absl::Status& outcome : source->outcomes()) EXPECT_TRUE(outcome.ok()) << outcome;
  EXPECT_EQ(source->untold(), 1u);
}

TEST_F(GpuLanesTest, AForgottenSourceHearsNothing) {
  Use("devices=1,schedule=late");
  const std::unique_ptr<Source> source = New(0, 100), other = New(0, 1);
  lanes_->Run();
  lanes_->Forget(source.get());
  RunUntil(*other, 1);
  EXPECT_TRUE(source->outcomes().empty());
  EXPECT_TRUE(lanes_->Drain(After(Now(), 60 * kSecond)));
}

TEST_F(GpuLanesTest, TheSteadyStateMakesNothing) {
  Use("devices=1,schedule=random,seed=4");
  fake_gpu_counts before = {}, after = {};
  // Their ends give memory back, which waits for the GPU.
  std::vector<std::unique_ptr<Source>> sources;
  for (int round = 0; round < 20; ++round) {
    if (round == 1) bps_fake_gpu()->counts(&before);
    sources.push_back(New(0, 100));
    RunUntil(*sources.back(), 100);
  }
  bps_fake_gpu()->counts(&after);
  EXPECT_EQ(after.events, before.events);
  EXPECT_EQ(after.streams, before.streams);
  EXPECT_EQ(after.synchronisations, 0u);
}

}  // namespace
}  // namespace byteps
