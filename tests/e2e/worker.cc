// worker.cc - a trainer for the tests of whole jobs: one scenario per run, by name.
//
//     e2e_worker sums|lives|loop|... [argument]
//
// Linked against libbyteps.so like any C program. Exits with 0 when all was as it should be; otherwise says what was
// not and exits with 1. The scenario `loop` ends with the error it met: exit code 3, the error on stdout.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>

#include "tests/e2e/scenarios.h"
#include "tests/e2e/trainer.h"

using namespace byteps::e2e;  // NOLINT(google-build-using-namespace): the table below is nothing but its names

int main(int argc, char** argv) {
  const std::string scenario = argc > 1 ? argv[1] : "";
  const int argument = argc > 2 ? std::atoi(argv[2]) : 0;
  const std::map<std::string, std::function<int()>> scenarios = {
      {"sums", [] { return Sums(), 0; }},
      {"buffers", [&] { return Buffers(argument, false), 0; }},
      {"buffers_brief", [&] { return Buffers(argument, true), 0; }},
      {"guarded", [&] { return Guarded(argument), 0; }},
      {"steady", [&] { return Steady(argument), 0; }},
      {"large", [&] { return Large(argument), 0; }},
      {"many", [&] { return Many(static_cast<int>(argument)), 0; }},
      {"allocations", [&] { return Allocations(Allocated::kSmall, argument), 0; }},
      {"allocations_large", [&] { return Allocations(Allocated::kLarge, argument), 0; }},
      {"allocations_buffers", [&] { return Allocations(Allocated::kLargeInBuffers, argument), 0; }},
      {"orders", [&] { return Orders(argument > 0 ? argument : 5), 0; }},
      {"broadcasts", [] { return Broadcasts(), 0; }},
      {"few_files", [&] { return FewFiles(argument), 0; }},
      {"lives", [&] { return Lives(argument), 0; }},
      {"other_servers", [&] { return OtherServers(static_cast<int>(argument)), 0; }},
      {"altered", [] { return Altered(), 0; }},
      {"loop", [&] { return Loop(argument, false); }},
      {"loop_buffer", [&] { return Loop(argument, true); }},
      {"storm", [&] { return Storm(static_cast<uint64_t>(argument)); }},
      {"mismatches", [] { return Mismatches(), 0; }},
      {"patience", [] { return Patience(), 0; }},
      {"idle", [] { return Idle(), 0; }},
      {"latency", [&] { return Latency(argument), 0; }},
      {"bandwidth", [] { return Bandwidth(), 0; }},
      {"fork", [] { return Fork(), 0; }},
      {"sessions", [] { return Sessions(), 0; }},
      {"open_fails", [] { return OpenFails(); }},
      {"hoarded", [] { return Hoarded(), 0; }},
      {"stall", [] { return Stall(), 0; }},
      {"stuck", [&] { return Stuck(argument > 0 ? argument : 300000), 0; }},
      {"vanish", [] { return Vanish(), 0; }},
  };
  auto it = scenarios.find(scenario);
  if (it == scenarios.end()) {
    std::fprintf(stderr, "e2e_worker: no scenario \"%s\"\n", scenario.c_str());
    return 2;
  }
  const int code = it->second();
  Say("done");
  return code;
}
