/* trainer.c - the smallest trainer: linear regression, data-parallel, in C.
 *
 *     bpslaunch --workers 2 -- trainer
 *
 * Every worker makes its own samples of y = w.x + noise, computes the gradient of the mean squared error on them, and
 * averages it over all workers with bps_push_pull. All start from rank 0's weights (bps_broadcast) and so stay equal.
 * The exit status is 0 if the weights that were learnt are the ones the samples were made with.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "abi/byteps.h"

enum { kFeatures = 16, kSamples = 256, kSteps = 200 };

static const float kLearningRate = 0.2f;
static const float kNoise = 0.01f;
static const float kTolerance = 0.01f;

/* Ends the program with the error, if there is one. */
static void Check(bps_status* status, const char* what) {
  if (status == NULL) return;
  fprintf(stderr, "trainer: %s: %s\n", what, bps_status_message(status));
  bps_status_free(status);
  exit(2);
}

/* Uniform in [-1, 1); the state is the caller's. */
static float Random(uint64_t* state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (float)(*state >> 40) / (float)(1 << 23) - 1.0f;
}

static bps_tensor* Declare(bps_session* session, const char* name, int64_t elements) {
  bps_declare_args args = BPS_DECLARE_ARGS_INIT;
  args.name = name;
  args.dtype = BPS_FLOAT32;
  args.shape = &elements;
  args.ndim = 1;
  bps_tensor* tensor = NULL;
  Check(bps_declare(session, &args, &tensor), name);
  return tensor;
}

/* Waits for the operation and frees the request. */
static void Finish(bps_request* request, const char* what) {
  Check(bps_wait(request, 0), what);
  bps_request_free(request);
}

/* Replaces `values` by their average over all workers. */
static void Average(bps_session* session, bps_tensor* tensor, float* values, const char* what) {
  bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
  args.tensor = tensor;
  args.input = values;
  args.output = values;
  args.op = BPS_AVERAGE;
  bps_request* request = NULL;
  Check(bps_push_pull(session, &args, &request), what);
  Finish(request, what);
}

/* Replaces `values` by rank 0's. */
static void Broadcast(bps_session* session, bps_tensor* tensor, float* values, const char* what) {
  bps_broadcast_args args = BPS_BROADCAST_ARGS_INIT;
  args.tensor = tensor;
  args.input = values;
  args.output = values;
  args.root = 0;
  bps_request* request = NULL;
  Check(bps_broadcast(session, &args, &request), what);
  Finish(request, what);
}

/* Writes the gradient of the mean squared error over the samples; returns that error. */
static float Gradient(float inputs[kSamples][kFeatures], const float targets[kSamples], const float weights[kFeatures],
                      float gradient[kFeatures]) {
  float loss = 0;
  for (int j = 0; j < kFeatures; j++) gradient[j] = 0;
  for (int i = 0; i < kSamples; i++) {
    float error = -targets[i];
    for (int j = 0; j < kFeatures; j++) error += weights[j] * inputs[i][j];
    loss += error * error / kSamples;
    for (int j = 0; j < kFeatures; j++) gradient[j] += 2 * error * inputs[i][j] / kSamples;
  }
  return loss;
}

int main(void) {
  bps_open_args open_args = BPS_OPEN_ARGS_INIT;
  bps_session* session = NULL;
  Check(bps_open(&open_args, &session), "open");
  bps_info info = BPS_INFO_INIT;
  Check(bps_session_info(session, &info), "info");

  /* The truth is the same everywhere; the samples are each worker's own, and so are the first weights, until rank 0's
   * replace them. */
  float truth[kFeatures];
  uint64_t shared_state = 1;
  for (int j = 0; j < kFeatures; j++) truth[j] = Random(&shared_state);

  static float inputs[kSamples][kFeatures];
  static float targets[kSamples];
  uint64_t own_state = 1000 + (uint64_t)info.rank;
  for (int i = 0; i < kSamples; i++) {
    targets[i] = kNoise * Random(&own_state);
    for (int j = 0; j < kFeatures; j++) {
      inputs[i][j] = Random(&own_state);
      targets[i] += truth[j] * inputs[i][j];
    }
  }
  float weights[kFeatures];
  for (int j = 0; j < kFeatures; j++) weights[j] = Random(&own_state);
  Broadcast(session, Declare(session, "weights", kFeatures), weights, "weights");

  bps_tensor* gradient_tensor = Declare(session, "gradient", kFeatures);
  bps_tensor* loss_tensor = Declare(session, "loss", 1);
  float loss = 0;
  for (int step = 1; step <= kSteps; step++) {
    float gradient[kFeatures];
    loss = Gradient(inputs, targets, weights, gradient);
    Average(session, gradient_tensor, gradient, "gradient");
    Average(session, loss_tensor, &loss, "loss");
    for (int j = 0; j < kFeatures; j++) weights[j] -= kLearningRate * gradient[j];
    if (info.rank == 0 && (step == 1 || step % 50 == 0)) printf("step %3d  loss %.6f\n", step, loss);
  }

  float worst = 0;
  for (int j = 0; j < kFeatures; j++) worst = fmaxf(worst, fabsf(weights[j] - truth[j]));
  const int converged = worst < kTolerance;
  if (info.rank == 0) {
    printf("trainer: %s: largest error of a weight %.5f, loss %.6f, %d workers, %d servers\n",
           converged ? "converged" : "did not converge", worst, loss, info.size, info.num_servers);
  }

  Check(bps_shutdown(session, 0), "shutdown");
  bps_close(session);
  return converged ? 0 : 1;
}
