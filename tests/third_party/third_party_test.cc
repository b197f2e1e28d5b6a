// Each wrapped library is linked, loads, and does one thing that needs its code and not its headers alone.
#include <hwy/highway.h>
#include <rdma/fabric.h>
#include <sodium.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/third_party/note.pb.h"

namespace byteps {
namespace {

using ::testing::ElementsAre;

absl::StatusOr<int> Half(int value) {
  if (value % 2 != 0) return absl::InvalidArgumentError(absl::StrCat(value, " is odd"));
  return value / 2;
}

TEST(ThirdPartyTest, AbseilCarriesErrorsAndValues) {
  EXPECT_EQ(*Half(8), 4);
  EXPECT_EQ(std::string(Half(7).status().message()), "7 is odd");
  absl::flat_hash_map<std::string, int> map = {{"a", 1}};
  EXPECT_EQ(map.at("a"), 1);
}

TEST(ThirdPartyTest, LiteMessageSurvivesTheWire) {
  test::Note note;
  note.set_text("sum");
  note.add_numbers(-3);
  note.add_numbers(int64_t{1} << 60);
  (*note.mutable_counts())["servers"] = 3;

  test::Note copy;
  ASSERT_TRUE(copy.ParseFromString(note.SerializeAsString()));
  EXPECT_EQ(copy.text(), "sum");
  EXPECT_THAT(copy.numbers(), ElementsAre(-3, int64_t{1} << 60));
  EXPECT_EQ(copy.counts().at("servers"), 3u);
  EXPECT_FALSE(copy.ParseFromString("\xff\xff\xff"));
}

TEST(ThirdPartyTest, SodiumComputesTheHmacOfRfc4231Case2) {
  ASSERT_GE(sodium_init(), 0);
  // crypto_auth_hmacsha256 takes keys of any length through its three-part form.
  constexpr std::string_view kKey = "Jefe";
  constexpr std::string_view kData = "what do ya want for nothing?";
  crypto_auth_hmacsha256_state state;
  std::array<unsigned char, crypto_auth_hmacsha256_BYTES> mac;
  crypto_auth_hmacsha256_init(&state, reinterpret_cast<const unsigned char*>(kKey.data()), kKey.size());
  crypto_auth_hmacsha256_update(&state, reinterpret_cast<const unsigned char*>(kData.data()), kData.size());
  crypto_auth_hmacsha256_final(&state, mac.data());
  std::array<char, 2 * crypto_auth_hmacsha256_BYTES + 1> hex;
  sodium_bin2hex(hex.data(), hex.size(), mac.data(), mac.size());
  EXPECT_STREQ(hex.data(), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(ThirdPartyTest, LibfabricHasTheInterfaceWeCompiledFor) { EXPECT_GE(fi_version(), FI_VERSION(1, 17)); }

// Its headers alone: nothing of it is linked.
TEST(ThirdPartyTest, HighwayKnowsItsTargets) { EXPECT_STRNE(hwy::TargetName(HWY_STATIC_TARGET), "Unknown"); }

}  // namespace
}  // namespace byteps
