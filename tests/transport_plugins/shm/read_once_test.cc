// What the other side can rewrite at any time is read once. Every instruction that reads a channel is recorded while an
// endpoint polls: a descriptor, a request, a chunk or a returned slot is read by the instructions of one copy, and by
// none more.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "abi/transport.h"
#include "gtest/gtest.h"
#include "tests/transport_plugins/shm/access_recorder.h"
#include "tests/transport_plugins/shm/end.h"
#include "transport_plugins/shm/channel.h"

namespace byteps::testing {
namespace {

using shm::ChannelMemory;

// What carries structure lies in front of the ledger, which begins a page.
constexpr size_t kStructure = offsetof(ChannelMemory, ledger);

// Every mapping of a channel in this process.
std::vector<ChannelMemory*> Channels() {
  std::vector<ChannelMemory*> channels;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("byteps-channel") == std::string::npos) continue;
    std::istringstream words(line);
    uintptr_t begin = 0, end = 0;
    char dash = 0;
    words >> std::hex >> begin >> dash >> end;
    if (end - begin >= sizeof(ChannelMemory)) channels.push_back(reinterpret_cast<ChannelMemory*>(begin));
  }
  return channels;
}

// A record that is copied before it is looked at.
struct Record {
  std::string kind;
  const std::byte* begin;
  size_t bytes;
};

std::vector<Record> RecordsOf(const ChannelMemory& memory) {
  std::vector<Record> records;
  const auto add = [&](const char* kind, const auto& each) {
    records.push_back({kind, reinterpret_cast<const std::byte*>(&each), sizeof each});
  };
  for (const auto& each : memory.descriptors) add("descriptor", each);
  for (const auto& each : memory.returns) add("returned slot", each);
  for (const auto& each : memory.requests) add("request", each.body);
  for (const auto& each : memory.chunks) add("chunk", each);
  return records;
}

using Counts = std::map<std::string, size_t>;

// The instructions of one copy of each kind.
Counts ReadsOfOneCopy(ChannelMemory* memory) {
  AccessRecorder recorder({{reinterpret_cast<std::byte*>(memory), kStructure}});
  const auto count = [&](const auto& shared) {
    recorder.Record([&] { shm::CopyOnce(shared); });
    return recorder.reads().size();
  };
  return {{"descriptor", count(memory->descriptors[0])},
          {"returned slot", count(memory->returns[0])},
          {"request", count(memory->requests[0].body)},
          {"chunk", count(memory->chunks[0])}};
}

class ReadOnceTest : public ::testing::TestWithParam<const char*> {};

// (With BYTEPS_SHM_PROCESS_VM=0 payloads are brought, in chunks.)
TEST_P(ReadOnceTest, WhatTheOtherSideCanRewriteIsReadByOneCopy) {
  if (!AccessRecorder::Possible()) GTEST_SKIP() << "recording accesses needs the trap flag of x86-64";
  const std::map<std::string, std::string> config = {{"BYTEPS_SHM_PROCESS_VM", GetParam()}};
  End victim(config), other(config);
  ASSERT_EQ(victim.Connect(other.address()), BPS_OK);
  ASSERT_EQ(other.Connect(victim.address()), BPS_OK);
  ASSERT_EQ(other.Send("linked"), BPS_OK);
  ASSERT_TRUE(victim.Until([&] { return other.Poll(), !victim.messages.empty(); }));

  const std::vector<ChannelMemory*> channels = Channels();
  ASSERT_EQ(channels.size(), 4U) << "two channels, each mapped by both ends";
  const Counts one_copy = ReadsOfOneCopy(channels[0]);
  std::vector<AccessRecorder::Pages> pages;
  std::vector<Record> records;
  for (ChannelMemory* memory : channels) {
    pages.push_back({reinterpret_cast<std::byte*>(memory), kStructure});
    const std::vector<Record> more = RecordsOf(*memory);
    records.insert(records.end(), more.begin(), more.end());
  }
  AccessRecorder recorder(pages);

  std::vector<std::byte> source(1 << 16, std::byte{0x5a}), landing(1 << 16);
  const std::string of_victim = victim.Key(victim.Reg(landing.data(), landing.size()));
  const std::string of_other = other.Key(other.Reg(landing.data(), landing.size()));
  Counts seen;
  for (int round = 0; round < 3 * static_cast<int>(shm::kSlots); ++round) {
    // A peer that sends takes back the slots of what it has sent before.
    other.Send("again");
    other.Write(source.data(), source.size(), of_victim, 1);
    other.Poll();
    recorder.Record([&] {
      victim.Send("again");
      victim.Write(source.data(), source.size(), of_other, 1);
      victim.Poll();
    });
    std::map<const std::byte*, size_t> reads;  // of each record
    for (const std::byte* address : recorder.reads()) {
      const auto record = std::find_if(records.begin(), records.end(), [&](const Record& each) {
        return address >= each.begin && address < each.begin + each.bytes;
      });
      if (record == records.end()) continue;  // atomics
      ++reads[record->begin];
      ++seen[record->kind];
    }
    for (const Record& record : records) {
      const auto found = reads.find(record.begin);
      if (found != reads.end()) {
        EXPECT_EQ(found->second, one_copy.at(record.kind)) << "a " << record.kind << ", round " << round;
      }
    }
  }
  EXPECT_EQ(victim.down, BPS_OK) << victim.why;
  for (const char* kind : {"descriptor", "returned slot", "request"}) EXPECT_GT(seen[kind], 0U) << kind;
  EXPECT_EQ(seen["chunk"] > 0, std::string(GetParam()) == "0");
}

INSTANTIATE_TEST_SUITE_P(Ways, ReadOnceTest, ::testing::Values("1", "0"),
                         [](const auto& way) { return *way.param == '1' ? "Fetched" : "Brought"; });

}  // namespace
}  // namespace byteps::testing
