// server_ranks.h - which server has which rank.
//
//     RankServers(ordered_hosts, &servers);               // when all are there; again when one was replaced
//
// Ranks are kept once given. Those that asked for one get it, the others what is left, in the order of their hosts
// (BYTEPS_ORDERED_HOSTS: names or addresses), then of their arrival.
//
// Threads: a free function without state.
#ifndef BYTEPS_SERVER_MEMBERSHIP_SERVER_RANKS_H_
#define BYTEPS_SERVER_MEMBERSHIP_SERVER_RANKS_H_

#include <string>
#include <vector>

#include "server/membership/job_member.h"

namespace byteps {

// `servers`: in the order of their arrival; afterwards in that of their ranks. No two asked for the same rank, and none
// for one beyond their number.
void RankServers(const std::vector<std::string>& ordered_hosts, std::vector<JobMember*>* servers);

}  // namespace byteps

#endif  // BYTEPS_SERVER_MEMBERSHIP_SERVER_RANKS_H_
