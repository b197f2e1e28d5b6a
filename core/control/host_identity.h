// host_identity.h - where this process runs, and under which address others reach it.
//
//     control::Host host = HostIdentity(config.GetString("BYTEPS_HOST_ID"));      // no address yet
//     absl::StatusOr<std::string> address = OwnAddress({.coordinator = "10.0.0.1", .port = 9000});
//     host.set_address(*address);
//
// Two processes are on the same host when boot id and IPC namespace are equal: then they can share memory. In different
// PID namespaces they cannot read each other's pages: what they exchange they copy through memory that both have
// mapped. They share a network link when their ids are equal or, where nothing was said, their boot ids: placement asks
// this.
//
// The address to advertise is, in this order: the one that was named (DMLC_NODE_HOST), that of the interface that was
// named (DMLC_INTERFACE), the one this host uses on its route to the coordinator (nothing is sent to find out).
//
// Threads: free functions, callable on any thread. OwnAddress may ask the resolver, and blocks meanwhile.
#ifndef BYTEPS_CORE_CONTROL_HOST_IDENTITY_H_
#define BYTEPS_CORE_CONTROL_HOST_IDENTITY_H_

#include <string>

#include "absl/status/statusor.h"
#include "core/base/time.h"
#include "core/control/control.pb.h"

namespace byteps {

// `id`: whose network link this process uses, where the boot id does not say it.
control::Host HostIdentity(const std::string& id = "");

bool SameHost(const control::Host& one, const control::Host& other);

// What keeps these two from sharing memory, for errors: "are on different hosts", "are on one host in different IPC
// namespaces (containers: share one, as by --ipc=host)". "": they are on the same host.
std::string HostDifference(const control::Host& one, const control::Host& other);

// True: a process number of one names the same process to the other.
bool SamePids(const control::Host& one, const control::Host& other);

// Equal for hosts that share a network link; "": not known.
std::string LinkOf(const control::Host& host);

struct OwnAddressOptions {
  std::string node_host;    // DMLC_NODE_HOST: an address or a name of this host; empty: not named
  std::string interface;    // DMLC_INTERFACE; empty: not named
  std::string coordinator;  // host of the coordinator
  int port = 0;
  Time patience = 5 * kSecond;  // for the resolver
};

// Numeric. INVALID_ARGUMENT: what was named is no address that others can call, or no interface that is up; the
// interfaces there are, are listed. UNAVAILABLE: the coordinator's name is unknown, there is no route to it, or the
// resolver does not answer: may change, so try again.
absl::StatusOr<std::string> OwnAddress(const OwnAddressOptions& options);

// What is wrong on this host with an address that was its own, for errors: "this host has lost its own address
// 10.0.0.7", or the interface that has it is down, or has no carrier. "": nothing that can be seen from here.
std::string OwnAddressTrouble(const std::string& address);

}  // namespace byteps

#endif  // BYTEPS_CORE_CONTROL_HOST_IDENTITY_H_
