// membership.h - the rules of who may be together in a session, as functions over Hellos.
//
//     absl::Status sane = CheckHello(hello);                     // by itself
//     absl::Status taken = CheckPlace(newcomer, present);        // with each of its role
//     absl::Status agree = CheckAgreement(newcomer, present);    // with each that is there; names both sides
//     std::vector<std::string> missing = MissingWorkers(hellos);
//     absl::StatusOr<std::vector<size_t>> order = RankOrder(hellos);      // when no member is missing
//     absl::StatusOr<std::vector<uint32_t>> groups = GroupSizes(hellos_by_rank);
//     LocalSets local = FindLocalSets(hellos_by_rank, *groups);
//
// Everything in a Hello was chosen by its sender: sizes and counts are checked here before they are used.
//
// Threads: free functions without state.
#ifndef BYTEPS_SERVER_MEMBERSHIP_MEMBERSHIP_H_
#define BYTEPS_SERVER_MEMBERSHIP_MEMBERSHIP_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/control/control.pb.h"

namespace byteps {

inline constexpr int32_t kMaxHosts = 1 << 20;
inline constexpr int32_t kMaxLocalSize = 65536;
inline constexpr int32_t kMaxServers = 65536;
inline constexpr int kMaxServerLanes = 64;
inline constexpr size_t kMaxLaneAddress = 512;

// Host index and local rank: where a worker is.
using HostPlace = std::pair<int32_t, int32_t>;
HostPlace PlaceOf(const control::Hello& worker);

// `worker host 1 local rank 0 (host "b", 10.0.0.2, pid 42)`, `server (host "a", 10.0.0.1, pid 7)`.
std::string DescribeHello(const control::Hello& hello);
// The part in brackets.
std::string DescribeWhere(const control::Host& host, int64_t pid);

// What is wrong with a Hello whichever others are there: INVALID_ARGUMENT.
absl::Status CheckHello(const control::Hello& hello);

// Do these two, of one role, want the same place? ALREADY_EXISTS names the place, the variable, and who has it.
absl::Status CheckPlace(const control::Hello& newcomer, const control::Hello& present);

// Do these two (in whatever roles) agree about what all must agree about? FAILED_PRECONDITION names both sides and the
// variable.
absl::Status CheckAgreement(const control::Hello& newcomer, const control::Hello& present);

// Has it come to this transport, which another member was told by name? Empty: no member was told one. Likewise.
absl::Status CheckTransport(const control::Hello& newcomer, const std::string& named, const std::string& by);

// Can it take part at all? FAILED_PRECONDITION says why not, in its own words.
absl::Status CheckAble(const control::Hello& newcomer);

// `why`, what else is wrong with a newcomer; in its own words where it cannot take part: that may be the cause.
absl::Status WithRefusal(const control::Hello& newcomer, const absl::Status& why);

// Which of a session's workers are not there, as text, at most `kMaxMissing` lines; empty: none. The hellos agree,
// and no place is taken twice.
inline constexpr size_t kMaxMissing = 16;
std::vector<std::string> MissingWorkers(const std::vector<const control::Hello*>& workers);

// For each rank the index into `workers`: by host, then local rank, or as BYTEPS_GLOBAL_RANK says on all of them.
// FAILED_PRECONDITION: it is set on some only, twice, or beyond the number of workers.
absl::StatusOr<std::vector<size_t>> RankOrder(const std::vector<const control::Hello*>& workers);

// The groups of the reduction, as numbers of consecutive ranks: BYTEPS_GROUPS is "host" (or empty), "none", or ranges
// that cover all ranks in order ("0-3,4-7").
absl::StatusOr<std::vector<uint32_t>> GroupSizes(const std::vector<const control::Hello*>& workers_by_rank);

// Sets of workers that reduce among themselves before anything leaves their host, as numbers of consecutive ranks: the
// whole job, if it runs on one host, or else its groups, if each of them does: so the result is the same without them.
struct LocalSets {
  std::vector<uint32_t> sizes;  // empty: no member does, and `refusal` says why; one: no server takes part
  std::string refusal;
};
LocalSets FindLocalSets(const std::vector<const control::Hello*>& workers_by_rank, const std::vector<uint32_t>& groups);

}  // namespace byteps

#endif  // BYTEPS_SERVER_MEMBERSHIP_MEMBERSHIP_H_
