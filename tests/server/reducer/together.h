// together.h - a round of all members: what each rank pushes, and what must come back.
//
//     Together round(ask, size, groups, seed);
//     for (rank ...) session->worker(rank).Push(round.of(rank));
//     ASSERT_TRUE(world.Run([&] { return round.Home(session); }));
//     round.Check(session);
#ifndef BYTEPS_TESTS_SERVER_REDUCER_TOGETHER_H_
#define BYTEPS_TESTS_SERVER_REDUCER_TOGETHER_H_

#include <cstdint>
#include <vector>

#include "tests/server/reducer/reduction_world.h"

namespace byteps {

// Numbers whose sums round.
Bytes Numbers(uint32_t dtype, size_t elements, uint64_t seed);
// What core/reduce/reduce.h makes of them.
Bytes Reduced(const Ask& ask, const std::vector<Bytes>& inputs, const std::vector<uint32_t>& groups);

struct Together {
  Ask ask;
  std::vector<Bytes> inputs;
  Bytes expected;

  Together(const Ask& description, uint32_t size, const std::vector<uint32_t>& groups, uint64_t seed);
  Ask of(uint32_t rank) const;
  void PushAll(ReductionSession* session) const;
  // Has every member an answer?
  bool Home(ReductionSession* session) const;
  // Every member has the right result, once, and nothing else.
  void Check(ReductionSession* session) const;
  // Every member has this error, whose text has this in it.
  void CheckFailed(ReductionSession* session, int32_t code, const std::string& text) const;
};

}  // namespace byteps

#endif  // BYTEPS_TESTS_SERVER_REDUCER_TOGETHER_H_
