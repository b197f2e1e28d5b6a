#include "server/membership/key_hash.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <string>
#include <vector>

namespace byteps {
namespace {

using Function = KeyHash::Function;

KeyHash Hash(Function function) {
  KeyHash hash;
  hash.function = function;
  return hash;
}

TEST(KeyHashTest, TheFunctionsAreThoseOfBytePS) {
  // Over the decimal digits of the key, as computed by hand: "7" is character 55.
  constexpr uint32_t kMany = 1000003;
  EXPECT_EQ(Hash(Function::kDjb2).Server(7, kMany), (5381u * 33 + 55) % kMany);
  EXPECT_EQ(Hash(Function::kDjb2).Server(77, kMany), ((5381u * 33 + 55) * 33 + 55) % kMany);
  EXPECT_EQ(Hash(Function::kSdbm).Server(7, kMany), 55u);
  EXPECT_EQ(Hash(Function::kSdbm).Server(77, kMany), (55u + (55u << 6) + (55u << 16) - 55u) % kMany);
  EXPECT_EQ(Hash(Function::kNaive).Server(KeyHash::Key(3, 2), kMany), (3u + 2) * 9973 % kMany);
  KeyHash built_in = Hash(Function::kBuiltIn);
  built_in.coefficient = 5;
  EXPECT_EQ(built_in.Server(77, kMany), std::hash<std::string>()("77") * 5 % kMany);
}

TEST(KeyHashTest, Djb2SpreadsAsBytePSDid) {
  // 161 tensors of one part on three servers.
  std::vector<int> counts(3);
  for (uint64_t tensor = 0; tensor < 161; ++tensor) {
    ++counts[Hash(Function::kDjb2).Server(KeyHash::Key(tensor, 0), 3)];
  }
  EXPECT_EQ(counts, (std::vector<int>{65, 32, 64}));
}

TEST(KeyHashTest, MixedGivesDedicatedServersWhatTheFormulaSays) {
  // Four worker hosts with a server each, and two more: 2k(n-1)/(n(n+k)-2k) = 12/20 of the keys.
  KeyHash hash = Hash(Function::kMixed);
  hash.dedicated = {false, false, true, false, false, true};
  std::vector<double> shares(6);
  constexpr int kKeys = 20000;
  for (uint64_t tensor = 0; tensor < kKeys; ++tensor) shares[hash.Server(KeyHash::Key(tensor, tensor % 7), 6)] += 1;
  for (size_t server = 0; server < 6; ++server) {
    EXPECT_NEAR(shares[server] / kKeys, hash.dedicated[server] ? 0.3 : 0.1, 0.03) << server;
  }
  // The bound decides how fine the proportion is: with one, everything is below it.
  hash.bound = 1;
  for (uint64_t key = 0; key < 100; ++key) EXPECT_TRUE(hash.dedicated[hash.Server(key, 6)]);
}

TEST(KeyHashTest, MixedIsDjb2WhereAllServersAreAlike) {
  for (const std::vector<bool>& dedicated : {std::vector<bool>{}, {true, true, true}, {false, false, false}}) {
    KeyHash hash = Hash(Function::kMixed);
    hash.dedicated = dedicated;
    for (uint64_t key = 0; key < 100; ++key) EXPECT_EQ(hash.Server(key, 3), Hash(Function::kDjb2).Server(key, 3));
  }
  // One worker host: nothing is left of the formula, and all goes to its own server.
  KeyHash alone = Hash(Function::kMixed);
  alone.dedicated = {false, true};
  for (uint64_t key = 0; key < 100; ++key) EXPECT_EQ(alone.Server(key, 2), 0u);
}

TEST(KeyHashTest, EveryServerIsReached) {
  for (const Function function :
       {Function::kNaive, Function::kBuiltIn, Function::kDjb2, Function::kSdbm, Function::kMixed}) {
    std::set<uint32_t> servers;
    for (uint64_t tensor = 0; tensor < 500; ++tensor) {
      const uint32_t server = Hash(function).Server(KeyHash::Key(tensor, tensor % 3), 5);
      ASSERT_LT(server, 5u);
      servers.insert(server);
    }
    EXPECT_EQ(servers.size(), 5u) << KeyHashName(function);
  }
}

TEST(KeyHashTest, TheConfigurationChoosesOne) {
  const KeyHash unset = ReadKeyHash(*Config::Make({}));
  EXPECT_EQ(unset.function, Function::kNone);
  const KeyHash hash = ReadKeyHash(*Config::Make({{"BYTEPS_KEY_HASH_FN", "SDBM"}, {"BYTEPS_MIXED_MODE_BOUND", "7"}}));
  EXPECT_EQ(hash.function, Function::kSdbm);
  EXPECT_EQ(hash.bound, 7u);
  EXPECT_FALSE(Config::Make({{"BYTEPS_KEY_HASH_FN", "md5"}}).ok());
  EXPECT_FALSE(Config::Make({{"BYTEPS_MIXED_MODE_BOUND", "0"}}).ok());
}

}  // namespace
}  // namespace byteps
