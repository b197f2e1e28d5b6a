#include "frameworks/tensorflow/native/step_member.h"

#include <utility>

namespace byteps::tensorflow {

using binding::Done;
using binding::Outcome;

void StepMember::Join(const Attributes& attributes, const std::string& name, GiveUp give_up,
                      const std::optional<std::vector<int64_t>>& any_shape) {
  const std::string group = attributes.String("group");
  const std::vector<int64_t> told = attributes.Numbers("static_shape");
  if (!attributes.ok() || group.empty()) return;
  name_ = name;
  give_up_ = std::move(give_up);
  group_ = &StepGroup::Of(group);
  const bool known = told != std::vector<int64_t>{-1};
  StepGroup::GiveUp with_shape;
  if (known || any_shape) {
    with_shape = [given = give_up_, shape = known ? told : *any_shape](uint64_t iteration, const std::string& reason,
                                                                       Done ended) {
      given(shape, iteration, reason, std::move(ended));
    };
  }
  place_ = group_->Add(name_, attributes.Number("graph"), std::move(with_shape));
}

StepMember::Place StepMember::Of(const CApi& api, TF_OpKernelContext* context, const Iteration& iteration) const {
  if (group_ == nullptr) return {};
  return {{api.TF_GetStepId(context), iteration.number}, binding::TheSession().Number()};
}

void StepMember::Begin(const Place& place, const std::vector<int64_t>& shape, const Done& start) const {
  if (group_ == nullptr) return start({});
  const auto give_up = [&](uint64_t iteration, const std::string& reason, Done ended) {
    give_up_(shape, iteration, reason, std::move(ended));
  };
  group_->Begin(place_, place.step, place.session, give_up, start);
}

void StepMember::Fail(const Place& place, const Outcome& outcome) const {
  if (group_ != nullptr) group_->Fail(place.step, place.session, name_, outcome);
}

}  // namespace byteps::tensorflow
