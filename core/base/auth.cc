#include "core/base/auth.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sodium.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace byteps {
namespace {

static_assert(kProofBytes == crypto_auth_hmacsha256_BYTES);

// HMAC-SHA256 over fields, each preceded by its size.
class ProofMaker {
 public:
  ProofMaker(std::string_view token, std::string_view purpose) {
    crypto_auth_hmacsha256_init(&state_, reinterpret_cast<const unsigned char*>(token.data()), token.size());
    Add(purpose);
  }
  void Add(std::string_view field) {
    unsigned char size[8];
    for (int i = 0; i < 8; ++i) size[i] = static_cast<unsigned char>(static_cast<uint64_t>(field.size()) >> (8 * i));
    crypto_auth_hmacsha256_update(&state_, size, sizeof(size));
    crypto_auth_hmacsha256_update(&state_, reinterpret_cast<const unsigned char*>(field.data()), field.size());
  }
  // Numbers are little-endian, as on the wire.
  void Add(uint64_t number) {
    char bytes[8];
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<char>(number >> (8 * i));
    Add(std::string_view(bytes, sizeof(bytes)));
  }
  Proof Finish() {
    Proof proof;
    crypto_auth_hmacsha256_final(&state_, proof.data());
    return proof;
  }

 private:
  crypto_auth_hmacsha256_state state_;
};

std::string ToString(const Proof& proof) { return std::string(proof.begin(), proof.end()); }

constexpr std::string_view kSpace = " \t\r\n";

std::string_view Strip(std::string_view text) {
  const size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

absl::StatusOr<std::string> ReadTokenFile(const std::string& path) {
  const std::string what = "BYTEPS_JOB_TOKEN_FILE=" + path + ": ";
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return absl::NotFoundError(what + std::strerror(errno));
  std::string text(kMaxTokenBytes + 64, '\0');
  size_t size = 0;
  int error = 0;
  while (error == 0 && size < text.size()) {
    const ssize_t got = ::read(fd, text.data() + size, text.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) error = errno;
    if (got <= 0) break;
    size += static_cast<size_t>(got);
  }
  ::close(fd);
  if (error != 0) return absl::NotFoundError(what + std::strerror(error));
  const std::string_view token = Strip(std::string_view(text).substr(0, size));
  if (token.empty()) return absl::InvalidArgumentError(what + "the file is empty");
  return std::string(token);
}

}  // namespace

std::string RandomBytes(size_t size) {
  // Safe to call again, from any thread; it prepares the generator.
  if (sodium_init() < 0) std::abort();
  std::string bytes(size, '\0');
  randombytes_buf(bytes.data(), bytes.size());
  return bytes;
}

std::string RandomNonce() { return RandomBytes(kNonceBytes); }

uint64_t RandomNumber() {
  const std::string bytes = RandomBytes(sizeof(uint64_t));
  uint64_t number;
  std::memcpy(&number, bytes.data(), sizeof(number));
  return number;
}

absl::StatusOr<std::string> JobToken(std::string_view token, std::string_view token_file) {
  if (!token.empty() && !token_file.empty()) {
    return absl::InvalidArgumentError("BYTEPS_JOB_TOKEN and BYTEPS_JOB_TOKEN_FILE are both set: leave one of them out");
  }
  std::string result(token);
  if (!token_file.empty()) {
    absl::StatusOr<std::string> read = ReadTokenFile(std::string(token_file));
    if (!read.ok()) return read.status();
    result = *std::move(read);
  }
  if (result.size() > kMaxTokenBytes) {
    // (Of a file no more was read.)
    const std::string where =
        token_file.empty() ? "BYTEPS_JOB_TOKEN has " + std::to_string(result.size()) + " bytes"
                           : "BYTEPS_JOB_TOKEN_FILE=" + std::string(token_file) + ": the token in it is too long";
    return absl::InvalidArgumentError(where + ": a token has at most " + std::to_string(kMaxTokenBytes) + " bytes");
  }
  return result;
}

bool IsLoopback(std::string_view address) {
  const std::string text(address);
  struct in_addr v4;
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  struct in6_addr v6;
  if (inet_pton(AF_INET6, text.c_str(), &v6) != 1) return false;
  if (IN6_IS_ADDR_V4MAPPED(&v6)) return v6.s6_addr[12] == 127;
  return IN6_IS_ADDR_LOOPBACK(&v6);
}

absl::Status CheckUnauthenticated(std::string_view token, bool allow_unauthenticated, std::string_view address) {
  if (!token.empty() || allow_unauthenticated || IsLoopback(address)) return absl::OkStatus();
  return absl::UnauthenticatedError(
      "this job has no token, and " + std::string(address) +
      " is not a loopback address: any process of the network could join. Either give all roles the same secret "
      "(BYTEPS_JOB_TOKEN, or BYTEPS_JOB_TOKEN_FILE with the path of a file that holds it), or, on a network you trust, "
      "set BYTEPS_ALLOW_UNAUTHENTICATED=1 for all roles");
}

std::string MemberProof(std::string_view token, std::string_view challenge_nonce, std::string_view member_nonce,
                        int32_t role, std::string_view job, std::string_view session) {
  if (token.empty()) return std::string(kProofBytes, '\0');
  ProofMaker maker(token, "member");
  maker.Add(challenge_nonce);
  maker.Add(member_nonce);
  maker.Add(static_cast<uint64_t>(role));
  maker.Add(job);
  maker.Add(session);
  return ToString(maker.Finish());
}

std::string CoordinatorProof(std::string_view token, std::string_view challenge_nonce, std::string_view member_nonce) {
  if (token.empty()) return std::string(kProofBytes, '\0');
  ProofMaker maker(token, "coordinator");
  maker.Add(challenge_nonce);
  maker.Add(member_nonce);
  return ToString(maker.Finish());
}

Proof DataProof(std::string_view token, std::string_view session_nonce, uint64_t session, uint32_t epoch,
                uint32_t from_member, uint32_t from_lane, uint32_t to_member, uint32_t to_lane, uint64_t nonce) {
  if (token.empty()) return Proof{};
  ProofMaker maker(token, "data");
  maker.Add(session_nonce);
  maker.Add(session);
  maker.Add(epoch);
  maker.Add(from_member);
  maker.Add(from_lane);
  maker.Add(to_member);
  maker.Add(to_lane);
  maker.Add(nonce);
  return maker.Finish();
}

bool SameProof(std::string_view one, std::string_view other) {
  if (one.size() != kProofBytes || other.size() != kProofBytes) return false;
  return sodium_memcmp(one.data(), other.data(), kProofBytes) == 0;
}

bool SameProof(std::span<const uint8_t, kProofBytes> one, std::span<const uint8_t, kProofBytes> other) {
  return sodium_memcmp(one.data(), other.data(), kProofBytes) == 0;
}

}  // namespace byteps
