#include "server/membership/join_check.h"

#include "server/membership/membership.h"

namespace byteps {

// To a newcomer that is refused beside a job that is there already.
std::string JoinCheck::OtherJob() const {
  return "; if this is another job, it needs a coordinator of its own beside " + self_ +
         ": another DMLC_PS_ROOT_PORT, for all of its roles";
}

JoinVerdict JoinCheck::OfServer(const control::Hello& hello) const {
  for (const JobMember* server : *servers_) {
    if (absl::Status taken = CheckPlace(hello, server->hello); !taken.ok()) {
      return {JoinVerdict::Kind::kPlaceTaken, WithRefusal(hello, taken)};
    }
  }
  absl::Status status = admission_->CheckExpected(hello);
  for (const JobMember* server : *servers_) {
    if (status.ok()) status = CheckAgreement(hello, server->hello);
  }
  for (const auto& [id, session] : *sessions_) {
    if (!status.ok() || !session->gathering()) continue;
    for (const JobMember* worker : session->workers) {
      if (status.ok()) status = CheckAgreement(hello, worker->hello);
    }
  }
  // (Of one that cannot take part, this number may be what it could not read.)
  const int32_t expected = servers_->empty() ? hello.num_servers() : servers_->front()->hello.num_servers();
  if (status.ok() && !servers_->empty() && servers_->size() >= static_cast<size_t>(expected)) {
    std::string there;
    for (const JobMember* server : *servers_) there += (there.empty() ? "" : ", ") + DescribeHello(server->hello);
    return {JoinVerdict::Kind::kAlone,
            absl::AlreadyExistsError(DescribeHello(hello) + " is one server too many: DMLC_NUM_SERVER=" +
                                     std::to_string(hello.num_servers()) + ", and there are " + there + OtherJob())};
  }
  if (status.ok()) status = CheckAble(hello);
  if (!status.ok()) return {JoinVerdict::Kind::kDisagrees, WithRefusal(hello, status)};
  return {};
}

JoinVerdict JoinCheck::OfWorker(const control::Hello& hello, const JobSession* session) const {
  absl::Status status = admission_->CheckExpected(hello);
  if (session != nullptr) {
    for (const JobMember* worker : session->workers) {
      if (absl::Status taken = WithRefusal(hello, CheckPlace(hello, worker->hello)); !taken.ok()) {
        return {JoinVerdict::Kind::kPlaceTaken, taken};
      }
    }
    for (const JobMember* worker : session->workers) {
      if (status.ok()) status = CheckAgreement(hello, worker->hello);
    }
  }
  if (status.ok() && !servers_->empty()) status = CheckAgreement(hello, servers_->front()->hello);
  if (status.ok()) status = CheckAble(hello);
  if (!status.ok()) return {JoinVerdict::Kind::kDisagrees, WithRefusal(hello, status)};
  return {};
}

absl::Status JoinCheck::BesideRunning(const control::Hello& hello) const {
  for (const auto& [id, session] : *sessions_) {
    if (session->name != hello.session() || !session->active()) continue;
    for (const JobMember* worker : session->workers) {
      if (worker == nullptr || worker->leaving || PlaceOf(worker->hello) != PlaceOf(hello)) continue;
      return absl::AlreadyExistsError(
          DescribeHello(hello) + " wants a place that is taken in a running session: rank " +
          std::to_string(worker->rank) + " is " + DescribeHello(worker->hello) + OtherJob());
    }
    if (session->Ending()) continue;
    for (const JobMember* worker : session->workers) {
      const absl::Status agrees = CheckAgreement(hello, worker->hello);
      if (agrees.ok()) continue;
      return WithRefusal(hello, absl::FailedPreconditionError(
                                    std::string(agrees.message()) + ", and a session is running: its rank " +
                                    std::to_string(worker->rank) + " is " + DescribeHello(worker->hello) + OtherJob()));
    }
  }
  return absl::OkStatus();
}

}  // namespace byteps
