/* digits.c - data-parallel training of a small network on handwritten digits.
 *
 *     LIB=$(python -c 'import byteps; print(byteps.__path__[0] + "/lib")')      # or the lib of an installation
 *     cc -std=c11 -O2 -I. examples/c/digits.c -o digits -L$LIB -Wl,-rpath,$LIB -lbyteps -lm
 *     bpslaunch --workers 2 -- ./digits [EPOCHS [FILE]]
 *
 * What makes this training data-parallel is marked [1] to [5]; with one worker it is an ordinary program.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "abi/byteps.h"

enum { kPixels = 64, kHidden = 128, kDigits = 10, kRecord = kPixels + 1, kMostImages = 4096 };
enum { kParameters = 4, kLargest = kPixels * kHidden };
enum { kBatchSize = 64 }; /* over all workers */

static const float kLearningRate = 5e-3f;
static const uint64_t kSeed = 1;

/* Weights (a row for each input) and biases of both layers. */
static const int kSizes[kParameters] = {kPixels * kHidden, kHidden, kHidden* kDigits, kDigits};
static float parameters[kParameters][kLargest], gradients[kParameters][kLargest];
static float means[kParameters][kLargest], squares[kParameters][kLargest];

static uint8_t records[kMostImages][kRecord]; /* pixels, then the digit */

static void Fail(const char* what, const char* why) {
  fprintf(stderr, "digits: %s: %s\n", what, why);
  exit(1);
}

static void Check(bps_status* status, const char* what) {
  if (status != NULL) Fail(what, bps_status_message(status));
}

/* How many there are; examples/data/README.md says how they are stored. */
static int ReadImages(const char* path) {
  FILE* file = fopen(path, "rb");
  if (file == NULL) Fail("cannot read", path);
  const size_t count = fread(records, kRecord, kMostImages, file);
  const int rest = fgetc(file) != EOF;
  fclose(file);
  if (count == 0 || rest) Fail("no file of some 65 bytes for each image", path);
  return (int)count;
}

/* splitmix64: numbers that are the same on every machine. */
static uint64_t Random(uint64_t* state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

static void FillUniform(float* values, int count, float scale, uint64_t* state) {
  for (int i = 0; i < count; i++) {
    values[i] = scale * ((float)(Random(state) >> 40) / (float)(1 << 23) - 1.0f);
  }
}

static void Outputs(const uint8_t* record, float input[kPixels], float hidden[kHidden], float outputs[kDigits]) {
  for (int i = 0; i < kPixels; i++) input[i] = (float)record[i] / 16;
  memcpy(hidden, parameters[1], kHidden * sizeof *hidden);
  for (int i = 0; i < kPixels; i++) {
    for (int j = 0; j < kHidden; j++) hidden[j] += input[i] * parameters[0][i * kHidden + j];
  }
  for (int j = 0; j < kHidden; j++) hidden[j] = fmaxf(hidden[j], 0);
  memcpy(outputs, parameters[3], kDigits * sizeof *outputs);
  for (int i = 0; i < kHidden; i++) {
    for (int j = 0; j < kDigits; j++) outputs[j] += hidden[i] * parameters[2][i * kDigits + j];
  }
}

/* Adds an image's part to the gradients of a batch of `count`; returns its part of the mean cross entropy. */
static float AddGradients(const uint8_t* record, int count) {
  float input[kPixels], hidden[kHidden], errors[kDigits];
  Outputs(record, input, hidden, errors);
  float largest = errors[0], sum = 0;
  for (int j = 1; j < kDigits; j++) largest = fmaxf(largest, errors[j]);
  for (int j = 0; j < kDigits; j++) sum += errors[j] = expf(errors[j] - largest);
  const int digit = record[kPixels];
  const float loss = -logf(errors[digit] / sum) / (float)count;
  for (int j = 0; j < kDigits; j++) errors[j] /= sum * (float)count;
  errors[digit] -= 1.0f / (float)count;

  for (int j = 0; j < kDigits; j++) gradients[3][j] += errors[j];
  for (int i = 0; i < kHidden; i++) {
    if (hidden[i] <= 0) continue;
    float error = 0;
    for (int j = 0; j < kDigits; j++) {
      error += parameters[2][i * kDigits + j] * errors[j];
      gradients[2][i * kDigits + j] += hidden[i] * errors[j];
    }
    gradients[1][i] += error;
    for (int k = 0; k < kPixels; k++) gradients[0][k * kHidden + i] += input[k] * error;
  }
  return loss;
}

/* One step of Adam, the `step`-th. */
static void Update(int step) {
  const float first = 1 - powf(0.9f, (float)step), second = 1 - powf(0.999f, (float)step);
  for (int p = 0; p < kParameters; p++) {
    for (int i = 0; i < kSizes[p]; i++) {
      const float gradient = gradients[p][i];
      means[p][i] = 0.9f * means[p][i] + 0.1f * gradient;
      squares[p][i] = 0.999f * squares[p][i] + 0.001f * gradient * gradient;
      parameters[p][i] -= kLearningRate * (means[p][i] / first) / (sqrtf(squares[p][i] / second) + 1e-8f);
    }
  }
}

static double Accuracy(int images) {
  int correct = 0;
  for (int n = 0; n < images; n++) {
    float input[kPixels], hidden[kHidden], outputs[kDigits];
    Outputs(records[n], input, hidden, outputs);
    int best = 0;
    for (int j = 1; j < kDigits; j++) best = outputs[j] > outputs[best] ? j : best;
    correct += best == records[n][kPixels];
  }
  return (double)correct / images;
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

static void Finish(bps_request* request, const char* what) {
  Check(bps_wait(request, 0), what);
  bps_request_free(request);
}

static void Broadcast(bps_session* session, bps_tensor* tensor, float* values) {
  bps_broadcast_args args = BPS_BROADCAST_ARGS_INIT;
  args.tensor = tensor;
  args.input = args.output = values;
  bps_request* request = NULL;
  Check(bps_broadcast(session, &args, &request), "broadcast");
  Finish(request, "broadcast");
}

/* Starts to replace `values` by their average over all workers. */
static bps_request* StartAverage(bps_session* session, bps_tensor* tensor, float* values, int64_t priority) {
  bps_push_pull_args args = BPS_PUSH_PULL_ARGS_INIT;
  args.tensor = tensor;
  args.input = args.output = values;
  args.op = BPS_AVERAGE;
  args.priority = priority;
  bps_request* request = NULL;
  Check(bps_push_pull(session, &args, &request), "push_pull");
  return request;
}

static double Seconds(void) {
  struct timespec now;
  timespec_get(&now, TIME_UTC);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(int argc, char** argv) {
  const int epochs = argc > 1 ? atoi(argv[1]) : 30;
  const int images = ReadImages(argc > 2 ? argv[2] : "examples/data/digits.bin");
  const int test = images / 5; /* the first fifth is for the test */

  bps_open_args open_args = BPS_OPEN_ARGS_INIT;
  bps_session* session = NULL;
  Check(bps_open(&open_args, &session), "open"); /* [1] join the job */
  bps_info job = BPS_INFO_INIT;
  Check(bps_session_info(session, &job), "info");

  /* The first weights differ, so that only [2] makes them equal. */
  uint64_t own = kSeed + (uint64_t)job.rank;
  FillUniform(parameters[0], kSizes[0], sqrtf(6.0f / kPixels), &own);
  FillUniform(parameters[2], kSizes[2], sqrtf(6.0f / kHidden), &own);
  bps_tensor* tensors[kParameters];
  for (int p = 0; p < kParameters; p++) {
    char name[] = "parameter.0";
    name[sizeof name - 2] = (char)('0' + p);
    tensors[p] = Declare(session, name, kSizes[p]);
    Broadcast(session, tensors[p], parameters[p]); /* [2] start from the same weights */
  }
  bps_tensor* loss_tensor = Declare(session, "loss", 1);

  static int order[kMostImages];
  const int batch = kBatchSize >= job.size ? kBatchSize / job.size : 1, steps = (images - test) / (batch * job.size);
  const double start = Seconds();
  double accuracy = 0;
  for (int epoch = 1; epoch <= epochs; epoch++) {
    uint64_t shared = kSeed + (uint64_t)epoch; /* the same order on all workers */
    for (int i = 0; i < images - test; i++) order[i] = test + i;
    for (int i = images - test - 1; i > 0; i--) {
      const int other = (int)(Random(&shared) % (uint64_t)(i + 1)), kept = order[i];
      order[i] = order[other];
      order[other] = kept;
    }
    const double epoch_start = Seconds();
    float loss = 0;
    for (int step = 0; step < steps; step++) {
      memset(gradients, 0, sizeof gradients);
      for (int i = 0; i < batch; i++) {
        /* [3] each takes its part */
        loss += AddGradients(records[order[(step * batch + i) * job.size + job.rank]], batch) / (float)steps;
      }
      bps_request* requests[kParameters]; /* [4] average the gradients over all workers */
      for (int p = 0; p < kParameters; p++) requests[p] = StartAverage(session, tensors[p], gradients[p], -p);
      for (int p = 0; p < kParameters; p++) Finish(requests[p], "push_pull");
      Update((epoch - 1) * steps + step + 1);
    }
    const double seconds = Seconds() - epoch_start;

    Finish(StartAverage(session, loss_tensor, &loss, 0), "loss"); /* [5] the mean over all workers */
    accuracy = Accuracy(test);
    if (job.rank != 0) continue;
    printf("epoch %2d/%d  loss %.4f  test accuracy %.4f  %.0f samples/s\n", epoch, epochs, (double)loss, accuracy,
           steps * batch * job.size / seconds);
    fflush(stdout);
  }
  if (job.rank == 0) {
    printf("digits: test accuracy %.4f in %.1f s, %d workers, %d servers, transport %s, scheduler %s\n", accuracy,
           Seconds() - start, job.size, job.num_servers, bps_transport_name(session), bps_scheduler_name(session));
  }
  Check(bps_shutdown(session, 0), "shutdown");
  Check(bps_close(session), "close");
  return 0;
}
