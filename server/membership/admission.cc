#include "server/membership/admission.h"

#include "core/base/auth.h"
#include "core/base/version.h"
#include "core/control/control_codec.h"
#include "core/wire/wire.h"
#include "server/membership/membership.h"

namespace byteps {
namespace {

// Of the words of a stranger.
constexpr size_t kMaxRelease = 64;

}  // namespace

absl::Status Admission::CheckVersion(const std::string& address, const control::Hello& hello) const {
  if (hello.control_version() == kControlVersion && hello.wire_version() == wire::kVersion) return absl::OkStatus();
  const std::string who = CheckHello(hello).ok() ? DescribeHello(hello) : "a caller at " + address;
  return absl::FailedPreconditionError(
      "a role of another version: " + who + " is BytePS " + hello.release().substr(0, kMaxRelease) +
      " (control protocol " + std::to_string(hello.control_version()) + ", data protocol " +
      std::to_string(hello.wire_version()) + "), " + options_.self + " is BytePS " + kRelease + " (control protocol " +
      std::to_string(kControlVersion) + ", data protocol " + std::to_string(wire::kVersion) +
      "): install the same BytePS everywhere");
}

absl::Status Admission::CheckIdentity(const std::string& address, const std::string& nonce,
                                      const control::Hello& hello) const {
  const std::string jobs = hello.job() == options_.job
                               ? "job \"" + options_.job + "\""
                               : "job \"" + hello.job() + "\", this coordinator's is \"" + options_.job + "\"";
  if (!SameProof(hello.proof(),
                 MemberProof(options_.token, nonce, hello.nonce(), hello.role(), hello.job(), hello.session()))) {
    return absl::UnauthenticatedError("a caller at " + address + " (" + jobs +
                                      ") could not prove that it knows the job's token: BYTEPS_JOB_TOKEN or "
                                      "BYTEPS_JOB_TOKEN_FILE differ, or it is another job, which needs another "
                                      "DMLC_PS_ROOT_PORT");
  }
  if (absl::Status sane = CheckHello(hello); !sane.ok()) return sane;
  if (hello.job() != options_.job) {
    return absl::FailedPreconditionError(DescribeHello(hello) + " belongs to another job: BYTEPS_JOB_ID=" +
                                         hello.job() + ", this coordinator's is " + options_.job);
  }
  return absl::OkStatus();
}

absl::Status Admission::CheckExpected(const control::Hello& hello) const {
  const auto differs = [&](const char* variable, int32_t there, int32_t here) {
    return absl::FailedPreconditionError(std::string(variable) + " differs: " + std::to_string(there) + " at " +
                                         DescribeHello(hello) + ", " + std::to_string(here) + " at " + options_.self);
  };
  if (!options_.unable.empty()) {
    return absl::FailedPreconditionError(options_.self + " cannot take part: " + options_.unable);
  }
  if (options_.num_servers && hello.num_servers() != *options_.num_servers) {
    return differs("DMLC_NUM_SERVER", hello.num_servers(), *options_.num_servers);
  }
  if (options_.num_hosts && hello.num_hosts() != 0 && hello.num_hosts() != *options_.num_hosts) {
    return differs("DMLC_NUM_WORKER", hello.num_hosts(), *options_.num_hosts);
  }
  return CheckTransport(hello, options_.transport, options_.self);
}

}  // namespace byteps
