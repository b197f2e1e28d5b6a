// transport_test.h - the fixture of the conformance suite of abi/transport.h.
//
// A test opens stations, joins them, and waits with Until(): all stations are polled, time passes, and a deadline makes
// every wait end. See README.md for how to put a transport under the suite.
#ifndef BYTEPS_TESTS_TRANSPORT_TRANSPORT_TEST_H_
#define BYTEPS_TESTS_TRANSPORT_TRANSPORT_TEST_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "tests/transport/station.h"
#include "tests/transport/transport_world.h"

namespace byteps::testing {

// Two stations that know each other: a calls b `to_b`, b calls a `to_a`.
struct Pair {
  Station* a;
  bps_peer to_b;
  Station* b;
  bps_peer to_a;
};

class TransportTest : public ::testing::TestWithParam<TransportFactory> {
 protected:
  void SetUp() override { world_ = GetParam().make(); }
  void TearDown() override {
    stations_.clear();
    world_.reset();
  }

  TransportWorld& world() { return *world_; }
  Station& Open();
  // Connects both ways, and returns when a message has gone both ways.
  Pair Join(Station& a, Station& b);
  Pair Join() { return Join(Open(), Open()); }

  // Polls all stations until done(). False (and a failed test) after `seconds`.
  bool Until(const std::function<bool()>& done, int seconds = 60);
  // Polls for this long, come what may.
  void Settle(int64_t nanoseconds);
  // Posts until accepted; the answer is BPS_OK or the first error other than AGAIN.
  int32_t Post(const std::function<int32_t()>& post);
  // Sends and waits until the other side has it.
  void Deliver(Station& from, bps_peer to, Station& at, bps_peer from_there, std::string_view text);
  // As long as the transport of this pair works: a message and a write, both ways.
  void ExpectWorks(const Pair& pair);

  // `size` bytes that are like no others.
  std::vector<std::byte> Bytes(size_t size);
  std::string Text(size_t size);
  std::mt19937_64& random() { return random_; }

 private:
  void PollAll();
  // Of all stations, and what they have logged lately.
  std::string State() const;

  std::unique_ptr<TransportWorld> world_;
  std::vector<std::unique_ptr<Station>> stations_;
  std::mt19937_64 random_{20260101};
};

}  // namespace byteps::testing

#endif  // BYTEPS_TESTS_TRANSPORT_TRANSPORT_TEST_H_
