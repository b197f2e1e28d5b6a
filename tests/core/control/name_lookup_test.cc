// Names that the resolver answers late, or not at all within the time there is: the resolver is this file's own.
#include "core/control/name_lookup.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <poll.h>
#include <unistd.h>

#include <string>

#include "core/base/log.h"
#include "core/control/control_link.h"
#include "core/control/host_identity.h"
#include "core/control/refusal.h"

// The program's own comes before the C library's. Names that begin with "slow" take two seconds, others as long as they
// take.
extern "C" int getaddrinfo(const char* host, const char* port, const struct addrinfo* hints, struct addrinfo** found) {
  using Function = int(const char*, const char*, const struct addrinfo*, struct addrinfo**);
  static Function* const real = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, "getaddrinfo"));
  const bool numeric = hints != nullptr && (hints->ai_flags & AI_NUMERICHOST) != 0;
  if (!numeric && host != nullptr && std::string(host).rfind("slow", 0) == 0) {
    ::usleep(2'000'000);
    return std::string(host) == "slow-localhost" ? real("localhost", port, hints, found) : EAI_AGAIN;
  }
  return real(host, port, hints, found);
}

namespace byteps {
namespace {

// Less than any of the resolver's answers takes.
constexpr Time kSoon = kSecond;

TEST(NameLookupTest, ANumericAddressIsKnownAtOnce) {
  const NameLookup lookup("127.0.0.1", 9);
  EXPECT_TRUE(lookup.done());
  ASSERT_EQ(lookup.addresses().size(), 1u);
  EXPECT_EQ(lookup.addresses()[0].text, "127.0.0.1");
  EXPECT_EQ(lookup.addresses()[0].family(), AF_INET);
}

TEST(NameLookupTest, NobodyWaitsForAResolver) {
  const Time before = Now();
  const NameLookup lookup("slow-localhost", 9);
  EXPECT_FALSE(lookup.done());
  EXPECT_FALSE(lookup.Wait(After(Now(), 100 * kMillisecond)));
  EXPECT_LT(Now() - before, kSoon);
  struct pollfd polled = {lookup.fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&polled, 1, 60'000), 1);
  ASSERT_TRUE(lookup.Wait(After(Now(), 60 * kSecond)));
  EXPECT_TRUE(lookup.status().ok()) << lookup.status();
  EXPECT_FALSE(lookup.addresses().empty());
}

TEST(NameLookupTest, ALookupMayBeForgotten) {
  { const NameLookup lookup("slow", 9); }
  const NameLookup other("slow", 9);  // outlives the first one's answer
  ASSERT_TRUE(other.Wait(After(Now(), 60 * kSecond)));
  EXPECT_EQ(other.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(other.addresses().empty());
}

TEST(NameLookupTest, AnOwnAddressHasItsPatience) {
  const Time before = Now();
  for (const OwnAddressOptions& options :
       {OwnAddressOptions{.coordinator = "slow", .port = 9, .patience = 100 * kMillisecond},
        OwnAddressOptions{
            .node_host = "slow", .coordinator = "127.0.0.1", .port = 9, .patience = 100 * kMillisecond}}) {
    const absl::Status status = OwnAddress(options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_NE(status.ToString().find("\"slow\": the resolver has not answered within 0.1 s"), std::string::npos)
        << status;
    EXPECT_NE(status.ToString().find(options.node_host.empty() ? "DMLC_PS_ROOT_URI" : "DMLC_NODE_HOST="),
              std::string::npos)
        << status;
  }
  EXPECT_LT(Now() - before, kSoon);
}

class Member final : public ControlHandler {
 public:
  void Send(const control::Envelope&) override {}
  void OnEpoch(const control::Epoch&) override {}
  void OnFailure(const absl::Status& fatal) override { failure = fatal; }
  absl::Status failure;
};

ControlLinkOptions Options(Time start_timeout) {
  ControlLinkOptions options;
  options.connection.host = "slow";
  options.connection.port = 9;
  options.client.start_timeout = start_timeout;
  options.client.hello.set_role(control::SERVER);
  return options;
}

TEST(NameLookupTest, AMembersStartHasItsTimeout) {
  const Time before = Now();
  ControlLinkOptions options = Options(700 * kMillisecond);
  options.connection.attempt_timeout = 100 * kMillisecond;
  Member member;
  ControlLink link(options, &member, before);
  int polls = 0;
  while (member.failure.ok() && Now() - before < 60 * kSecond) {
    struct pollfd polled = {link.fd(), link.events(), 0};
    ::poll(&polled, 1, PollTimeout(Now(), link.NextTimer()));
    link.Drive(Now());
    ++polls;
  }
  EXPECT_LT(Now() - before, kSoon);
  EXPECT_LT(polls, 20) << "it spins";
  const std::string text = member.failure.ToString();
  EXPECT_NE(text.find("DMLC_PS_ROOT_URI (the coordinator's host): \"slow\": the resolver has not answered"),
            std::string::npos)
      << text;
}

TEST(NameLookupTest, ARefusalIsNotToldBehindANameThatIsNotKnown) {
  const Time before = Now();
  const absl::Status why = absl::UnavailableError("no address");
  EXPECT_EQ(TellRefusal(Options(0), why, Logger()), why);
  EXPECT_LT(Now() - before, kSoon);
}

}  // namespace
}  // namespace byteps
