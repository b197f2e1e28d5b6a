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
  explicit Running(const EngineOperation& operation) : of(operation), input(of.input) {
    if (of.output != of.input) output.emplace(of.output);
  }

  const EngineOperation of;  // whose arrays may be gone from Python
  const Array input;
  std::optional<Array> output;  // none: the input
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

int32_t CollectiveKind(Kind kind) {
  switch (kind) {
    case Kind::kAllGather:
      return BPS_ALL_GATHER;
    case Kind::kAllToAll:
      return BPS_ALL_TO_ALL;
    case Kind::kReduceScatter:
      return BPS_REDUCE_SCATTER;
    case Kind::kSetBroadcast:
      return BPS_BROADCAST;
    default:
      return BPS_ALL_REDUCE;
  }
}

void RunCollective(std::unique_ptr<Running> running, const TensorSpec& tensor, const void* input, void* output) {
  Running* const raw = running.release();
  const EngineOperation& of = raw->of;
  binding::CollectiveSpec spec{CollectiveKind(of.kind), tensor, input};
  if (of.brought == nullptr) {
    spec.output = output;
    spec.output_bytes = BytesOf(raw->output ? *raw->output : raw->input);
  }
  (of.kind == Kind::kSetBroadcast ? spec.root : spec.op) = of.argument;
  spec.priority = of.priority;
  spec.splits = of.splits;
  spec.ranks = of.ranks;
  spec.prescale = of.prescale;
  spec.postscale = of.postscale;
  // The tensor's name and shape are those of `raw`, which may be gone when this returns.
  binding::Collective(TheSession(), spec, [raw](const Outcome& outcome, binding::CollectiveResult result) {
    if (outcome.ok() && raw->of.brought != nullptr) *raw->of.brought = std::move(result);
    End(std::unique_ptr<Running>(raw), outcome);
  });
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
  const EngineOperation& of = running->of;
  const TensorSpec tensor{of.name.c_str(), array.dtype(), array.shape().data(),
                          static_cast<int32_t>(array.shape().size()), of.kind == Kind::kAddToServers};
  const bool reduces = of.kind == Kind::kPushPull || of.kind == Kind::kAddToServers;
  if (!reduces && of.kind != Kind::kBroadcast) {
    RunCollective(std::move(running), tensor, input, output);
    return;
  }
  Running* const raw = running.release();
  const auto done = [raw](const Outcome& outcome) { End(std::unique_ptr<Running>(raw), outcome); };
  // As in RunCollective.
  if (reduces) {
    binding::PushPull(TheSession(), tensor, input, output, of.argument, of.priority, done);
  } else {
    binding::Broadcast(TheSession(), tensor, input, output, of.argument, of.priority, done);
  }
}

}  // namespace

void Push(const EngineOperation& operation) {
  auto running = std::make_unique<Running>(operation);
  const bool keeps_shape = operation.brought == nullptr && operation.kind != Kind::kReduceScatter;
  if (running->output && keeps_shape) {
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
