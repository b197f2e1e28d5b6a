#include "server/membership/job_member.h"

#include "server/membership/membership.h"

namespace byteps {

std::string JobMember::Describe() const {
  if (rank < 0) return DescribeHello(hello);
  return (worker() ? "worker rank " : "server rank ") + std::to_string(rank) + " (" +
         DescribeWhere(hello.host(), hello.pid()) + ")";
}

}  // namespace byteps
