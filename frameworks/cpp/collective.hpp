// Collectives, process sets and what they bring; part of byteps.hpp. docs/collectives.md says what each does.
#ifndef BYTEPS_FRAMEWORKS_CPP_COLLECTIVE_HPP_
#define BYTEPS_FRAMEWORKS_CPP_COLLECTIVE_HPP_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <ranges>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "abi/byteps.h"
#include "frameworks/cpp/element.hpp"
#include "frameworks/cpp/request.hpp"
#include "frameworks/cpp/status.hpp"

namespace byteps {

// Extents, row-major: the first one counts rows. A scalar has none.
using Shape = std::vector<int64_t>;

// Some of the ranks, made by Session::NewProcessSet. Copies are the same set; requests keep it as long as they need it.
class ProcessSet {
 public:
  // Takes ownership.
  explicit ProcessSet(bps_process_set* set) : set_(set, Free) {}
  bps_process_set* get() const { return set_.get(); }

 private:
  friend class CollectiveRequest;
  // Refused while an operation without a Request uses it: then it stays.
  static void Free(bps_process_set* set) { bps_status_free(bps_process_set_free(set)); }

  std::shared_ptr<bps_process_set> set_;
};

// Of reductions: what inputs are multiplied by before, and the result after it; each rounds once.
struct Factors {
  double before = 1;
  double after = 1;
};

// How a collective is done.
struct CollectiveOptions {
  std::optional<ProcessSet> set = std::nullopt;  // none: all ranks
  std::vector<int64_t> splits = {};              // rows for each rank of the set; see the kinds
  std::optional<Factors> factors = std::nullopt;
  int64_t priority = 0;  // larger is sooner
  Timeout timeout{0};    // of the whole operation
  uint64_t match = 0;    // a number that the ranks compare, such as a step's; 0: none
};

// One collective to be started, alone or in a group:
//     session.Start(Collective::AllGather("tokens", rows, {4, 3}))
//     session.StartGroup({Collective::AllReduce("loss", loss, {}, Op::kAverage), Collective::Barrier("step")})
// The input is any contiguous range. A span or an lvalue is the caller's, and must neither change nor go before the
// operation has ended. An rvalue, such as std::move(vector), is owned by the operation until then, whatever becomes of
// the request.
class Collective {
 public:
  // The reduction of all inputs, to all. Op::kAdasum is of this one alone.
  template <typename Range>
  static Collective AllReduce(std::string name, Range&& input, Shape shape, Op op, CollectiveOptions options = {}) {
    Collective made(BPS_ALL_REDUCE, std::move(name), std::forward<Range>(input), std::move(shape), std::move(options));
    made.args_.op = static_cast<int32_t>(op);
    return made;
  }
  // The root's input, to all; `shape` is every rank's. Elsewhere than on the root the input may be an empty range.
  template <typename Range>
  static Collective Broadcast(std::string name, Range&& input, Shape shape, int32_t root,
                              CollectiveOptions options = {}) {
    return Rooted(BPS_BROADCAST, std::move(name), std::forward<Range>(input), std::move(shape), root,
                  std::move(options));
  }
  // All inputs, one behind the other by rank, to all; rows may differ.
  template <typename Range>
  static Collective AllGather(std::string name, Range&& input, Shape shape, CollectiveOptions options = {}) {
    return {BPS_ALL_GATHER, std::move(name), std::forward<Range>(input), std::move(shape), std::move(options)};
  }
  // Of the reduction of all inputs to each rank its rows: splits, else as even as possible.
  template <typename Range>
  static Collective ReduceScatter(std::string name, Range&& input, Shape shape, Op op, CollectiveOptions options = {}) {
    Collective made(BPS_REDUCE_SCATTER, std::move(name), std::forward<Range>(input), std::move(shape),
                    std::move(options));
    made.args_.op = static_cast<int32_t>(op);
    return made;
  }
  // From each to each rank its rows: splits, else equal ones.
  template <typename Range>
  static Collective AllToAll(std::string name, Range&& input, Shape shape, CollectiveOptions options = {}) {
    return {BPS_ALL_TO_ALL, std::move(name), std::forward<Range>(input), std::move(shape), std::move(options)};
  }
  // The reduction of all inputs, to the root; the others get nothing.
  template <typename Range>
  static Collective Reduce(std::string name, Range&& input, Shape shape, Op op, int32_t root,
                           CollectiveOptions options = {}) {
    Collective made =
        Rooted(BPS_REDUCE, std::move(name), std::forward<Range>(input), std::move(shape), root, std::move(options));
    made.args_.op = static_cast<int32_t>(op);
    return made;
  }
  // All inputs, one behind the other by rank, to the root; rows may differ.
  template <typename Range>
  static Collective Gather(std::string name, Range&& input, Shape shape, int32_t root, CollectiveOptions options = {}) {
    return Rooted(BPS_GATHER, std::move(name), std::forward<Range>(input), std::move(shape), root, std::move(options));
  }
  // From the root's input to each rank its rows: the root's splits, else as even as possible. Elsewhere the input may
  // be an empty range, and the shape's first extent does not count.
  template <typename Range>
  static Collective Scatter(std::string name, Range&& input, Shape shape, int32_t root,
                            CollectiveOptions options = {}) {
    return Rooted(BPS_SCATTER, std::move(name), std::forward<Range>(input), std::move(shape), root, std::move(options));
  }
  // The input, to a peer that asks for Receive of the same tag.
  template <typename Range>
  static Collective Send(int32_t peer, int64_t tag, Range&& input, Shape shape, CollectiveOptions options = {}) {
    Collective made(BPS_SEND, "", std::forward<Range>(input), std::move(shape), std::move(options));
    made.args_.peer = peer;
    made.args_.tag = tag;
    return made;
  }
  // What the peer sends with this tag: rows of shape, whose first extent counts only with Into.
  template <typename T>
  static Collective Receive(int32_t peer, int64_t tag, Shape shape, CollectiveOptions options = {}) {
    Collective made(BPS_RECEIVE, "", std::span<const T>(), std::move(shape), std::move(options));
    made.args_.peer = peer;
    made.args_.tag = tag;
    return made;
  }
  // Nothing; ends when all have come.
  static Collective Barrier(std::string name, CollectiveOptions options = {}) {
    return {BPS_BARRIER, std::move(name), std::span<const uint8_t>(), {0}, std::move(options)};
  }

  // Puts the result into the caller's memory, which must not go before the operation has ended; without it the request
  // has memory for it. All-reduce, broadcast and reduce may have the input's.
  template <typename T>
  Collective Into(std::span<T> output) && {
    if (DType<T>::kValue != args_.dtype && invalid_.ok()) invalid_ = Invalid("the output is not of the input's type");
    args_.output = output.data();
    args_.output_bytes = output.size_bytes();
    return std::move(*this);
  }

 private:
  friend class CollectiveRequest;

  template <typename Range>
  Collective(int32_t kind, std::string name, Range&& input, Shape shape, CollectiveOptions options)
      : args_(internal::Initialised<bps_collective_args>()),
        name_(std::move(name)),
        shape_(std::move(shape)),
        options_(std::move(options)) {
    using Element = std::remove_cvref_t<decltype(*std::ranges::data(input))>;
    args_.kind = kind;
    args_.dtype = DType<Element>::kValue;
    given_ = std::ranges::size(input);
    if constexpr (std::ranges::borrowed_range<Range>) {
      args_.input = std::ranges::data(input);
    } else {
      auto owner = std::make_shared<std::remove_cvref_t<Range>>(std::forward<Range>(input));
      args_.input = std::ranges::data(*owner);
      owner_ = std::move(owner);
    }
  }

  template <typename Range>
  static Collective Rooted(int32_t kind, std::string name, Range&& input, Shape shape, int32_t root,
                           CollectiveOptions options) {
    Collective made(kind, std::move(name), std::forward<Range>(input), std::move(shape), std::move(options));
    made.args_.root = root;
    return made;
  }

  Status Invalid(const std::string& why) const {
    return {BPS_INVALID_ARGUMENT, "collective \"" + name_ + "\": " + why};
  }

  // Whether this rank's input is read.
  bool Reads(int32_t own_rank) const {
    if (args_.kind == BPS_RECEIVE || args_.kind == BPS_BARRIER) return false;
    return (args_.kind != BPS_BROADCAST && args_.kind != BPS_SCATTER) || args_.root == own_rank;
  }

  // The arguments, whose pointers are into this object: it must not move until they have been submitted.
  Result<bps_collective_args> Fill(int32_t own_rank) {
    if (!invalid_.ok()) return invalid_;
    size_t elements = 1;
    for (const int64_t extent : shape_) elements *= static_cast<size_t>(extent);
    if (!reason_ && Reads(own_rank) && given_ != elements) {
      return Invalid("the input has " + std::to_string(given_) + " elements, its shape " + std::to_string(elements));
    }
    args_.ext = extensions_.Chain(options_.match, reason_ ? reason_->c_str() : nullptr);
    args_.name = name_.c_str();
    args_.shape = shape_.data();
    args_.ndim = static_cast<int32_t>(shape_.size());
    args_.splits = options_.splits.empty() ? nullptr : options_.splits.data();
    args_.num_splits = static_cast<int32_t>(options_.splits.size());
    args_.set = options_.set ? options_.set->get() : nullptr;
    args_.priority = options_.priority;
    args_.timeout_ms = options_.timeout.count();
    if (options_.factors) {
      args_.scaled = 1;
      args_.prescale = options_.factors->before;
      args_.postscale = options_.factors->after;
    }
    return args_;
  }

  bps_collective_args args_;
  std::string name_;
  Shape shape_;
  CollectiveOptions options_;
  size_t given_ = 0;
  std::shared_ptr<void> owner_;        // of the input, if the operation owns it
  std::optional<std::string> reason_;  // why it is given up, if it is
  internal::Extensions extensions_;
  Status invalid_;
};

// What a collective has brought. Valid as long as its request, or the memory that was given with Into.
template <typename T>
struct Output {
  std::span<T> data;
  Shape shape;
  std::vector<int64_t> splits;  // rows of data from each rank of the set, where the kind has such; else empty
};

// Collectives that were accepted: one, or those of a group.
class CollectiveRequest : public Request {
 public:
  // What operation `index` of a group (else 0) has brought. Throws Error if it has not ended well, and if its elements
  // are not of type T.
  template <typename T>
  byteps::Output<T> Output(size_t index = 0) const {
    return TryOutput<T>(index).value();
  }
  template <typename T>
  Result<byteps::Output<T>> TryOutput(size_t index = 0) const {
    if (index >= dtypes_.size() || dtypes_[index] != DType<T>::kValue) {
      return Status(BPS_INVALID_ARGUMENT,
                    index < dtypes_.size() ? "the elements of output " + std::to_string(index) + " are of another type"
                                           : "there is no output " + std::to_string(index));
    }
    auto result = internal::Initialised<bps_result>();
    if (bps_status* status = bps_request_result(get(), static_cast<int32_t>(index), &result)) return Status(status);
    return byteps::Output<T>{{static_cast<T*>(result.data), static_cast<size_t>(result.bytes) / sizeof(T)},
                             {result.shape, result.shape + result.ndim},
                             {result.splits, result.splits + result.num_splits}};
  }

 private:
  friend class Session;

  CollectiveRequest(Request request, std::vector<uint32_t> dtypes, std::vector<ProcessSet> sets)
      : Request(std::move(request)), dtypes_(std::move(dtypes)), sets_(std::move(sets)) {}

  static Result<CollectiveRequest> GiveUp(bps_session* session, Collective collective, std::string reason) {
    collective.reason_ = std::move(reason);
    return Start(session, std::move(collective), nullptr);
  }

  static Result<CollectiveRequest> Start(bps_session* session, Collective collective,
                                         std::function<void(Status)> done) {
    Result<bps_collective_args> args = collective.Fill(RankOf(session));
    if (!args) return args.status();
    if (collective.owner_) done = internal::Keeping(collective.owner_, std::move(done));
    auto submit = [session](const bps_collective_args& filled, bps_request** request) {
      return bps_collective(session, &filled, request);
    };
    Result<Request> request = internal::Submit(*args, std::move(done), submit);
    if (!request) return request.status();
    return CollectiveRequest(std::move(*request), {collective.args_.dtype}, SetsOf({&collective, 1}));
  }

  static Result<CollectiveRequest> Start(bps_session* session, std::vector<Collective> collectives,
                                         std::function<void(Status)> done) {
    std::vector<bps_collective_args> all;
    std::vector<const bps_collective_args*> pointers;
    std::vector<uint32_t> dtypes;
    auto owners = std::make_shared<std::vector<std::shared_ptr<void>>>();
    const int32_t own_rank = RankOf(session);
    for (Collective& collective : collectives) {
      Result<bps_collective_args> args = collective.Fill(own_rank);
      if (!args) return args.status();
      all.push_back(*args);
      dtypes.push_back(args->dtype);
      if (collective.owner_) owners->push_back(collective.owner_);
    }
    for (const bps_collective_args& args : all) pointers.push_back(&args);
    auto args = internal::Initialised<bps_group_args>();
    args.operations = pointers.data();
    args.num_operations = static_cast<int32_t>(pointers.size());
    if (!owners->empty()) done = internal::Keeping(std::move(owners), std::move(done));
    auto submit = [session](const bps_group_args& filled, bps_request** request) {
      return bps_group(session, &filled, request);
    };
    Result<Request> request = internal::Submit(args, std::move(done), submit);
    if (!request) return request.status();
    return CollectiveRequest(std::move(*request), std::move(dtypes), SetsOf(collectives));
  }

  static std::vector<ProcessSet> SetsOf(std::span<const Collective> collectives) {
    std::vector<ProcessSet> sets;
    for (const Collective& collective : collectives) {
      if (collective.options_.set) sets.push_back(*collective.options_.set);
    }
    return sets;
  }

  // A session that cannot say reads nothing either: its calls fail.
  static int32_t RankOf(const bps_session* session) {
    auto info = internal::Initialised<bps_info>();
    bps_status_free(bps_session_info(session, &info));
    return info.rank;
  }

  std::vector<uint32_t> dtypes_;
  std::vector<ProcessSet> sets_;
};

// This rank's join, which ends when all ranks have joined.
class JoinRequest : public Request {
 public:
  JoinRequest(Request request, std::shared_ptr<int32_t> last_rank)
      : Request(std::move(request)), last_rank_(std::move(last_rank)) {}

  // Waits as Request does; the rank that joined last, the same on all.
  int32_t Wait() {
    Request::Wait();
    return *last_rank_;
  }

 private:
  std::shared_ptr<int32_t> last_rank_;
};

}  // namespace byteps

#endif  // BYTEPS_FRAMEWORKS_CPP_COLLECTIVE_HPP_
