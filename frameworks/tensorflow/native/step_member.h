// step_member.h - a kernel's operation as a member of a group (step_group.h), if its node names one.
//
//     const StepMember::Place place = member_.Of(api, context, iteration);
//     member_.Begin(place, shape, [=](const Outcome& refused) { ... });  // as of StepGroup
//     member_.Fail(place, outcome);
//
// Threads: any.
#ifndef BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_STEP_MEMBER_H_
#define BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_STEP_MEMBER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "frameworks/common/attached_session.h"
#include "frameworks/common/operation.h"
#include "frameworks/tensorflow/native/attributes.h"
#include "frameworks/tensorflow/native/c_api.h"
#include "frameworks/tensorflow/native/iteration.h"
#include "frameworks/tensorflow/native/step_group.h"

namespace byteps::tensorflow {

class StepMember {
 public:
  // Where an operation stands.
  struct Place {
    StepGroup::Step step;
    uint64_t session = 0;
  };

  // Gives up one round of an operation on a tensor of this shape; valid as long as the process, so without the kernel.
  using GiveUp = std::function<void(const std::vector<int64_t>& shape, uint64_t iteration, const std::string& reason,
                                    binding::Done ended)>;

  // Reads the attributes `group`, empty for an operation of no group, `graph`, the number of that it was traced in, and
  // `static_shape`, {-1} if it is not known.
  // `any_shape` does where it is not; empty: none does.
  void Join(const Attributes& attributes, const std::string& name, GiveUp give_up,
            const std::optional<std::vector<int64_t>>& any_shape);

  Place Of(const CApi& api, TF_OpKernelContext* context, const Iteration& iteration) const;
  void Begin(const Place& place, const std::vector<int64_t>& shape, const binding::Done& start) const;
  void Fail(const Place& place, const binding::Outcome& outcome) const;

 private:
  StepGroup* group_ = nullptr;  // nullptr: none
  StepGroup::Place place_;
  std::string name_;
  GiveUp give_up_;
};

}  // namespace byteps::tensorflow

#endif  // BYTEPS_FRAMEWORKS_TENSORFLOW_NATIVE_STEP_MEMBER_H_
