// As overhead.c, from C++: byteps.hpp.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "frameworks/cpp/byteps.hpp"

namespace {

constexpr int kBatches = 200;
constexpr int kRounds = 2000;

template <typename Call>
void Measure(const char* what, int rounds, Call call) {
  double best = 1e18;
  for (int batch = 0; batch < kBatches; ++batch) {
    const auto start = std::chrono::steady_clock::now();
    for (int round = 0; round < rounds; ++round) call();
    const std::chrono::duration<double, std::nano> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count() / rounds);
  }
  std::printf("%s %.1f\n", what, best);
}

}  // namespace

int main() {
  byteps::Session session;
  const auto tensor = session.Declare<float>("overhead", {1});
  std::vector<float> values = {1};
  Measure("C++", kRounds, [&] { session.PushPull(tensor, values, byteps::Op::kSum).Wait(); });
  Measure("C++, std::future", kRounds / 10, [&] { session.PushPullFuture(tensor, values, byteps::Op::kSum).get(); });
  Measure("C++, owned memory", kRounds / 10,
          [&] { values = session.PushPullOwned(tensor, std::move(values), byteps::Op::kSum).Wait(); });
  session.Shutdown();
  return 0;
}
