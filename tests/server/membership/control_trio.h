// control_trio.h - a job that has started, and tensors to ask for.
#ifndef BYTEPS_TESTS_SERVER_MEMBERSHIP_CONTROL_TRIO_H_
#define BYTEPS_TESTS_SERVER_MEMBERSHIP_CONTROL_TRIO_H_

#include <cstdint>
#include <string>
#include <vector>

#include "abi/byteps.h"
#include "tests/server/membership/control_job.h"

namespace byteps {

// Two hosts with one and two workers, one server: started.
struct Trio {
  explicit Trio(ControlJob* job, const std::string& session = "")
      : server(job->AddServer({})),
        a(job->AddWorker({.host = 0, .hosts = 2, .session = session})),
        b(job->AddWorker({.host = 1, .hosts = 2, .local_rank = 0, .local_size = 2, .session = session})),
        c(job->AddWorker({.host = 1, .hosts = 2, .local_rank = 1, .local_size = 2, .session = session})) {
    job->Settle();
  }
  ControlMember &server, &a, &b, &c;
};

inline control::TensorSpec Spec(const std::string& name, const std::vector<int64_t>& shape,
                                uint32_t dtype = BPS_FLOAT32) {
  control::TensorSpec spec;
  spec.set_name(name);
  spec.set_dtype(dtype);
  for (const int64_t extent : shape) spec.add_shape(extent);
  return spec;
}

}  // namespace byteps

#endif  // BYTEPS_TESTS_SERVER_MEMBERSHIP_CONTROL_TRIO_H_
