// widening_stage.h - a stage behind which float32 travels as float64: another data type, and twice the bytes.
#ifndef BYTEPS_TESTS_SIM_WIDENING_STAGE_H_
#define BYTEPS_TESTS_SIM_WIDENING_STAGE_H_

#include <map>
#include <vector>

#include "core/worker/tensor/relay_stage.h"

namespace byteps {

class WideningStage : public RelayStage {
 public:
  const char* name() const override { return "widening"; }

  void Begin(Time now, Operation* operation, const Areas& areas, PartRange range) override {
    Way& way = ways_[operation->id];
    way.outer = areas;
    way.memory.resize(areas.source.elements);
    Areas own;
    own.source = own.target = Wide(areas.source, way.memory.data());
    next()->Begin(now, operation, own, range);
  }
  void Push(Time now, Operation* operation, uint32_t part, const Payload& source, const Payload& target) override {
    Way& way = ways_.at(operation->id);
    const auto* numbers = reinterpret_cast<const float*>(source.address);
    double* wide = way.memory.data() + (numbers - reinterpret_cast<const float*>(way.outer.source.address));
    std::copy(numbers, numbers + source.elements, wide);
    way.targets[part] = target;
    const Payload payload = Wide(source, wide);
    next()->Push(now, operation, part, payload, payload);
  }
  void Drop(Operation* operation) override {
    next()->Drop(operation);
    ways_.erase(operation->id);
  }
  void OnPartHome(Operation* operation, uint32_t part, const Payload& result) override {
    const Payload& target = ways_.at(operation->id).targets.at(part);
    const auto* wide = reinterpret_cast<const double*>(result.address);
    std::copy(wide, wide + result.elements, reinterpret_cast<float*>(target.address));
    sink_->OnPartHome(operation, part, target);
  }
  void OnStageDone(Operation* operation, const absl::Status& outcome) override {
    ways_.erase(operation->id);
    sink_->OnStageDone(operation, outcome);
  }

 private:
  struct Way {
    Areas outer;
    std::vector<double> memory;
    std::map<uint32_t, Payload> targets;
  };

  static Payload Wide(const Payload& narrow, double* memory) {
    Payload wide = narrow;
    wide.address = reinterpret_cast<std::byte*>(memory);
    wide.dtype = BPS_FLOAT64;
    wide.bytes = narrow.elements * sizeof(double);
    return wide;
  }

  std::map<uint64_t, Way> ways_;
};

}  // namespace byteps

#endif  // BYTEPS_TESTS_SIM_WIDENING_STAGE_H_
