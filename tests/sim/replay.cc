#include "tests/sim/replay.h"

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <limits>
#include <queue>
#include <sstream>
#include <utility>

#include "absl/status/status.h"

namespace byteps {
namespace {

double Seconds(Time span) { return static_cast<double>(span) * 1e-9; }

// Layers by when their gradients are ready.
std::vector<uint32_t> ByReady(const std::vector<Layer>& layers) {
  std::vector<uint32_t> order(layers.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return layers[a].ready < layers[b].ready; });
  return order;
}

// A worker's training loop: computes by waiting, hands in gradients, waits for new values.
class Trainer {
 public:
  Trainer(SimulatedJob* job, uint32_t rank, const Model* model, int steps, bool tell_waits)
      : job_(job), rank_(rank), tell_waits_(tell_waits) {
    const std::vector<uint32_t> by_ready = ByReady(model->layers);
    for (int step = 0; step < steps; ++step) {
      actions_.push_back({Action::kMark, 0, 0});
      double at = 0;
      for (const uint32_t i : by_ready) {
        actions_.push_back({Action::kCompute, model->layers[i].ready - at, 0});
        actions_.push_back({Action::kHandIn, 0, i});
        at = model->layers[i].ready;
      }
      actions_.push_back({Action::kCompute, model->backward - at, 0});
      at = 0;
      for (uint32_t i = 0; i < model->layers.size(); ++i) {
        actions_.push_back({Action::kCompute, model->layers[i].begins - at, 0});
        actions_.push_back({Action::kWait, 0, i});
        at = model->layers[i].begins;
      }
      actions_.push_back({Action::kCompute, model->forward - at, 0});
    }
    actions_.push_back({Action::kMark, 0, 0});
    model_ = model;
    calls_.resize(model->layers.size());
  }

  void Advance() {
    while (next_ < actions_.size() && !failed_) {
      const Time now = job_->fabric().now();
      if (now < busy_until_) return;
      const Action& action = actions_[next_];
      if (action.kind == Action::kCompute) {
        busy_until_ = now + static_cast<Time>(action.seconds * 1e9);
        job_->fabric().Timer(busy_until_, [] {});
      } else if (action.kind == Action::kHandIn) {
        Ask ask;
        ask.name = model_->layers[action.layer].name;
        ask.shape = {static_cast<int64_t>(model_->layers[action.layer].elements)};
        ask.input.assign(model_->layers[action.layer].elements * sizeof(float), std::byte{0});
        ask.priority = -static_cast<int32_t>(action.layer);
        absl::Status refused;
        calls_[action.layer] = job_->worker(rank_).Submit(std::move(ask), &refused);
        if (calls_[action.layer] == nullptr) return Fail(refused.ToString());
      } else if (action.kind == Action::kWait) {
        if (!calls_[action.layer]->ended()) {
          if (waiting_since_ == 0) waiting_since_ = now;
          return;
        }
        if (!calls_[action.layer]->ok()) return Fail(calls_[action.layer]->outcome().ToString());
        if (tell_waits_ && waiting_since_ != 0 && now - waiting_since_ > kMillisecond) {
          std::printf("  %.3f s into the step: waited %.3f s for %s\n", Seconds(now - marks_.back()),
                      Seconds(now - waiting_since_), model_->layers[action.layer].name.c_str());
        }
        waiting_since_ = 0;
      } else {
        marks_.push_back(now);
        job_->worker(rank_).Forget();
      }
      ++next_;
    }
  }
  bool done() const { return next_ == actions_.size(); }
  bool failed() const { return failed_; }
  const std::vector<Time>& marks() const { return marks_; }

 private:
  struct Action {
    enum Kind { kCompute, kHandIn, kWait, kMark } kind;
    double seconds;
    uint32_t layer;
  };
  void Fail(const std::string& why) {
    std::fprintf(stderr, "worker %u: %s\n", rank_, why.c_str());
    failed_ = true;
  }

  SimulatedJob* job_;
  uint32_t rank_;
  bool tell_waits_;
  const Model* model_ = nullptr;
  std::vector<Action> actions_;
  std::vector<Call*> calls_;
  std::vector<Time> marks_;
  size_t next_ = 0;
  bool failed_ = false;
  Time busy_until_ = 0;
  Time waiting_since_ = 0;
};

}  // namespace

uint64_t Model::bytes() const {
  uint64_t sum = 0;
  for (const Layer& layer : layers) sum += layer.bytes();
  return sum;
}

double Model::Bound(double seconds_per_byte) const {
  struct Flow {
    uint32_t layer;
    double left;
    bool operator<(const Flow& other) const { return layer > other.layer; }  // less urgent
  };
  const std::vector<uint32_t> order = ByReady(layers);
  std::priority_queue<Flow> waiting;
  double now = 0, end = backward + forward;
  for (size_t taken = 0; taken < order.size() || !waiting.empty();) {
    if (waiting.empty()) now = std::max(now, layers[order[taken]].ready);
    for (; taken < order.size() && layers[order[taken]].ready <= now; ++taken) {
      waiting.push({order[taken], static_cast<double>(layers[order[taken]].bytes()) * seconds_per_byte});
    }
    Flow best = waiting.top();
    waiting.pop();
    const double until = taken < order.size() ? layers[order[taken]].ready : std::numeric_limits<double>::infinity();
    if (now + best.left > until) {  // a more urgent one may come
      best.left -= until - now;
      waiting.push(best);
      now = until;
      continue;
    }
    now += best.left;
    end = std::max(end, now + forward - layers[best.layer].begins);
  }
  return end;
}

Model ReadModel(const std::string& path, double shrink, double compute) {
  Model model;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word == "forward_ms") words >> model.forward;
    if (word == "backward_ms") words >> model.backward;
    if (word != "tensor") continue;
    Layer layer;
    std::string shape;
    words >> layer.name >> shape >> layer.begins >> layer.ready;
    double elements = 1;
    std::istringstream extents(shape);
    for (std::string extent; std::getline(extents, extent, 'x');) elements *= std::stod(extent);
    layer.elements = static_cast<size_t>(std::max(1.0, elements / shrink));
    model.layers.push_back(layer);
  }
  const double factor = compute > 0 ? compute / (model.forward + model.backward) : 1e-3;
  model.forward *= factor;
  model.backward *= factor;
  for (Layer& layer : model.layers) {
    layer.begins *= factor;
    layer.ready *= factor;
  }
  std::stable_sort(model.layers.begin(), model.layers.end(),
                   [](const Layer& a, const Layer& b) { return a.begins < b.begins; });
  return model;
}

std::vector<Time> RunSteps(SimulatedJob* job, const Model& model, int steps, bool tell_waits) {
  std::vector<Trainer> trainers;
  for (uint32_t rank = 0; rank < job->workers(); ++rank) {
    trainers.emplace_back(job, rank, &model, steps, tell_waits && rank == 0);
  }
  bool failed = false;
  const bool reached = job->RunUntil(
      [&] {
        bool done = true;
        for (Trainer& trainer : trainers) {
          trainer.Advance();
          done = done && trainer.done();
          failed = failed || trainer.failed();
        }
        return done || failed;
      },
      10'000 * kSecond);
  return reached && !failed ? trainers[0].marks() : std::vector<Time>();
}

}  // namespace byteps
