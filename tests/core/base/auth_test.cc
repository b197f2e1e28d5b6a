#include "core/base/auth.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>
#include <string>

namespace byteps {
namespace {

std::string Hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned>(static_cast<unsigned char>(byte)));
    text += digits;
  }
  return text;
}

std::string WriteFile(const std::string& name, const std::string& text) {
  const std::string path = std::string(std::getenv("TEST_TMPDIR")) + "/" + name;
  std::ofstream(path) << text;
  return path;
}

// Computed with Python's hmac over the fields, each behind its size as eight bytes, little-endian:
//   hmac.new(b"secret", b"".join(struct.pack("<Q", len(f)) + f for f in fields), "sha256")
TEST(AuthTest, ProofsAreWhatTheProtocolSays) {
  EXPECT_EQ(Hex(MemberProof("secret", "0123456789abcdef", "fedcba9876543210", 1, "job", "")),
            "94d6c9aa45ce9e92a464acdbfe4ef30b5b90aa2c1d50f2bed93f65224c23f980");
  EXPECT_EQ(Hex(CoordinatorProof("secret", "0123456789abcdef", "fedcba9876543210")),
            "e27f5f725f041cbec124da412c32ee473c9549ea42a292cb1f85e4e78bf85ce8");
  const Proof data = DataProof("secret", "0123456789abcdef", 1, 2, 3, 4, 5, 6, 7);
  EXPECT_EQ(Hex(std::string(data.begin(), data.end())),
            "801663591d62a0e7fb173295cf183c769d1bbd91d77fd3496f8a9f4bce0cff68");
}

TEST(AuthTest, EveryFieldCounts) {
  std::set<std::string> proofs = {
      MemberProof("t", "c", "m", 1, "job", "s"), MemberProof("u", "c", "m", 1, "job", "s"),
      MemberProof("t", "d", "m", 1, "job", "s"), MemberProof("t", "c", "n", 1, "job", "s"),
      MemberProof("t", "c", "m", 2, "job", "s"), MemberProof("t", "c", "m", 1, "jobs", ""),
      MemberProof("t", "c", "m", 1, "", "jobs"), MemberProof("t", "c", "m", 1, "job", "t"),
      MemberProof("t", "", "cm", 1, "job", "s"), CoordinatorProof("t", "c", "m"),
      CoordinatorProof("t", "m", "c"),
  };
  EXPECT_EQ(proofs.size(), 11u);

  std::set<Proof> data = {
      DataProof("t", "n", 1, 1, 1, 1, 1, 1, 1), DataProof("u", "n", 1, 1, 1, 1, 1, 1, 1),
      DataProof("t", "o", 1, 1, 1, 1, 1, 1, 1), DataProof("t", "n", 2, 1, 1, 1, 1, 1, 1),
      DataProof("t", "n", 1, 2, 1, 1, 1, 1, 1), DataProof("t", "n", 1, 1, 2, 1, 1, 1, 1),
      DataProof("t", "n", 1, 1, 1, 2, 1, 1, 1), DataProof("t", "n", 1, 1, 1, 1, 2, 1, 1),
      DataProof("t", "n", 1, 1, 1, 1, 1, 2, 1), DataProof("t", "n", 1, 1, 1, 1, 1, 1, 2),
  };
  EXPECT_EQ(data.size(), 10u);
}

TEST(AuthTest, ProofsAreComparedWhole) {
  const std::string proof = CoordinatorProof("t", "c", "m");
  EXPECT_TRUE(SameProof(proof, CoordinatorProof("t", "c", "m")));
  for (size_t i = 0; i < proof.size(); ++i) {
    std::string other = proof;
    other[i] = static_cast<char>(other[i] ^ 1);
    EXPECT_FALSE(SameProof(proof, other)) << i;
  }
  EXPECT_FALSE(SameProof(proof, proof.substr(1)));
  EXPECT_FALSE(SameProof("", ""));

  const Proof data = DataProof("t", "n", 1, 1, 1, 1, 1, 1, 1);
  EXPECT_TRUE(SameProof(data, DataProof("t", "n", 1, 1, 1, 1, 1, 1, 1)));
  EXPECT_FALSE(SameProof(data, DataProof("", "n", 1, 1, 1, 1, 1, 1, 1)));
}

TEST(AuthTest, WithoutATokenProofsAreZero) {
  EXPECT_EQ(MemberProof("", "c", "m", 1, "job", "s"), std::string(32, '\0'));
  EXPECT_EQ(CoordinatorProof("", "c", "m"), std::string(32, '\0'));
  EXPECT_EQ(DataProof("", "n", 1, 1, 1, 1, 1, 1, 1), Proof{});
}

TEST(AuthTest, NoncesDiffer) {
  EXPECT_EQ(RandomNonce().size(), kNonceBytes);
  EXPECT_NE(RandomNonce(), RandomNonce());
  EXPECT_NE(RandomNumber(), RandomNumber());
}

TEST(AuthTest, LoopbackIsKnown) {
  for (const char* address : {"127.0.0.1", "127.3.2.1", "::1", "::ffff:127.0.0.1"}) EXPECT_TRUE(IsLoopback(address));
  for (const char* address : {"10.0.0.1", "128.0.0.1", "0.0.0.0", "::", "::2", "::ffff:10.0.0.1", "localhost", ""}) {
    EXPECT_FALSE(IsLoopback(address)) << address;
  }
}

TEST(AuthTest, WithoutATokenOnlyLoopbackIsServed) {
  EXPECT_TRUE(CheckUnauthenticated("", false, "127.0.0.1").ok());
  EXPECT_TRUE(CheckUnauthenticated("token", false, "10.0.0.1").ok());
  EXPECT_TRUE(CheckUnauthenticated("", true, "10.0.0.1").ok());

  const absl::Status refusal = CheckUnauthenticated("", false, "10.0.0.1");
  EXPECT_EQ(refusal.code(), absl::StatusCode::kUnauthenticated);
  const std::string text(refusal.message().data(), refusal.message().size());
  for (const char* part : {"10.0.0.1", "BYTEPS_JOB_TOKEN", "BYTEPS_ALLOW_UNAUTHENTICATED=1"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << " in " << text;
  }
}

TEST(AuthTest, TokenComesFromVariableOrFile) {
  EXPECT_EQ(JobToken("", "").value(), "");
  EXPECT_EQ(JobToken("s3cret", "").value(), "s3cret");
  EXPECT_EQ(JobToken("", WriteFile("token", " s3cret \n")).value(), "s3cret");
  EXPECT_EQ(JobToken("a", "b").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(JobToken("", WriteFile("empty", "\n")).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(JobToken("", "/nonexistent/token").status().code(), absl::StatusCode::kNotFound);
  const std::string long_token(kMaxTokenBytes + 1, 'x'), path = WriteFile("long", long_token);
  EXPECT_EQ(JobToken(long_token, "").status(),
            absl::InvalidArgumentError("BYTEPS_JOB_TOKEN has 4097 bytes: a token has at most 4096 bytes"));
  EXPECT_EQ(JobToken("", path).status(),
            absl::InvalidArgumentError("BYTEPS_JOB_TOKEN_FILE=" + path +
                                       ": the token in it is too long: a token has at most 4096 bytes"));
}

}  // namespace
}  // namespace byteps
