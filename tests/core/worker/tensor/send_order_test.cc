#include "core/worker/tensor/send_order.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace byteps {
namespace {

Cut CutOf(const std::vector<uint32_t>& servers) {
  control::Assignment assignment;
  assignment.set_key(1 << 16);
  assignment.set_part_elements(1);
  for (const uint32_t server : servers) {
    control::Assignment::Run* run = assignment.add_runs();
    run->set_parts(1);
    run->set_server(server);
  }
  return *Cut::Make(assignment, servers.size());
}

TEST(SendOrderTest, EachWorkerBeginsARowAtAnotherServer) {
  const Cut cut = CutOf({0, 1, 2, 3, 0, 1, 2, 3, 0, 1});
  ASSERT_EQ(cut.row(), 4u);
  for (uint32_t turn = 0; turn < 8; ++turn) {
    std::set<uint32_t> servers;
    for (uint32_t rank = 0; rank < 4; ++rank) servers.insert(cut.place(SendOrder(cut, rank, 4).part(turn)).server);
    EXPECT_EQ(servers.size(), 4u) << "turn " << turn;
  }
}

TEST(SendOrderTest, EveryPartHasItsTurnWithinItsRow) {
  for (const std::vector<uint32_t>& servers :
       {std::vector<uint32_t>{5}, {0, 1, 2}, {0, 1, 2, 0}, {3, 1, 2, 3, 2, 1, 2, 3}, {0, 0, 1}, {}}) {
    const Cut cut = CutOf(servers.empty() ? std::vector<uint32_t>{0} : servers);
    for (const uint32_t workers : {1u, 2u, 3u, 5u, 1000u}) {
      for (uint32_t rank = 0; rank < workers; rank += workers / 5 + 1) {
        const SendOrder order(cut, rank, workers);
        std::set<uint32_t> parts;
        for (uint32_t turn = 0; turn < cut.parts(); ++turn) {
          const uint32_t part = order.part(turn);
          parts.insert(part);
          EXPECT_EQ(part / cut.row(), turn / cut.row());
          EXPECT_EQ(order.turn(part), turn);
        }
        EXPECT_EQ(parts.size(), cut.parts());
        EXPECT_LT(*parts.rbegin(), cut.parts());
      }
    }
  }
}

TEST(SendOrderTest, PartsThatDoNotLieInRowsGoInTheirOrder) {
  const Cut cut = CutOf({0, 0, 1, 2, 0, 1});
  EXPECT_EQ(cut.row(), 1u);
  for (uint32_t turn = 0; turn < cut.parts(); ++turn) EXPECT_EQ(SendOrder(cut, 3, 4).part(turn), turn);
}

TEST(SendOrderTest, MoreWorkersThanServersShareTheirBeginnings) {
  const Cut cut = CutOf({0, 1, 0, 1});
  std::vector<uint32_t> first(2);
  for (uint32_t rank = 0; rank < 8; ++rank) ++first[cut.place(SendOrder(cut, rank, 8).part(0)).server];
  EXPECT_EQ(first, (std::vector<uint32_t>{4, 4}));
}

}  // namespace
}  // namespace byteps
