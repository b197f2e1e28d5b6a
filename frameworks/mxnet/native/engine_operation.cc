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
#include "frameworks/mxnet/native/rounds.h"

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

// What the engine has of an operation until it has done with it, and what gives its round up as long as that goes on.
struct Pushed {
  std::unique_ptr<Running> running;  // until it runs
  Rounds* rounds = nullptr;
  uint64_t number = 0;
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

// The tensor's name and shape are those of `running`.
TensorSpec TensorOf(const Running& running) {
  const Array& array = running.input;
  return {running.of.name.c_str(), array.dtype(), array.shape().data(), static_cast<int32_t>(array.shape().size()),
          running.of.kind == Kind::kAddToServers};
}

binding::CollectiveSpec CollectiveOf(const EngineOperation& of, const TensorSpec& tensor, const void* input) {
  binding::CollectiveSpec spec{CollectiveKind(of.kind), tensor, input};
  (of.kind == Kind::kSetBroadcast ? spec.root : spec.op) = of.argument;
  spec.priority = of.priority;
  spec.splits = of.splits;
  spec.ranks = of.ranks;
  spec.prescale = of.prescale;
  spec.postscale = of.postscale;
  return spec;
}

void RunCollective(std::unique_ptr<Running> running, const TensorSpec& tensor, const void* input, void* output) {
  Running* const raw = running.release();
  const EngineOperation& of = raw->of;
  binding::CollectiveSpec spec = CollectiveOf(of, tensor, input);
  if (of.brought == nullptr) {
    spec.output = output;
    spec.output_bytes = BytesOf(raw->output ? *raw->output : raw->input);
  }
  // The tensor's name and shape are those of `raw`, which may be gone when this returns.
  binding::Collective(TheSession(), spec, [raw](const Outcome& outcome, binding::CollectiveResult result) {
    if (outcome.ok() && raw->of.brought != nullptr) *raw->of.brought = std::move(result);
    End(std::unique_ptr<Running>(raw), outcome);
  });
}

// On a thread of the engine's, or of the library.
void Start(std::unique_ptr<Running> running) {
  const void* input = nullptr;
  void* output = nullptr;
  try {
    input = running->input.Data();
    output = running->output ? running->output->Data() : running->input.Data();
  } catch (const std::runtime_error& error) {
    End(std::move(running), {BPS_INTERNAL, error.what()});
    return;
  }
  const EngineOperation& of = running->of;
  const TensorSpec tensor = TensorOf(*running);
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

// On a thread of the engine's, once the input is there and the output may be written.
void Run(void*, void* callback, void* parameter) {
  const std::shared_ptr<Pushed>& pushed = *static_cast<std::shared_ptr<Pushed>*>(parameter);
  // (A std::function can be copied, and so holds no unique_ptr.)
  Running* const running = pushed->running.release();
  running->completion = Completion(callback);
  pushed->rounds->Run(pushed->number, [running] { Start(std::unique_ptr<Running>(running)); });
}

// The engine leaves it out.
void GiveUpRound(const Running& running, binding::Done ended) {
  constexpr const char* kReason = "what computes its input has failed there";
  const EngineOperation& of = running.of;
  const TensorSpec tensor = TensorOf(running);
  switch (of.kind) {
    case Kind::kAddToServers:
      return ended({});  // no rank waits for another
    case Kind::kPushPull:
      return binding::GiveUpPushPull(TheSession(), tensor, of.argument, kReason, std::move(ended));
    case Kind::kBroadcast:
      return binding::GiveUpBroadcast(TheSession(), tensor, of.argument, kReason, std::move(ended));
    default:
      return binding::GiveUp(TheSession(), CollectiveOf(of, tensor, nullptr), kReason, std::move(ended));
  }
}

// The engine has done with it.
void Drop(void* parameter) {
  const std::unique_ptr<std::shared_ptr<Pushed>> pushed(static_cast<std::shared_ptr<Pushed>*>(parameter));
  (*pushed)->rounds->Drop((*pushed)->number);
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
  const int num_read = running->output ? 1 : 0;
  const auto pushed = std::make_shared<Pushed>();
  pushed->rounds = &Rounds::Of(operation.turn);
  pushed->running = std::move(running);
  pushed->number =
      pushed->rounds->Push([pushed](binding::Done ended) { GiveUpRound(*pushed->running, std::move(ended)); });
  // The engine's from here on: it calls Drop in the end.
  auto* const parameter = new std::shared_ptr<Pushed>(pushed);
  if (api.MXEnginePushAsyncND(Run, parameter, Drop, &kHost, read, num_read, written, 2, &kPrioritized, priority,
                              "BytePS",
                              /*wait=*/false) != 0) {
    throw std::runtime_error(api.MXGetLastError());
  }
}

}  // namespace byteps::mxnet
