#include "tests/sim/collective_program.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "abi/byteps.h"
#include "core/reduce/dtype.h"
#include "core/reduce/reduce.h"
#include "core/worker/collectives/scale.h"
#include "core/worker/collectives/sparse_rows.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace byteps {
namespace {

constexpr uint32_t kDtypes[] = {BPS_INT8,    BPS_UINT8,   BPS_INT16,    BPS_INT32,     BPS_INT64,      BPS_FLOAT16,
                                BPS_FLOAT32, BPS_FLOAT64, BPS_BFLOAT16, BPS_COMPLEX64, BPS_COMPLEX128, BPS_BOOL};
constexpr CollectiveKind kKinds[] = {
    CollectiveKind::kAllReduce,     CollectiveKind::kBroadcast,      CollectiveKind::kAllGather,
    CollectiveKind::kReduceScatter, CollectiveKind::kAllToAll,       CollectiveKind::kReduce,
    CollectiveKind::kGather,        CollectiveKind::kScatter,        CollectiveKind::kSend,
    CollectiveKind::kBarrier,       CollectiveKind::kSparseAllReduce};

// So many rows for so many ranks, at random.
std::vector<int64_t> CutRows(sim::Random* random, int64_t rows, size_t ranks) {
  std::vector<int64_t> splits(ranks, 0);
  for (size_t i = 0; i + 1 < ranks; ++i) {
    splits[i] = static_cast<int64_t>(random->Below(static_cast<uint64_t>(rows) + 1));
    rows -= splits[i];
  }
  splits.back() = rows;
  return splits;
}

std::vector<int64_t> EvenRows(int64_t rows, size_t ranks) {
  std::vector<int64_t> splits;
  for (size_t i = 0; i < ranks; ++i) {
    const auto n = static_cast<int64_t>(ranks);
    splits.push_back(rows / n + (static_cast<int64_t>(i) < rows % n ? 1 : 0));
  }
  return splits;
}

}  // namespace

void CollectiveProgram::Fill(uint32_t dtype, std::vector<std::byte>* bytes) {
  // Numbers whose sums round; any bits are numbers of integers.
  const auto reals = [&](auto type) {
    using T = decltype(type);
    for (size_t at = 0; at + sizeof(T) <= bytes->size(); at += sizeof(T)) {
      const T value = static_cast<T>(static_cast<double>(random_.Between(-1000, 1000)) /
                                     static_cast<double>(1 + random_.Below(97)));
      std::memcpy(bytes->data() + at, &value, sizeof value);
    }
  };
  if (dtype == BPS_FLOAT32 || dtype == BPS_COMPLEX64) return reals(float{});
  if (dtype == BPS_FLOAT64 || dtype == BPS_COMPLEX128) return reals(double{});
  for (std::byte& each : *bytes) each = static_cast<std::byte>(random_.Below(dtype == BPS_BOOL ? 2 : 256));
  // No NaN, of which there are several.
  if (dtype != BPS_FLOAT16 && dtype != BPS_BFLOAT16) return;
  for (size_t at = 1; at < bytes->size(); at += 2) (*bytes)[at] &= std::byte{0xbb};
}

void CollectiveProgram::Draw(const std::string& name, int64_t most_rows) {
  auto operation = std::make_unique<Operation>();
  std::vector<int32_t> ranks(job_->workers());
  std::iota(ranks.begin(), ranks.end(), 0);
  if (random_.Chance(0.5)) {
    std::vector<int32_t> some;
    for (const int32_t rank : ranks) {
      if (random_.Chance(0.6)) some.push_back(rank);
    }
    if (!some.empty()) ranks = some;
  }
  const bool named = random_.Chance(0.2);
  operation->set = *ProcessSet::Make(named ? "a set" : "", ranks, job_->workers());
  Collective common;
  common.kind = kKinds[random_.Below(std::size(kKinds))];
  if (common.kind == CollectiveKind::kSend && ranks.size() < 2) common.kind = CollectiveKind::kBarrier;
  common.name = name;
  common.set = operation->set;
  common.dtype = kDtypes[random_.Below(std::size(kDtypes))];
  do {
    common.reduction = static_cast<int32_t>(random_.Below(8));
  } while (!CheckReduction(common.dtype, common.reduction).ok());
  if (common.kind == CollectiveKind::kSparseAllReduce) {
    common.reduction = common.dtype != BPS_BOOL && random_.Chance(0.5) ? BPS_AVERAGE : BPS_SUM;
    common.all_rows = static_cast<int64_t>(random_.Below(random_.Chance(0.5) ? 30 : 2000));
  }
  common.root = ranks[random_.Below(ranks.size())];
  common.tag = static_cast<int64_t>(random_.Below(3));
  common.scaled = IsReducing(common.kind) && common.kind != CollectiveKind::kSparseAllReduce &&
                  common.dtype != BPS_BOOL && random_.Chance(0.2);
  if (common.scaled) {
    common.prescale = random_.Chance(0.5) ? 0.5 : 1;
    common.postscale = random_.Chance(0.5) ? 3 : 1;
  }
  // A part of a group, which meets the same part only. (That a group is all or nothing, is of the C functions.)
  if (random_.Chance(0.2)) {
    common.group_size = static_cast<uint32_t>(1 + random_.Below(5));
    common.group_index = static_cast<uint32_t>(random_.Below(common.group_size));
  }
  common.match = random_.Below(3);
  common.priority = static_cast<int64_t>(random_.Below(3));
  common.timeout = 600 * kSecond;
  if (common.kind == CollectiveKind::kSend) {
    // Two of the set, and a set of these two.
    const size_t from = random_.Below(ranks.size());
    const size_t to = (from + 1 + random_.Below(ranks.size() - 1)) % ranks.size();
    common.name.clear();
    const int32_t pair[] = {ranks[from], ranks[to]};
    operation->set = common.set = *ProcessSet::Make("", pair, job_->workers());
    common.tag = static_cast<int64_t>(operations_.size());
    for (const int32_t rank : operation->set->ranks()) {
      Part& part = operation->parts.emplace_back();
      part.asked = common;
      part.asked.kind = rank == ranks[from] ? CollectiveKind::kSend : CollectiveKind::kReceive;
      part.asked.peer = rank == ranks[from] ? ranks[to] : ranks[from];
    }
  } else {
    operation->parts.resize(ranks.size());
    for (Part& part : operation->parts) part.asked = common;
  }
  DrawShapes(operation.get(), most_rows);
  DrawMemory(operation.get());
  Expect(operation.get());
  if (operation->parts.size() > 1 && random_.Chance(0.1)) MakeOdd(operation.get());
  operations_.push_back(std::move(operation));
}

void CollectiveProgram::DrawShapes(Operation* operation, int64_t most_rows) {
  const CollectiveKind kind = operation->parts[0].asked.kind;
  const size_t n = operation->parts.size();
  std::vector<int64_t> shape;
  const auto rows = [&]() -> int64_t {
    if (random_.Chance(0.15)) return 0;
    return static_cast<int64_t>(random_.Below(static_cast<uint64_t>(random_.Chance(0.8) ? 20 : most_rows) + 1));
  };
  const bool scalar =
      random_.Chance(0.1) && kind != CollectiveKind::kAllToAll && kind != CollectiveKind::kSparseAllReduce;
  if (!scalar) {
    shape.push_back(rows());
    for (uint64_t more = random_.Below(3); more > 0; --more) {
      shape.push_back(random_.Chance(0.05) ? 0 : static_cast<int64_t>(1 + random_.Below(4)));
    }
  }
  if (kind == CollectiveKind::kBarrier) shape = {0};
  const bool own_rows = kind == CollectiveKind::kAllGather || kind == CollectiveKind::kGather ||
                        kind == CollectiveKind::kAllToAll || kind == CollectiveKind::kScatter ||
                        kind == CollectiveKind::kSparseAllReduce;
  std::vector<int64_t> splits;
  if (kind == CollectiveKind::kReduceScatter && random_.Chance(0.5))
    splits = CutRows(&random_, scalar ? 1 : shape[0], n);
  for (Part& part : operation->parts) {
    part.asked.shape = shape;
    part.asked.splits = splits;
    if (own_rows && !scalar) part.asked.shape[0] = rows();
    const bool cuts = kind == CollectiveKind::kAllToAll || kind == CollectiveKind::kScatter;
    if (cuts && !scalar && random_.Chance(0.7)) {
      part.asked.splits = CutRows(&random_, part.asked.shape[0], n);
    } else if (kind == CollectiveKind::kAllToAll) {
      part.asked.shape[0] *= static_cast<int64_t>(n);
    }
  }
}

void CollectiveProgram::DrawMemory(Operation* operation) {
  for (Part& part : operation->parts) {
    if (part.asked.kind == CollectiveKind::kSparseAllReduce) {
      DrawRows(&part);
    } else {
      part.input.resize(part.asked.bytes());
      Fill(part.asked.dtype, &part.input);
      part.asked.input = part.input.data();
    }
    part.before = part.input;
    part.asked.request = std::make_shared<Request>(nullptr, nullptr);
    part.asked.result = std::make_shared<CollectiveResult>();
  }
}

// Some rows by their numbers, some of them twice.
void CollectiveProgram::DrawRows(Part* part) {
  Collective& asked = part->asked;
  if (asked.all_rows == 0) asked.shape[0] = 0;
  for (int64_t i = 0; i < asked.shape[0]; ++i) {
    part->indices.push_back(static_cast<int64_t>(random_.Below(static_cast<uint64_t>(asked.all_rows))));
  }
  part->input.resize(asked.elements() * DtypeSize(asked.dtype));
  Fill(asked.dtype, &part->input);
  auto packed = SparseRows::Pack(asked.dtype, asked.row_bytes(), asked.all_rows, part->indices.data(),
                                 part->input.data(), part->indices.size());
  ASSERT_TRUE(packed.ok()) << packed.status();
  asked.packed = std::make_shared<SparseRows>(*std::move(packed));
  asked.shape[0] = static_cast<int64_t>(asked.packed->count);
  asked.input = asked.packed->memory.data();
  asked.indices = std::make_shared<SparseIndices>();
}

// One rank asks for another data type of the same size, another operation, root, shape or number.
void CollectiveProgram::MakeOdd(Operation* operation) {
  const size_t odd = random_.Below(operation->parts.size());
  Collective& asked = operation->parts[odd].asked;
  operation->odd = odd;
  if (asked.kind == CollectiveKind::kBarrier || random_.Chance(0.2)) {
    ++asked.match;
  } else if (asked.group_size != 0 && random_.Chance(0.3)) {
    ++asked.group_size;
  } else if (IsReducing(asked.kind) && random_.Chance(0.5) && asked.dtype != BPS_BOOL) {
    asked.reduction = asked.reduction == BPS_SUM ? BPS_AVERAGE : BPS_SUM;
  } else if (IsRooted(asked.kind) && random_.Chance(0.5)) {
    const std::vector<int32_t>& ranks = operation->set->ranks();
    const size_t root = *operation->set->PlaceOf(asked.root);
    asked.root = ranks[(root + 1) % ranks.size()];
  } else {
    // One more dimension of one.
    if (asked.shape.empty()) asked.shape.push_back(1);
    asked.shape.push_back(1);
  }
}

void CollectiveProgram::Expect(Operation* operation) {
  const CollectiveKind kind = operation->parts[0].asked.kind;
  if (kind == CollectiveKind::kSparseAllReduce) return ExpectRows(operation);
  if (IsReducing(kind)) return ExpectReduced(operation);
  ExpectMoved(operation);
}

void CollectiveProgram::ExpectReduced(Operation* operation) {
  const Collective& asked = operation->parts[0].asked;
  std::vector<std::vector<std::byte>> inputs;
  std::vector<const void*> pointers;
  for (Part& part : operation->parts) {
    std::vector<std::byte>& input = inputs.emplace_back(part.input);
    if (asked.scaled && asked.prescale != 1) {
      Scale(asked.dtype, asked.prescale, input.data(), input.data(), asked.elements());
    }
  }
  for (const auto& input : inputs) pointers.push_back(input.data());
  std::vector<std::byte> whole(asked.bytes());
  Reduce({asked.dtype, asked.reduction}, pointers, {}, whole.data(), asked.elements());
  if (asked.scaled && asked.postscale != 1) {
    Scale(asked.dtype, asked.postscale, whole.data(), whole.data(), asked.elements());
  }
  const auto rows = static_cast<int64_t>(asked.rows());
  std::vector<int64_t> splits = asked.splits.empty() ? EvenRows(rows, operation->parts.size()) : asked.splits;
  uint64_t first = 0;
  for (size_t place = 0; place < operation->parts.size(); ++place) {
    Part& part = operation->parts[place];
    part.expected = whole;
    part.shape = asked.shape;
    if (asked.kind == CollectiveKind::kReduce && operation->set->ranks()[place] != asked.root) part.brings = false;
    if (asked.kind != CollectiveKind::kReduceScatter) continue;
    const uint64_t bytes = static_cast<uint64_t>(splits[place]) * asked.row_bytes();
    part.expected.assign(whole.begin() + static_cast<ptrdiff_t>(first),
                         whole.begin() + static_cast<ptrdiff_t>(first + bytes));
    first += bytes;
    if (part.shape.empty()) part.shape.push_back(0);
    part.shape[0] = splits[place];
  }
}

// By whole tensors.
void CollectiveProgram::ExpectRows(Operation* operation) {
  const Collective& asked = operation->parts[0].asked;
  const uint64_t row = asked.row_bytes(), rows = static_cast<uint64_t>(asked.all_rows);
  const size_t elements = row / DtypeSize(asked.dtype);
  std::vector<std::vector<std::byte>> wholes;
  std::vector<const void*> pointers;
  std::set<int64_t> numbers;
  uint64_t bytes = 0;
  for (const Part& part : operation->parts) {
    std::vector<std::byte>& whole = wholes.emplace_back(rows * row);
    std::map<int64_t, std::vector<const void*>> same;
    for (size_t i = 0; i < part.indices.size(); ++i) same[part.indices[i]].push_back(part.input.data() + i * row);
    for (const auto& [index, sources] : same) {
      numbers.insert(index);
      Reduce({asked.dtype, BPS_SUM}, sources, {}, whole.data() + static_cast<uint64_t>(index) * row, elements);
    }
    bytes += same.empty() ? 0 : (same.size() * sizeof(int64_t) + 63) / 64 * 64 + same.size() * row;
  }
  for (const auto& whole : wholes) pointers.push_back(whole.data());
  std::vector<std::byte> reduced(rows * row);
  Reduce({asked.dtype, asked.reduction}, pointers, {}, reduced.data(), rows * elements);
  for (Part& part : operation->parts) {
    part.shape = part.asked.shape;
    part.dense = bytes > 2 * rows * row;
    part.shape[0] = part.dense ? asked.all_rows : static_cast<int64_t>(numbers.size());
    if (part.dense) {
      part.expected = reduced;
      continue;
    }
    part.expected_indices.assign(numbers.begin(), numbers.end());
    for (const int64_t index : numbers) {
      const std::byte* from = reduced.data() + static_cast<uint64_t>(index) * row;
      part.expected.insert(part.expected.end(), from, from + row);
    }
  }
}

void CollectiveProgram::ExpectMoved(Operation* operation) {
  const size_t n = operation->parts.size();
  for (size_t to = 0; to < n; ++to) {
    Part& part = operation->parts[to];
    const CollectiveKind kind = part.asked.kind;
    const bool is_root = operation->set->ranks()[to] == part.asked.root;
    part.brings = kind != CollectiveKind::kBarrier && kind != CollectiveKind::kSend &&
                  (kind != CollectiveKind::kGather || is_root);
    if (!part.brings) continue;
    part.shape = part.asked.shape;
    int64_t rows = 0;
    for (size_t from = 0; from < n; ++from) {
      const Part& source = operation->parts[from];
      const bool from_root = operation->set->ranks()[from] == part.asked.root;
      if ((kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kScatter) && !from_root) continue;
      if (kind == CollectiveKind::kReceive && from == to) continue;
      uint64_t first = 0, count = source.asked.rows();
      if (kind == CollectiveKind::kAllToAll || kind == CollectiveKind::kScatter) {
        const std::vector<int64_t> splits =
            source.asked.splits.empty() ? EvenRows(static_cast<int64_t>(source.asked.rows()), n) : source.asked.splits;
        first = static_cast<uint64_t>(
            std::accumulate(splits.begin(), splits.begin() + static_cast<ptrdiff_t>(to), int64_t{0}));
        count = static_cast<uint64_t>(splits[to]);
      }
      const uint64_t row = source.asked.row_bytes();
      part.expected.insert(part.expected.end(), source.input.begin() + static_cast<ptrdiff_t>(first * row),
                           source.input.begin() + static_cast<ptrdiff_t>((first + count) * row));
      rows += static_cast<int64_t>(count);
    }
    if (kind == CollectiveKind::kBroadcast || kind == CollectiveKind::kReceive) continue;
    if (part.shape.empty()) part.shape.push_back(0);
    part.shape[0] = rows;
  }
}

void CollectiveProgram::Run(size_t operations, int64_t most_rows) {
  operations_.clear();
  for (size_t i = 0; i < operations; ++i) Draw("op" + std::to_string(i), most_rows);
  // Own memory for what comes, or the library's.
  for (const auto& operation : operations_) {
    for (Part& part : operation->parts) {
      if (!part.brings || operation->odd || part.asked.indices != nullptr || random_.Chance(0.4)) continue;
      if (part.asked.kind == CollectiveKind::kAllReduce && random_.Chance(0.5)) {
        part.asked.output = part.input.data();
        part.asked.capacity = part.input.size();
        continue;
      }
      part.output.assign(part.expected.size() + 64, std::byte{0x5a});
      part.asked.output = part.output.data();
      part.asked.capacity = part.output.size();
    }
  }
  // Every rank in an order of its own, with pauses.
  std::vector<std::vector<std::pair<size_t, size_t>>> orders(job_->workers());
  for (size_t i = 0; i < operations_.size(); ++i) {
    for (size_t place = 0; place < operations_[i]->parts.size(); ++place) {
      orders[static_cast<size_t>(operations_[i]->set->ranks()[place])].emplace_back(i, place);
    }
  }
  for (auto& order : orders) {
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random_.Below(i)]);
  }
  for (bool left = true; left;) {
    left = false;
    for (uint32_t rank = 0; rank < job_->workers(); ++rank) {
      if (orders[rank].empty()) continue;
      left = true;
      if (random_.Chance(0.3)) continue;
      const auto [i, place] = orders[rank].back();
      orders[rank].pop_back();
      Part& part = operations_[i]->parts[place];
      part.moved = part.asked;
      if (memory_ != nullptr) memory_->Move(rank, &part.moved);
      const absl::Status status = job_->worker(rank).Collect(part.moved);
      ASSERT_TRUE(status.ok()) << status;
    }
    if (random_.Chance(0.3)) job_->RunFor(static_cast<Time>(random_.Below(3000)) * 1000);
  }
  ASSERT_TRUE(job_->RunUntil([&] {
    return std::all_of(operations_.begin(), operations_.end(), [](const auto& operation) {
      return std::all_of(operation->parts.begin(), operation->parts.end(),
                         [](const Part& part) { return part.asked.request->ended(); });
    });
  }));
  for (const auto& operation : operations_) {
    for (const Part& part : operation->parts) {
      if (memory_ != nullptr && part.asked.request->outcome().ok()) memory_->Bring(part.moved, part.asked);
    }
    Check(*operation);
  }
}

void CollectiveProgram::Check(const Operation& operation) {
  for (size_t place = 0; place < operation.parts.size(); ++place) {
    const Part& part = operation.parts[place];
    const std::string what = part.asked.Describe() + " on rank " + std::to_string(operation.set->ranks()[place]);
    const absl::Status outcome = part.asked.request->outcome();
    if (operation.odd) {
      EXPECT_EQ(outcome.code(), absl::StatusCode::kFailedPrecondition) << what << ": " << outcome;
      EXPECT_THAT(std::string(outcome.message()), ::testing::HasSubstr("the ranks do not agree")) << what;
      continue;
    }
    ASSERT_TRUE(outcome.ok()) << what << ": " << outcome;
    const CollectiveResult& result = *part.asked.result;
    if (part.asked.output != part.input.data()) {
      EXPECT_EQ(part.input, part.before) << what;
    }
    if (!part.brings) {
      EXPECT_EQ(result.bytes, 0u) << what;
      continue;
    }
    ASSERT_EQ(result.bytes, part.expected.size()) << what;
    EXPECT_TRUE(std::equal(part.expected.begin(), part.expected.end(), result.data)) << what;
    EXPECT_EQ(result.shape, part.shape) << what;
    if (const auto& indices = part.asked.indices; indices != nullptr) {
      EXPECT_EQ(indices->dense, part.dense) << what;
      EXPECT_EQ(std::vector<int64_t>(indices->data, indices->data + indices->count), part.expected_indices) << what;
    }
    for (size_t i = result.bytes; i < part.output.size(); ++i) ASSERT_EQ(part.output[i], std::byte{0x5a}) << what;
  }
}

}  // namespace byteps
