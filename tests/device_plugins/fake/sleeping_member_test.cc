// A member of a collective whose process sleeps: its GPU takes part, as a real one does.

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "abi/byteps.h"
#include "abi/device.h"
#include "gtest/gtest.h"

extern "C" int32_t bps_device_plugin_v1_fake(const bps_plugin_host*, const bps_device_plugin**);

namespace byteps {
namespace {

constexpr size_t kCount = 100;

const bps_plugin_host* Host() {
  static const bps_plugin_host host = {sizeof host, nullptr,
                                       [](bps_failure*, int32_t code, const char*) { return code; },
                                       [](const void*, const char* name) -> const char* { return std::getenv(name); }};
  return &host;
}

bool InTime(const std::chrono::steady_clock::time_point& begin) {
  return std::chrono::steady_clock::now() - begin < std::chrono::seconds(20);
}

// One of two members; what it has asked for is on its way.
class Member {
 public:
  // False: a call failed, or the other one did not come.
  bool Start(const bps_device_plugin* plugin, const uint8_t* id, int rank) {
    table_ = plugin->table;
    all_ = plugin->collectives;
    bps_device_open_args open = {};
    open.struct_size = sizeof open;
    bps_device_join_args join = {};
    join.struct_size = sizeof join;
    join.id = id;
    join.rank = rank;
    join.size = 2;
    void *memory = nullptr, *host = nullptr;
    if (table_->open(&open, &device_, nullptr) != BPS_OK ||
        table_->stream_create(device_, 0, &stream_, nullptr) != BPS_OK ||
        table_->allocate(device_, kCount * sizeof(float), &memory, nullptr) != BPS_OK ||
        table_->allocate_host(device_, kCount * sizeof(float), &host, nullptr) != BPS_OK ||
        all_->join(device_, &join, &comm_, nullptr) != BPS_OK) {
      return false;
    }
    memory_ = static_cast<float*>(memory);
    host_ = static_cast<float*>(host);
    const auto begin = std::chrono::steady_clock::now();
    while (all_->state(comm_, nullptr) != BPS_OK) {
      if (!InTime(begin)) return false;
    }
    for (size_t i = 0; i < kCount; ++i) host_[i] = static_cast<float>(rank + 1);
    return table_->copy_to_device(device_, memory_, host_, kCount * sizeof(float), stream_, nullptr) == BPS_OK &&
           all_->begin(comm_, nullptr) == BPS_OK &&
           all_->all_reduce(comm_, memory_, memory_, kCount, BPS_FLOAT32, BPS_SUM, stream_, nullptr) == BPS_OK &&
           all_->end(comm_, nullptr) == BPS_OK;
  }
  // Asks until the result is there.
  bool Finish() {
    bps_device_event* event = nullptr;
    if (table_->copy_to_host(device_, host_, memory_, kCount * sizeof(float), stream_, nullptr) != BPS_OK ||
        table_->event_create(device_, &event, nullptr) != BPS_OK ||
        table_->event_record(device_, event, stream_, nullptr) != BPS_OK) {
      return false;
    }
    const auto begin = std::chrono::steady_clock::now();
    int32_t code = BPS_DEVICE_NOT_READY;
    while (code == BPS_DEVICE_NOT_READY && InTime(begin)) code = table_->event_query(device_, event, nullptr);
    table_->event_destroy(device_, event, nullptr);
    return code == BPS_OK;
  }
  float result(size_t index) const { return host_[index]; }
  void End() {
    all_->abort(comm_);
    table_->close(device_);
  }

 private:
  const bps_device_table* table_ = nullptr;
  const bps_device_collectives* all_ = nullptr;
  bps_device* device_ = nullptr;
  bps_device_stream stream_ = nullptr;
  bps_device_comm* comm_ = nullptr;
  float* memory_ = nullptr;
  float* host_ = nullptr;
};

TEST(SleepingMemberTest, ItsGpuTakesPart) {
  for (const char* schedule : {"late", "early", "random"}) {
    SCOPED_TRACE(schedule);
    int over[2];
    ASSERT_EQ(::pipe(over), 0);
    // A process of its own for each, which has used no GPU before.
    pid_t pids[2];
    uint8_t id[BPS_DEVICE_COMM_ID] = {};
    const bps_device_plugin* plugin = nullptr;
    ASSERT_EQ(bps_device_plugin_v1_fake(Host(), &plugin), BPS_OK);
    ASSERT_EQ(plugin->collectives->unique_id(nullptr, id, nullptr), BPS_OK);
    ASSERT_EQ(::setenv("BYTEPS_FAKE_GPU", (std::string("devices=1,seed=5,schedule=") + schedule).c_str(), 1), 0);
    for (int rank = 0; rank < 2; ++rank) {
      pids[rank] = ::fork();
      ASSERT_GE(pids[rank], 0);
      if (pids[rank] != 0) continue;
      Member member;
      if (!member.Start(plugin, id, rank)) ::_exit(2);
      if (rank == 0) {
        // Sleeps until the other has seen the result.
        pollfd wait = {over[0], POLLIN, 0};
        if (::poll(&wait, 1, 40'000) != 1) ::_exit(3);
      } else {
        if (!member.Finish()) ::_exit(4);
        for (size_t i = 0; i < kCount; ++i) {
          if (member.result(i) != 3.0F) ::_exit(5);
        }
        if (::write(over[1], "", 1) != 1) ::_exit(6);
      }
      member.End();
      ::_exit(0);
    }
    for (const pid_t pid : pids) {
      int status = 0;
      ASSERT_EQ(::waitpid(pid, &status, 0), pid);
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    }
    ::close(over[0]);
    ::close(over[1]);
  }
}

}  // namespace
}  // namespace byteps
