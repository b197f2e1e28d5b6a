#include "core/control/host_identity.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>

namespace byteps {
namespace {

TEST(HostIdentityTest, ThisHostIsItself) {
  const control::Host host = HostIdentity();
  EXPECT_FALSE(host.name().empty());
  EXPECT_FALSE(host.boot_id().empty());
  EXPECT_EQ(host.ipc_namespace().substr(0, 4), "ipc:");
  EXPECT_EQ(host.pid_namespace().substr(0, 4), "pid:");
  EXPECT_TRUE(SameHost(host, HostIdentity()));
}

TEST(HostIdentityTest, AnotherBootOrNamespaceIsAnotherHost) {
  const control::Host host = HostIdentity();
  control::Host other = host;
  other.set_boot_id("0");
  EXPECT_FALSE(SameHost(host, other));
  other = host;
  other.set_ipc_namespace("ipc:[1]");
  EXPECT_FALSE(SameHost(host, other));
  other = host;
  other.set_pid_namespace("pid:[1]");
  EXPECT_TRUE(SameHost(host, other)) << "they share memory, though they cannot read each other's";
  EXPECT_FALSE(SamePids(host, other));
  other = host;
  EXPECT_TRUE(SamePids(host, other));
  other.set_boot_id("0");
  EXPECT_FALSE(SamePids(host, other)) << "the first namespace of every host has one name";
  EXPECT_FALSE(SameHost(control::Host(), control::Host()) || SamePids(control::Host(), control::Host()))
      << "two unknown hosts";
}

TEST(HostIdentityTest, TheAddressIsTheNamedOneOrThatOfTheRoute) {
  EXPECT_EQ(OwnAddress({.coordinator = "127.0.0.1", .port = 9}).value(), "127.0.0.1");
  EXPECT_EQ(OwnAddress({.coordinator = "localhost", .port = 9}).value(), "127.0.0.1");
  EXPECT_EQ(OwnAddress({.interface = "lo", .coordinator = "192.0.2.1", .port = 9}).value(), "127.0.0.1");
  EXPECT_EQ(OwnAddress({.node_host = "127.0.0.5", .interface = "lo", .coordinator = "x", .port = 9}).value(),
            "127.0.0.5");
}

TEST(HostIdentityTest, AnAddressThatIsNotHereIsTrouble) {
  EXPECT_EQ(OwnAddressTrouble("127.0.0.1"), "");
  EXPECT_EQ(OwnAddressTrouble(""), "") << "not known";
  for (const char* elsewhere : {"192.0.2.1", "2001:db8::1"}) {
    EXPECT_EQ(OwnAddressTrouble(elsewhere),
              std::string("this host has lost its own address ") + elsewhere + ": no interface has it");
  }
}

TEST(HostIdentityTest, WhatIsNoAddressIsNamed) {
  const absl::Status interface = OwnAddress({.interface = "none7", .coordinator = "127.0.0.1", .port = 9}).status();
  EXPECT_EQ(interface.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(interface.ToString().find("DMLC_INTERFACE=none7"), std::string::npos);
  EXPECT_NE(interface.ToString().find("lo"), std::string::npos);
  const absl::Status host = OwnAddress({.node_host = "no such host", .coordinator = "127.0.0.1", .port = 9}).status();
  EXPECT_EQ(host.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(host.ToString().find("DMLC_NODE_HOST=no such host"), std::string::npos);
  for (const auto& [address, what] : {std::pair<const char*, const char*>{"224.0.0.1", "a multicast address"},
                                      {"239.1.2.3", "a multicast address"},
                                      {"ff02::1", "a multicast address"},
                                      {"255.255.255.255", "the broadcast address"}}) {
    const absl::Status status = OwnAddress({.node_host = address, .coordinator = "127.0.0.1", .port = 9}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(status.message(), std::string("DMLC_NODE_HOST=") + address + " is " + what +
                                    ": an address of this host is expected, which the others can call");
  }
  const absl::Status coordinator = OwnAddress({.coordinator = "no such host", .port = 9}).status();
  EXPECT_EQ(coordinator.code(), absl::StatusCode::kUnavailable);
  EXPECT_NE(coordinator.message().find("DMLC_PS_ROOT_URI"), absl::string_view::npos) << coordinator;
  EXPECT_NE(coordinator.message().find("\"no such host\""), absl::string_view::npos) << coordinator;
}

}  // namespace
}  // namespace byteps
