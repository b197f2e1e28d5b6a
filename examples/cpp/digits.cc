// Data-parallel training of a small network on handwritten digits.
//
//     LIB=$(python -c 'import byteps; print(byteps.__path__[0] + "/lib")')      # or the lib of an installation
//     c++ -std=c++20 -O2 -I. examples/cpp/digits.cc -o digits -L$LIB -Wl,-rpath,$LIB -lbyteps
//     bpslaunch --workers 2 -- ./digits [EPOCHS [FILE]]
//
// What makes this training data-parallel is marked [1] to [5]; with one worker it is an ordinary program.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iterator>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "frameworks/cpp/byteps.hpp"

namespace {

constexpr size_t kPixels = 64;
constexpr size_t kHidden = 128;
constexpr size_t kDigits = 10;
constexpr size_t kBatchSize = 64;  // over all workers
constexpr float kLearningRate = 5e-3F;
constexpr uint64_t kSeed = 1;

using Vector = std::vector<float>;

// splitmix64: numbers that are the same on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }
  // In [-1, 1).
  float Uniform() { return static_cast<float>(Next() >> 40) / static_cast<float>(1 << 23) - 1.0F; }

 private:
  uint64_t state_;
};

struct Image {
  std::array<float, kPixels> pixels;  // 0 to 1
  size_t digit;
};

// The images; examples/data/README.md says how they are stored.
std::vector<Image> ReadImages(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<unsigned char> bytes{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open()) throw std::runtime_error("cannot read " + path);
  if (bytes.empty() || bytes.size() % (kPixels + 1) != 0) {
    throw std::runtime_error(path + " has " + std::to_string(bytes.size()) + " bytes, no multiple of 65");
  }
  std::vector<Image> images(bytes.size() / (kPixels + 1));
  for (size_t i = 0; i < images.size(); ++i) {
    const unsigned char* record = &bytes[i * (kPixels + 1)];
    for (size_t j = 0; j < kPixels; ++j) images[i].pixels[j] = static_cast<float>(record[j]) / 16;
    images[i].digit = record[kPixels];
  }
  return images;
}

// output = bias + input * weight; a weight has a row for each input.
void Affine(std::span<const float> input, const Vector& weight, const Vector& bias, std::span<float> output) {
  std::copy(bias.begin(), bias.end(), output.begin());
  for (size_t i = 0; i < input.size(); ++i) {
    for (size_t j = 0; j < output.size(); ++j) output[j] += input[i] * weight[i * output.size() + j];
  }
}

void AddOuter(std::span<const float> input, std::span<const float> errors, Vector& weight, Vector& bias) {
  for (size_t i = 0; i < input.size(); ++i) {
    for (size_t j = 0; j < errors.size(); ++j) weight[i * errors.size() + j] += input[i] * errors[j];
  }
  for (size_t j = 0; j < errors.size(); ++j) bias[j] += errors[j];
}

// A perceptron with one hidden layer. Weights and biases of both layers, and what goes with each.
class Network {
 public:
  explicit Network(Random random) {
    const std::array<size_t, 4> sizes = {kPixels * kHidden, kHidden, kHidden * kDigits, kDigits};
    const std::array<float, 4> scales = {std::sqrt(6.0F / kPixels), 0, std::sqrt(6.0F / kHidden), 0};
    for (size_t i = 0; i < sizes.size(); ++i) {
      parameters.emplace_back(sizes[i]);
      for (float& value : parameters[i]) value = scales[i] * random.Uniform();
      gradients.emplace_back(sizes[i]);
      means_.emplace_back(sizes[i]);
      squares_.emplace_back(sizes[i]);
    }
  }

  // The mean cross entropy over a batch; keeps what its gradients follow from.
  float Forward(const std::vector<Image>& images, std::span<const size_t> batch) {
    steps_of_batch_.clear();
    float loss = 0;
    for (size_t i : batch) {
      Step step{&images[i], {}, {}};
      Outputs(images[i], step.hidden, step.errors);
      const float largest = *std::max_element(step.errors.begin(), step.errors.end());
      for (float& value : step.errors) value = std::exp(value - largest);
      const float sum = std::accumulate(step.errors.begin(), step.errors.end(), 0.0F);
      const float count = static_cast<float>(batch.size());
      loss -= std::log(step.errors[images[i].digit] / sum) / count;
      for (float& value : step.errors) value /= sum * count;
      step.errors[images[i].digit] -= 1 / count;
      steps_of_batch_.push_back(step);
    }
    return loss;
  }

  // The backward pass; `ready(i)` when the gradient of parameter i is complete, the last layer's first.
  template <typename Ready>
  void Backward(Ready ready) {
    for (Vector& gradient : gradients) std::fill(gradient.begin(), gradient.end(), 0.0F);
    for (const Step& step : steps_of_batch_) AddOuter(step.hidden, step.errors, gradients[2], gradients[3]);
    ready(3), ready(2);
    for (const Step& step : steps_of_batch_) {
      std::array<float, kHidden> errors{};
      for (size_t i = 0; i < kHidden; ++i) {
        for (size_t j = 0; step.hidden[i] > 0 && j < kDigits; ++j) {
          errors[i] += parameters[2][i * kDigits + j] * step.errors[j];
        }
      }
      AddOuter(step.image->pixels, errors, gradients[0], gradients[1]);
    }
    ready(1), ready(0);
  }

  // One step of Adam.
  void Update() {
    ++steps_;
    const float first = 1 - std::pow(0.9F, static_cast<float>(steps_));
    const float second = 1 - std::pow(0.999F, static_cast<float>(steps_));
    for (size_t p = 0; p < parameters.size(); ++p) {
      for (size_t i = 0; i < parameters[p].size(); ++i) {
        const float gradient = gradients[p][i];
        means_[p][i] = 0.9F * means_[p][i] + 0.1F * gradient;
        squares_[p][i] = 0.999F * squares_[p][i] + 0.001F * gradient * gradient;
        parameters[p][i] -= kLearningRate * (means_[p][i] / first) / (std::sqrt(squares_[p][i] / second) + 1e-8F);
      }
    }
  }

  double Accuracy(const std::vector<Image>& images) const {
    const auto correct = std::count_if(images.begin(), images.end(), [this](const Image& image) {
      std::array<float, kHidden> hidden;
      std::array<float, kDigits> outputs;
      Outputs(image, hidden, outputs);
      return std::max_element(outputs.begin(), outputs.end()) - outputs.begin() == static_cast<ptrdiff_t>(image.digit);
    });
    return static_cast<double>(correct) / static_cast<double>(images.size());
  }

  std::vector<Vector> parameters;
  std::vector<Vector> gradients;

 private:
  struct Step {
    const Image* image;
    std::array<float, kHidden> hidden;
    std::array<float, kDigits> errors;
  };

  void Outputs(const Image& image, std::span<float> hidden, std::span<float> outputs) const {
    Affine(image.pixels, parameters[0], parameters[1], hidden);
    for (float& value : hidden) value = std::max(value, 0.0F);
    Affine(hidden, parameters[2], parameters[3], outputs);
  }

  std::vector<Step> steps_of_batch_;
  std::vector<Vector> means_;
  std::vector<Vector> squares_;
  int steps_ = 0;
};

double Seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

void Train(int epochs, const std::string& file) {
  std::vector<Image> test = ReadImages(file);
  const std::vector<Image> train(test.begin() + static_cast<ptrdiff_t>(test.size() / 5), test.end());
  test.resize(test.size() / 5);  // the first fifth is for the test

  byteps::Session session;  // [1] join the job
  const bps_info job = session.Info();
  const size_t workers = static_cast<size_t>(job.size);

  // The first weights differ, so that only [2] makes them equal.
  Network network(Random(kSeed + static_cast<uint64_t>(job.rank)));
  std::vector<byteps::TensorOf<float>> tensors;
  for (size_t i = 0; i < network.parameters.size(); ++i) {
    Vector& parameter = network.parameters[i];
    tensors.push_back(
        session.Declare<float>("parameter." + std::to_string(i), {static_cast<int64_t>(parameter.size())}));
    session.Broadcast(tensors[i], parameter, /*root=*/0).Wait();  // [2] start from the same weights
  }
  const byteps::TensorOf<float> loss_tensor = session.Declare<float>("loss", {1});

  const size_t batch_size = std::max<size_t>(1, kBatchSize / workers);
  const size_t steps = train.size() / (batch_size * workers);
  const double start = Seconds();
  double accuracy = 0;
  for (int epoch = 1; epoch <= epochs; ++epoch) {
    std::vector<size_t> order(train.size());
    std::iota(order.begin(), order.end(), size_t{0});
    Random random(kSeed + static_cast<uint64_t>(epoch));  // the same order on all workers
    for (size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[random.Next() % (i + 1)]);
    std::vector<size_t> mine;  // [3] each takes its part
    for (size_t i = static_cast<size_t>(job.rank); i < order.size(); i += workers) mine.push_back(order[i]);

    const double epoch_start = Seconds();
    std::array<float, 1> loss = {0};
    for (size_t step = 0; step < steps; ++step) {
      loss[0] +=
          network.Forward(train, std::span(mine).subspan(step * batch_size, batch_size)) / static_cast<float>(steps);
      // [4] average the gradients over all workers: those of the last layer travel while the first one's are computed
      byteps::Group in_flight;
      network.Backward([&](size_t i) {
        in_flight.Add(session.PushPull(tensors[i], network.gradients[i], byteps::Op::kAverage,
                                       {.priority = -static_cast<int64_t>(i)}));
      });
      in_flight.Wait();
      network.Update();
    }
    const double seconds = Seconds() - epoch_start;

    session.PushPull(loss_tensor, loss, byteps::Op::kAverage).Wait();  // [5] the mean over all workers
    accuracy = network.Accuracy(test);
    if (job.rank == 0) {
      std::printf("epoch %2d/%d  loss %.4f  test accuracy %.4f  %.0f samples/s\n", epoch, epochs, loss[0], accuracy,
                  static_cast<double>(steps * batch_size * workers) / seconds);
      std::fflush(stdout);
    }
  }
  if (job.rank == 0) {
    std::printf("digits: test accuracy %.4f in %.1f s, %d workers, %d servers, transport %s, scheduler %s\n", accuracy,
                Seconds() - start, job.size, job.num_servers, session.transport().c_str(), session.scheduler().c_str());
  }
  session.Shutdown();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    Train(argc > 1 ? std::stoi(argv[1]) : 30, argc > 2 ? argv[2] : "examples/data/digits.bin");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "digits: %s\n", error.what());
    return 1;
  }
}
