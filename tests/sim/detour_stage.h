// detour_stage.h - a stage that hands on other memory, and other bytes in it: what a codec or a copy out of a device
// does.
//
//     options.stages.push_back({"", [](uint64_t) { return std::make_unique<DetourStage>(); }});
//
// The elements of a part travel in reverse order, those of a broadcast with all bits flipped, too.
#ifndef BYTEPS_TESTS_SIM_DETOUR_STAGE_H_
#define BYTEPS_TESTS_SIM_DETOUR_STAGE_H_

#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "core/worker/tensor/relay_stage.h"

namespace byteps {

class DetourStage : public RelayStage {
 public:
  const char* name() const override { return "detour"; }

  void Begin(Time now, Operation* operation, const Areas& areas, PartRange range) override {
    Way& way = ways_[operation->id];
    way.outer = areas;
    way.source.resize(areas.source.bytes);
    way.target.resize(areas.target.bytes);
    Areas own = areas;
    own.source.address = way.source.data();
    own.target.address = way.target.data();
    own.source_buffer = own.target_buffer = nullptr;
    next()->Begin(now, operation, own, range);
  }
  void Push(Time now, Operation* operation, uint32_t part, const Payload& source, const Payload& target) override {
    Way& way = ways_.at(operation->id);
    Payload from = source, to = target;
    from.address = way.source.data() + (source.address - way.outer.source.address);
    to.address = way.target.data() + (target.address - way.outer.target.address);
    Encode(*operation, source, from.address);
    way.targets[part] = target;
    next()->Push(now, operation, part, from, to);
  }
  void Drop(Operation* operation) override {
    next()->Drop(operation);
    ways_.erase(operation->id);
  }
  void OnPartHome(Operation* operation, uint32_t part, const Payload& result) override {
    const Payload& target = ways_.at(operation->id).targets.at(part);
    Encode(*operation, result, target.address);
    sink_->OnPartHome(operation, part, target);
  }
  void OnStageDone(Operation* operation, const absl::Status& outcome) override {
    ways_.erase(operation->id);
    sink_->OnStageDone(operation, outcome);
  }

 private:
  struct Way {
    Areas outer;
    std::vector<std::byte> source, target;
    std::map<uint32_t, Payload> targets;
  };

  // Its own inverse.
  static void Encode(const Operation& operation, const Payload& from, std::byte* to) {
    if (from.bytes == 0) return;
    const uint64_t size = from.bytes / from.elements;
    for (uint64_t i = 0; i < from.elements; ++i) {
      std::memcpy(to + (from.elements - 1 - i) * size, from.address + i * size, size);
    }
    if (operation.asked.kind != wire::Operation::kBroadcast) return;
    for (uint64_t i = 0; i < from.bytes; ++i) to[i] = ~to[i];
  }

  std::map<uint64_t, Way> ways_;
};

}  // namespace byteps

#endif  // BYTEPS_TESTS_SIM_DETOUR_STAGE_H_
