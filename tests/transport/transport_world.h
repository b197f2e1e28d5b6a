// transport_world.h - where the endpoints of a conformance test live, and how time passes there.
//
// To put a transport under the suite, name it and say how its world is made (see plugin_world.h for plugins and
// tests/transport_plugins/sim for a simulated one):
//
//     INSTANTIATE_TEST_SUITE_P(Tcp, TransportTest, testing::Values(TransportFactory{"tcp", [] { return ...; }}),
//                              TransportFactory::Name);
#ifndef BYTEPS_TESTS_TRANSPORT_TRANSPORT_WORLD_H_
#define BYTEPS_TESTS_TRANSPORT_TRANSPORT_WORLD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>

#include "abi/transport.h"
#include "gtest/gtest.h"

namespace byteps::testing {

struct OpenTransport {
  const bps_transport_table* table = nullptr;
  bps_transport* transport = nullptr;
};

class TransportWorld {
 public:
  virtual ~TransportWorld() = default;
  // A new endpoint, as far from the others as can be.
  virtual OpenTransport Open() = 0;
  // Nanoseconds of a clock that never goes back.
  virtual int64_t Now() = 0;
  // Lets time pass until something may have happened: to the next event where the clock is virtual, else a moment.
  virtual void Pass() = 0;
  // The endpoint dies as if its process did. True: it is closed with that; false: it is still to be closed.
  virtual bool Die(const OpenTransport& endpoint) = 0;
  // Whether CPU time and descriptors mean anything here.
  virtual bool RealTime() const = 0;
  // Whether PEER_DOWN must say why: it may say nothing, but what we ship for real machines does.
  virtual bool SaysWhy() const { return RealTime(); }
  // Whether PEER_DOWN has a place for it: of a plugin of 1.0 nothing is to be read there.
  virtual bool MaySayWhy() const { return true; }
  // What the endpoints have logged lately, a line each: printed when a wait was in vain.
  virtual std::string RecentLog() const { return ""; }
};

struct TransportFactory {
  std::string name;  // letters, digits and underscores
  std::function<std::unique_ptr<TransportWorld>()> make;
  bool together = false;  // takes a message and the write behind it as one, if not always

  static std::string Name(const ::testing::TestParamInfo<TransportFactory>& info) { return info.param.name; }
  friend std::ostream& operator<<(std::ostream& out, const TransportFactory& factory) { return out << factory.name; }
};

}  // namespace byteps::testing

#endif  // BYTEPS_TESTS_TRANSPORT_TRANSPORT_WORLD_H_
