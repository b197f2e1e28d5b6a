// Iterations of loops as TensorFlow tells them to kernels, which these functions do in its place.

#include "frameworks/tensorflow/native/iteration.h"

#include <gtest/gtest.h>

#include "abi/byteps.h"

namespace byteps::tensorflow {

// What belongs to one execution of a kernel.
struct TF_OpKernelContext {
  int64_t step;
  uint64_t frame;
  int64_t iteration;
};

namespace {

Iteration Told(int64_t step, uint64_t frame, int64_t number) {
  CApi api;
  api.TF_GetStepId = [](TF_OpKernelContext* context) { return context->step; };
  api.TF_GetFrameId = [](TF_OpKernelContext* context) { return context->frame; };
  api.TF_GetIterId = [](TF_OpKernelContext* context) { return context->iteration; };
  TF_OpKernelContext context{step, frame, number};
  return Iteration::Of(api, &context);
}

TEST(IterationTest, CountsFromOne) {
  EXPECT_EQ(Told(7, 42, 0).number, 1);
  EXPECT_EQ(Told(7, 42, 7).number, 8);
  EXPECT_EQ(Told(7, 42, 7).step, 7);
}

TEST(IterationTest, OfNoLoopThereIsNone) {
  EXPECT_EQ(Told(7, 0, 0).number, 0);
  EXPECT_EQ(Told(7, ~uint64_t{0}, -1).number, 0) << "an executor without frames";
}

TEST(IterationTest, AfterAFailureNoneOfTheSameRunIsSent) {
  Iterations iterations;
  iterations.End(Told(7, 42, 2), {});
  EXPECT_TRUE(iterations.Admit(Told(7, 42, 1)).ok());
  iterations.End(Told(7, 42, 1), {BPS_FAILED_PRECONDITION, "the ranks disagree"});
  EXPECT_EQ(iterations.Admit(Told(7, 42, 0)).code, BPS_CANCELLED);
  EXPECT_EQ(iterations.Admit(Told(7, 43, 0)).code, BPS_CANCELLED) << "an inner loop of another iteration";
  EXPECT_TRUE(iterations.Admit(Told(8, 42, 0)).ok()) << "the next run of the graph";
  EXPECT_TRUE(iterations.Admit(Told(7, 0, 0)).ok()) << "in no loop";
}

TEST(IterationTest, AFailureOutsideOfLoopsKeepsNoneBack) {
  Iterations iterations;
  iterations.End(Told(7, 0, 0), {BPS_ABORTED, "given up"});
  EXPECT_TRUE(iterations.Admit(Told(7, 42, 0)).ok());
  EXPECT_TRUE(iterations.Admit(Told(0, 42, 0)).ok());
}

}  // namespace
}  // namespace byteps::tensorflow
