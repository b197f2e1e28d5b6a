#include "frameworks/tensorflow/native/step_member.h"

#include <utility>

namespace byteps::tensorflow {

using binding::Outcome;

void StepMember::Join(const Attributes& attributes, const std::string& name, GiveUp give_up) {
  const std::string group = attributes.String("group");
  const std::vector<int64_t> shape = attributes.Numbers("static_shape");
  if (!attributes.ok() || group.empty()) return;
  name_ = name;
  give_up_ = std::move(give_up);
  group_ = &StepGroup::Of(group);
  StepGroup::GiveUp with_shape;
  if (shape != std::vector<int64_t>{-1}) {
    with_shape = [given = give_up_, shape](uint64_t iteration, const std::string& reason) {
      given(shape, iteration, reason);
    };
  }
  index_ = group_->Add(name_, std::move(with_shape));
}

StepMember::Place StepMember::Of(const CApi& api, TF_OpKernelContext* context, const Iteration& iteration) const {
  if (group_ == nullptr) return {};
  return {{api.TF_GetStepId(context), iteration.number}, binding::TheSession().Number()};
}

Outcome StepMember::Begin(const Place& place, const std::vector<int64_t>& shape) const {
  if (group_ == nullptr) return {};
  return group_->Begin(index_, place.step, place.session,
                       [&](uint64_t iteration, const std::string& reason) { give_up_(shape, iteration, reason); });
}

void StepMember::Fail(const Place& place, const Outcome& outcome) const {
  if (group_ != nullptr) group_->Fail(place.step, place.session, name_, outcome);
}

}  // namespace byteps::tensorflow
