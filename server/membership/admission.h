// admission.h - whether a Hello is accepted: version, proof of the token, job.
//
//     const Admission admission({job, token, num_hosts, num_servers});
//     absl::Status status = admission.CheckVersion(address, hello);               // then: is it one of us?
//     status = admission.CheckIdentity(address, nonce, hello);                    // proof, sense, job
//     status = admission.CheckExpected(hello);                                    // the size of the job
//
// Whether it goes together with the members that are there: server/membership/membership.h.
//
// Threads: any.
#ifndef BYTEPS_SERVER_MEMBERSHIP_ADMISSION_H_
#define BYTEPS_SERVER_MEMBERSHIP_ADMISSION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "core/control/control.pb.h"

namespace byteps {

class Admission {
 public:
  struct Options {
    std::string job;
    std::string token;                   // empty: none
    std::optional<int32_t> num_hosts;    // DMLC_NUM_WORKER here, compared with that of the members; none: not set
    std::optional<int32_t> num_servers;  // likewise DMLC_NUM_SERVER
    std::string transport;               // likewise BYTEPS_TRANSPORT; empty: nothing was named here
    std::string self = "the coordinator";
    std::string unable;  // why it can let no member in; empty: it can
  };

  explicit Admission(Options options) : options_(std::move(options)) {}

  // `address`: of the other side, for errors. FAILED_PRECONDITION: another version, which is named.
  absl::Status CheckVersion(const std::string& address, const control::Hello& hello) const;
  // Likewise. `nonce`: that it was challenged with.
  absl::Status CheckIdentity(const std::string& address, const std::string& nonce, const control::Hello& hello) const;
  // Does the member expect what is expected here? FAILED_PRECONDITION names the variable that differs.
  absl::Status CheckExpected(const control::Hello& hello) const;

 private:
  const Options options_;
};

}  // namespace byteps

#endif  // BYTEPS_SERVER_MEMBERSHIP_ADMISSION_H_
