#include "tests/sim/exchanges.h"

#include "core/reduce/dtype.h"
#include "core/reduce/reduce.h"
#include "gtest/gtest.h"

namespace byteps {
namespace {

std::vector<std::byte> BytesOf(const std::vector<float>& numbers) {
  const auto* begin = reinterpret_cast<const std::byte*>(numbers.data());
  return std::vector<std::byte>(begin, begin + numbers.size() * sizeof(float));
}

std::vector<std::byte> Folded(const Reduction& reduction, const std::vector<std::vector<std::byte>>& inputs,
                              const std::vector<uint32_t>& groups) {
  std::vector<const void*> pointers;
  for (const auto& input : inputs) pointers.push_back(input.data());
  std::vector<std::byte> result(inputs[0].size());
  Reduce(reduction, pointers, groups, result.data(), result.size() / DtypeSize(reduction.dtype));
  return result;
}

}  // namespace

void Exchanges::Submit(uint32_t worker, const Ask& ask, const std::vector<std::byte>& expected) {
  Call* call = job_->worker(worker).Submit(ask);
  ASSERT_NE(call, nullptr) << ask.name;
  calls_.push_back(call);
  expected_.push_back(expected);
  sim::Random& random = job_->fabric().random();
  if (pauses_ > 0 && random.Chance(pauses_)) job_->RunFor(random.Between(0, 500) * 1000);
}

void Exchanges::Sum(const std::string& name, size_t size) {
  std::vector<std::vector<float>> numbers;
  std::vector<std::vector<std::byte>> inputs;
  for (uint32_t w = 0; w < job_->workers(); ++w) {
    numbers.push_back(job_->Numbers(size));
    inputs.push_back(BytesOf(numbers.back()));
  }
  const JobOptions& options = job_->options();
  const bool grouped = options.groups == "host" && !options.hosts.empty();
  const std::vector<std::byte> sum =
      grouped ? Folded({BPS_FLOAT32, BPS_SUM}, inputs, options.hosts) : BytesOf(SimulatedJob::Sum(numbers));
  for (uint32_t w = 0; w < job_->workers(); ++w) {
    Ask ask = FloatAsk(name, size);
    ask.input = inputs[w];
    Submit(w, ask, sum);
  }
}

void Exchanges::EveryDataTypeAndReduction(const std::vector<int64_t>& shape, const std::vector<uint32_t>& groups) {
  size_t elements = 1;
  for (const int64_t extent : shape) elements *= static_cast<size_t>(extent);
  for (const uint32_t dtype :
       {BPS_FLOAT32, BPS_FLOAT64, BPS_FLOAT16, BPS_BFLOAT16, BPS_INT8, BPS_UINT8, BPS_INT32, BPS_INT64}) {
    for (const int32_t reduction : {BPS_SUM, BPS_AVERAGE, BPS_MIN, BPS_MAX, BPS_PRODUCT}) {
      const size_t bytes = elements * DtypeSize(dtype);
      std::vector<std::vector<std::byte>> inputs(job_->workers(), std::vector<std::byte>(bytes));
      for (auto& input : inputs) {
        for (std::byte& byte : input) byte = static_cast<std::byte>(job_->fabric().random().Next() & 0x3f);
      }
      const std::vector<std::byte> result = Folded({dtype, reduction}, inputs, groups);
      for (uint32_t w = 0; w < job_->workers(); ++w) {
        Ask ask;
        ask.name = std::to_string(dtype) + "/" + std::to_string(reduction);
        ask.dtype = dtype;
        ask.shape = shape;
        ask.input = inputs[w];
        ask.reduction = reduction;
        Submit(w, ask, result);
      }
    }
  }
}

void Exchanges::Broadcasts(const std::vector<size_t>& sizes) {
  for (uint32_t root = 0; root < job_->workers(); ++root) {
    for (const size_t size : sizes) {
      const std::vector<std::byte> value = BytesOf(job_->Numbers(size));
      for (uint32_t w = 0; w < job_->workers(); ++w) {
        Ask ask = FloatAsk("b" + std::to_string(root) + "." + std::to_string(size), size);
        ask.kind = wire::Operation::kBroadcast;
        ask.root = static_cast<int32_t>(root);
        if (w == root) ask.input = value;
        Submit(w, ask, value);
      }
    }
  }
}

void Exchanges::Check() {
  if (::testing::Test::HasFatalFailure()) return;
  ASSERT_TRUE(job_->RunUntilEnded(calls_));
  for (size_t i = 0; i < calls_.size(); ++i) {
    ASSERT_TRUE(calls_[i]->ok()) << calls_[i]->name << ": " << calls_[i]->outcome();
    ASSERT_TRUE(calls_[i]->output == expected_[i]) << calls_[i]->name;
  }
}

Ask FloatAsk(const std::string& name, size_t elements) {
  Ask ask;
  ask.name = name;
  ask.shape = {static_cast<int64_t>(elements)};
  ask.input.resize(elements * 4);
  ask.timeout = 60 * kSecond;  // what hangs says whom it waits for
  return ask;
}

void ExpectGoesOn(SimulatedJob* job, const std::string& name, const std::vector<size_t>& sizes) {
  for (const std::string& tensor : {name, std::string("another")}) {
    for (const size_t size : sizes) {
      Exchanges exchanges(job);
      exchanges.Sum(tensor, size);
      exchanges.Check();
    }
  }
}

}  // namespace byteps
