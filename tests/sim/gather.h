// gather.h - one rank's all_gather of all ranks, with the memory it needs.
//
//     Gather gather("x", job.workers(), 1000);
//     absl::Status status = job.worker(rank).Collect(gather.asked());
//     gather.request()
//
// Threads: none.
#ifndef BYTEPS_TESTS_SIM_GATHER_H_
#define BYTEPS_TESTS_SIM_GATHER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "abi/byteps.h"
#include "core/base/time.h"
#include "core/worker/collectives/collective.h"

namespace byteps {

class Gather {
 public:
  Gather(const std::string& name, uint32_t size, size_t rows, Time timeout = 600 * kSecond) : input_(rows, 1) {
    asked_.kind = CollectiveKind::kAllGather;
    asked_.set = ProcessSet::All(size);
    asked_.name = name;
    asked_.dtype = BPS_INT64;
    asked_.shape = {static_cast<int64_t>(rows)};
    asked_.input = reinterpret_cast<const std::byte*>(input_.data());
    asked_.timeout = timeout;
    asked_.request = std::make_shared<Request>(nullptr, nullptr);
    asked_.result = std::make_shared<CollectiveResult>();
  }
  const Collective& asked() const { return asked_; }
  const Request& request() const { return *asked_.request; }

 private:
  std::vector<int64_t> input_;
  Collective asked_;
};

}  // namespace byteps

#endif  // BYTEPS_TESTS_SIM_GATHER_H_
