#include "frameworks/mxnet/native/engine_operation.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>

#include "abi/byteps.h"
#include "frameworks/common/attached_session.h"
#include "frameworks/common/collective.h"
#include "frameworks/common/operation.h"
#include "frameworks/mxnet/native/array.h"
#include "frameworks/mxnet/native/completion.h"

namespace byteps::mxnet {
namespace {

using Kind = EngineOperation::Kind;
using binding::Outcome;
using binding::TensorSpec;
using binding::TheSession;

constexpr Context kHost{1, 0};
constexpr int kPrioritized = 3;  // mxnet::FnProperty::kCPUPrioritized

// From Push until the operation has ended.
struct Running {
  explicit Running(const EngineOperation& of)
      : kind(of.kind), input(of.input), name(of.name), argument(of.argument), priority(of.priority), ranks(of.ranks) {
    if (of.output != of.input) output.emplace(of.output);
  }

  const Kind kind;
  const Array input;
  std::optional<Array> output;  // none: the input
  const std::string name;
  const int32_t argument;
  const int64_t priority;
  const std::vector<int32_t> ranks;
  Completion completion;
};

void End(std::unique_ptr<Running> running, const Outcome& outcome) {
  const Completion completion = running->completion;
  // Before others are told: what the arrays hold on to is theirs then.
  running.reset();
  if (outcome.ok()) {
    completion.Succeed();
  } else {
    completion.Fail(outcome.message);
  }
}

uint64_t BytesOf(const Array& array) {
  const uint64_t bits = array.dtype() >> 8 & 0xFF;
  uint64_t elements = 1;
  for (const int64_t extent : array.shape()) elements *= static_cast<uint64_t>(extent);
  return elements * bits / 8;
}

// On a thread of the engine's, once the input is there and the output may be written.
void Run(void*, void* callback, void* parameter) {
  std::unique_ptr<Running> running(static_cast<Running*>(parameter));
  running->completion = Completion(callback);
  const void* input = nullptr;
  void* output = nullptr;
  try {
    input = running->input.Data();
    output = running->output ? running->output->Data() : running->input.Data();
  } catch (const std::runtime_error& error) {
    End(std::move(running), {BPS_INTERNAL, error.what()});
    return;
  }
  const Array& array = running->input;
  const TensorSpec tensor{running->name.c_str(), array.dtype(), array.shape().data(),
                          static_cast<int32_t>(array.shape().size()), running->kind == Kind::kAddToServers};
  Running* const raw = running.release();
  const auto done = [raw](const Outcome& outcome) { End(std::unique_ptr<Running>(raw), outcome); };
  // The tensor's name and shape are those of `raw`, which may be gone when these return.
  if (raw->kind == Kind::kPushPull || raw->kind == Kind::kAddToServers) {
    binding::PushPull(TheSession(), tensor, input, output, raw->argument, raw->priority, done);
    return;
  }
  if (raw->kind == Kind::kBroadcast) {
    binding::Broadcast(TheSession(), tensor, input, output, raw->argument, raw->priority, done);
    return;
  }
  const bool reduces = raw->kind == Kind::kAllReduce;
  binding::CollectiveSpec spec{reduces ? BPS_ALL_REDUCE : BPS_BROADCAST, tensor, input};
  spec.output = output;
  spec.output_bytes = BytesOf(array);
  (reduces ? spec.op : spec.root) = raw->argument;
  spec.priority = raw->priority;
  spec.ranks = raw->ranks;
  binding::Collective(TheSession(), spec,
                      [done](const Outcome& outcome, const binding::CollectiveResult&) { done(outcome); });
}

}  // namespace

void Push(const EngineOperation& operation) {
  auto running = std::make_unique<Running>(operation);
  if (running->output) {
    if (running->output->dtype() != running->input.dtype() || running->output->shape() != running->input.shape()) {
      throw std::runtime_error("the output has another shape or data type than the input");
    }
  }
  NDArrayHandle read[] = {operation.input};
  NDArrayHandle written[] = {operation.output, operation.turn};
  const int priority = static_cast<int>(
      std::clamp<int64_t>(operation.priority, std::numeric_limits<int>::min(), std::numeric_limits<int>::max()));
  const CApi& api = TheCApi();
  if (api.MXEnginePushAsyncND(Run, running.get(), nullptr, &kHost, read, running->output ? 1 : 0, written, 2,
                              &kPrioritized, priority, "BytePS", /*wait=*/false) != 0) {
    throw std::runtime_error(api.MXGetLastError());
  }
  // Run has it, or will.
  static_cast<void>(running.release());
}

}  // namespace byteps::mxnet
