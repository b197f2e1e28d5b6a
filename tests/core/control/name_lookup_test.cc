// Names that the resolver answers late, or not at all within the time there is: the resolver is this file's own.
#include "core/control/name_lookup.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netdb.h>
#include <poll.h>

#include <condition_variable>
#include <mutex>
#include <string>

#include "core/base/log.h"
#include "core/control/control_link.h"
#include "core/control/host_identity.h"
#include "core/control/refusal.h"

namespace {

// What names that begin with "slow" wait for.
struct Gate {
  std::mutex mutex;
  std::condition_variable opened;
  bool open = false;
};
// Never destroyed: a lookup that was forgotten may outlive main.
Gate& TheGate() {
  static Gate* const gate = new Gate;
  return *gate;
}

}  // namespace

// The program's own comes before the C library's. Names that begin with "slow" are answered when the gate is open,
// others at once.
extern "C" int getaddrinfo(const char* host, const char* port, const struct addrinfo* hints, struct addrinfo** found) {
  using Function = int(const char*, const char*, const struct addrinfo*, struct addrinfo**);
  static Function* const real = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, "getaddrinfo"));
  const bool numeric = hints != nullptr && (hints->ai_flags & AI_NUMERICHOST) != 0;
  if (!numeric && host != nullptr && std::string(host).rfind("slow", 0) == 0) {
    Gate& gate = TheGate();
    std::unique_lock<std::mutex> lock(gate.mutex);
    gate.opened.wait(lock, [&] { return gate.open; });
    lock.unlock();
    return std::string(host) == "slow-localhost" ? real("localhost", port, hints, found) : EAI_AGAIN;
  }
  return real(host, port, hints, found);
}

namespace byteps {
namespace {

// The resolver does not answer before it is told to: what returns has not waited for it.
class NameLookupTest : public testing::Test {
 protected:
  NameLookupTest() { Set(false); }
  ~NameLookupTest() override { Set(true); }
  static void LetItAnswer() { Set(true); }

 private:
  static void Set(bool open) {
    Gate& gate = TheGate();
    const std::lock_guard<std::mutex> lock(gate.mutex);
    gate.open = open;
    gate.opened.notify_all();
  }
};

TEST_F(NameLookupTest, ANumericAddressIsKnownAtOnce) {
  const NameLookup lookup("127.0.0.1", 9);
  EXPECT_TRUE(lookup.done());
  ASSERT_EQ(lookup.addresses().size(), 1u);
  EXPECT_EQ(lookup.addresses()[0].text, "127.0.0.1");
  EXPECT_EQ(lookup.addresses()[0].family(), AF_INET);
}

TEST_F(NameLookupTest, NoCallWaitsForAResolver) {
  const NameLookup lookup("slow-localhost", 9);
  EXPECT_FALSE(lookup.done());
  EXPECT_FALSE(lookup.Wait(After(Now(), 100 * kMillisecond)));
  LetItAnswer();
  struct pollfd polled = {lookup.fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&polled, 1, 60'000), 1);
  ASSERT_TRUE(lookup.Wait(After(Now(), 60 * kSecond)));
  EXPECT_TRUE(lookup.status().ok()) << lookup.status();
  EXPECT_FALSE(lookup.addresses().empty());
}

TEST_F(NameLookupTest, ALookupMayBeForgotten) {
  { const NameLookup lookup("slow", 9); }
  const NameLookup other("slow", 9);  // outlives the first one's answer
  LetItAnswer();
  ASSERT_TRUE(other.Wait(After(Now(), 60 * kSecond)));
  EXPECT_EQ(other.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(other.addresses().empty());
}

TEST_F(NameLookupTest, AnOwnAddressHasItsPatience) {
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

TEST_F(NameLookupTest, AMembersStartHasItsTimeout) {
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
  EXPECT_LT(polls, 20) << "it spins";
  const std::string text = member.failure.ToString();
  EXPECT_NE(text.find("DMLC_PS_ROOT_URI (the coordinator's host): \"slow\": the resolver has not answered"),
            std::string::npos)
      << text;
}

TEST_F(NameLookupTest, ARefusalIsNotToldBehindANameThatIsNotKnown) {
  const absl::Status why = absl::UnavailableError("no address");
  EXPECT_EQ(TellRefusal(Options(0), why, Logger()), why);
}

}  // namespace
}  // namespace byteps
