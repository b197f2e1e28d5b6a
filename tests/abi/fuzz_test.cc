// Every struct that a caller hands to the library, filled at random: sizes, NULLs, numbers at their limits, text that
// is no text, tails that are not zero. The answer is an error with a text, or success; never a crash, and no byte
// beyond struct_size is read. An accepted operation ends once; one that was refused never calls back.
//
// BPS_FUZZ_CASES says how many cases, BPS_FUZZ_SEED where they begin; a failure prints the case, which runs alone with
// BPS_FUZZ_CASES=1 BPS_FUZZ_SEED=<case>.

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <random>
#include <string>

#include "abi/byteps.h"
#include "gtest/gtest.h"

namespace byteps {
namespace {

constexpr size_t kRoom = 8192;
constexpr size_t kElements = 64;

uint64_t Variable(const char* name, uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// Memory that ends where nothing is mapped.
class Guarded {
 public:
  Guarded() {
    void* base = mmap(nullptr, 2 * kRoom, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(base, MAP_FAILED);
    EXPECT_EQ(mprotect(base, kRoom, PROT_READ | PROT_WRITE), 0);
    base_ = static_cast<unsigned char*>(base);
  }
  ~Guarded() { munmap(base_, 2 * kRoom); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  // The last `size` bytes.
  unsigned char* Last(size_t size) { return base_ + kRoom - size; }

 private:
  unsigned char* base_ = nullptr;
};

struct Ended {
  std::atomic<int> times{0};
};

// An extension and the bytes behind it, as many as the largest struct_size that the library believes.
struct Extension {
  bps_ext ext;
  unsigned char rest[4096 - sizeof(bps_ext)];
};

class FuzzTest : public testing::Test {
 protected:
  void SetUp() override {
    bps_open_args args = BPS_OPEN_ARGS_INIT;
    args.has_place = args.num_hosts = args.local_size = 1;
    ASSERT_EQ(bps_open(&args, &session_), nullptr);
    bps_declare_args declare = BPS_DECLARE_ARGS_INIT;
    const int64_t shape = kElements;
    declare.name = "known";
    declare.dtype = BPS_FLOAT32;
    declare.shape = &shape;
    declare.ndim = 1;
    ASSERT_EQ(bps_declare(session_, &declare, &tensor_), nullptr);
  }
  void TearDown() override { bps_status_free(bps_close(session_)); }

  uint64_t Below(uint64_t n) { return random_() % n; }
  bool Rarely() { return Below(8) == 0; }

  template <typename Number>
  Number Odd() {
    constexpr int64_t kNumbers[] = {0,  0,  0,  1,    1,         2,         3,         4,
                                    -1, 64, 65, 1000, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN};
    return static_cast<Number>(Rarely() ? static_cast<int64_t>(random_()) : kNumbers[Below(std::size(kNumbers))]);
  }

  const char* Text() {
    static const std::string kLong(70000, 'x');
    const char* const kTexts[] = {nullptr,    "",         "known", "a",        "b",          "caf\xe9",
                                  "\xff\xfe", "\xc3\xa9", "%s%n",  "host:1:2", kLong.c_str()};
    return kTexts[Below(std::size(kTexts))];
  }

  const bps_ext* Extensions() {
    if (!Rarely()) return nullptr;
    for (Extension& extension : extensions_) {
      extension.ext = {Rarely()        ? Odd<size_t>()
                       : Below(2) == 0 ? sizeof(bps_ext)
                                       : sizeof(bps_streams),
                       Odd<uint32_t>(), Rarely() ? Odd<uint32_t>() : BPS_EXT_IGNORABLE,
                       Rarely() ? nullptr : &extensions_[Below(std::size(extensions_))].ext};  // rings included
      std::memset(extension.rest, 0, sizeof extension.rest);
      if (Rarely()) extension.rest[Below(sizeof extension.rest)] = static_cast<unsigned char>(Below(256));
    }
    return &extensions_[0].ext;
  }

  // `value` as a caller might pass it: with another struct_size, and that many bytes and no more.
  template <typename T>
  T* Place(T value) {
    size_t size = sizeof(T);
    if (Rarely()) size = Odd<size_t>();
    if (Rarely()) size = sizeof(size_t) + Below(2 * sizeof(T));
    if (Rarely()) size = sizeof(T) + Below(4200);
    value.struct_size = size;
    // Where the size is a lie, the library must see that from the size alone.
    const size_t room = std::clamp<size_t>(size, sizeof(size_t), 4096);
    unsigned char* at = guarded_.Last((room + 7) & ~size_t{7});
    std::memset(at, 0, room);
    std::memcpy(at, &value, std::min(room, sizeof(T)));
    if (room > sizeof(T) && Below(2) == 0)
      at[sizeof(T) + Below(room - sizeof(T))] = static_cast<unsigned char>(1 + Below(255));
    return Below(64) == 0 ? nullptr : reinterpret_cast<T*>(at);
  }

  // An error is whole: a code that there is, and a text.
  bool Check(bps_status* status) {
    if (status == nullptr) return true;
    EXPECT_GE(bps_status_code(status), BPS_CANCELLED);
    EXPECT_LE(bps_status_code(status), BPS_UNAUTHENTICATED);
    EXPECT_STRNE(bps_status_message(status), "");
    bps_status_free(status);
    return false;
  }

  static void Done(void* user, bps_status* error) {
    bps_status_free(error);
    ++static_cast<Ended*>(user)->times;
  }

  // Waits for what was accepted; `done` then has run once, and else never.
  void Settle(bool accepted, bps_request* request, const Ended& ended, bool callback) {
    if (accepted && request != nullptr) {
      bps_status_free(bps_wait(request, 10000));
      bps_request_free(request);
    }
    EXPECT_EQ(ended.times.load(), accepted && callback ? 1 : 0);
  }

  void* Output() { return Rarely() ? nullptr : output_; }
  const void* Input() { return Below(2) == 0 ? static_cast<const void*>(output_) : Rarely() ? nullptr : input_; }

  void Open() {
    bps_open_args args = {};
    args.ext = Extensions();
    args.coordinator = Text();
    args.job = Text();
    args.name = Text();
    args.token = Text();
    args.host = Text();
    args.has_place = Odd<int32_t>();
    args.host_index = Odd<int32_t>();
    args.local_rank = Odd<int32_t>();
    args.num_hosts = Odd<int32_t>();
    args.local_size = Odd<int32_t>();
    args.num_servers = Odd<int32_t>();
    args.timeout_ms = Odd<int64_t>();
    // Never one that opens, which takes long: what is wrong is found in spite of everything else.
    args.log_level = 100 + static_cast<int32_t>(Below(1000));
    args.transport = args.scheduler = Text();
    bps_session* session = nullptr;
    const bool opened = Check(bps_open_versioned(Rarely() ? Odd<int32_t>() : BPS_ABI_MAJOR, Odd<int32_t>(), Place(args),
                                                 Rarely() ? nullptr : &session));
    EXPECT_FALSE(opened);
    EXPECT_EQ(session, nullptr);
  }

  void Info() {
    bps_info info = {};
    Check(bps_session_info(Rarely() ? nullptr : session_, Place(info)));
  }

  void Declare() {
    bps_declare_args args = {};
    int64_t shape[64];
    for (int64_t& extent : shape) extent = Rarely() ? Odd<int64_t>() : static_cast<int64_t>(Below(4));
    args.ext = Extensions();
    args.name = Text();
    args.shape = Rarely() ? nullptr : shape;
    args.ndim = Rarely() ? Odd<int32_t>() : static_cast<int32_t>(Below(3));
    constexpr uint32_t kDtypes[] = {BPS_INT8, BPS_FLOAT32, BPS_FLOAT64, BPS_BFLOAT16};
    args.dtype = Rarely() ? Odd<uint32_t>() : kDtypes[Below(std::size(kDtypes))];
    args.mode = Rarely() ? Odd<int32_t>() : 0;
    args.staleness = Rarely() ? Odd<int32_t>() : 0;
    bps_tensor* tensor = nullptr;
    const bool declared = Check(bps_declare(Rarely() ? nullptr : session_, Place(args), Rarely() ? nullptr : &tensor));
    EXPECT_EQ(declared, tensor != nullptr);
  }

  void PushPull() {
    Ended ended;
    bps_push_pull_args args = {};
    args.ext = Extensions();
    args.tensor = Rarely() ? nullptr : tensor_;
    args.input = Input();
    args.output = Output();
    args.priority = Odd<int64_t>();
    args.op = Odd<int32_t>();
    args.input_device = Rarely() ? Odd<int32_t>() : 0;
    args.input_device_id = Rarely() ? Odd<int32_t>() : 0;
    args.output_device = Rarely() ? Odd<int32_t>() : BPS_CPU;
    args.output_device_id = Rarely() ? Odd<int32_t>() : 0;
    args.reserved = Rarely() ? Odd<int32_t>() : 0;
    args.timeout_ms = Odd<int64_t>();
    const bool callback = Below(2) == 0;
    if (callback) args.done = Done;
    args.user = &ended;
    bps_push_pull_args* placed = Place(args);
    // Its end is waited for: with a callback that an older caller's struct does not reach it is not known.
    const bool reaches = placed != nullptr && placed->struct_size >= offsetof(bps_push_pull_args, user) + sizeof(void*);
    bps_request* request = nullptr;
    const bool accepted = Check(bps_push_pull(Rarely() ? nullptr : session_, placed, &request));
    Settle(accepted, request, ended, callback && reaches);
  }

  void Broadcast() {
    Ended ended;
    bps_broadcast_args args = {};
    args.ext = Extensions();
    args.tensor = Rarely() ? nullptr : tensor_;
    args.input = Input();
    args.output = Output();
    args.root = Odd<int32_t>();
    args.input_device = Rarely() ? Odd<int32_t>() : 0;
    args.output_device_id = Rarely() ? Odd<int32_t>() : 0;
    args.reserved = Rarely() ? Odd<int32_t>() : 0;
    args.timeout_ms = Odd<int64_t>();
    args.done = Done;
    args.user = &ended;
    bps_request* request = nullptr;
    const bool accepted = Check(bps_broadcast(Rarely() ? nullptr : session_, Place(args), &request));
    Settle(accepted, request, ended, true);
  }

  void Barrier() {
    bps_barrier_args args = {};
    args.ext = Extensions();
    args.name = Text();
    args.timeout_ms = Odd<int64_t>();
    Check(bps_barrier(Rarely() ? nullptr : session_, Place(args)));
  }

  void BufferAlloc() {
    bps_buffer_args args = {};
    args.ext = Extensions();
    constexpr size_t kSizes[] = {0, 1, 4096, 100000, size_t{1} << 62, SIZE_MAX, SIZE_MAX - 4095};
    args.size = kSizes[Below(std::size(kSizes))];
    args.device = Odd<int32_t>();
    args.device_id = Rarely() ? Odd<int32_t>() : 0;
    bps_buffer* buffer = nullptr;
    const bool made = Check(bps_buffer_alloc(Rarely() ? nullptr : session_, Place(args), Rarely() ? nullptr : &buffer));
    EXPECT_EQ(made, buffer != nullptr);
    if (made && args.size > 0) std::memset(bps_buffer_data(buffer), 1, args.size);
    EXPECT_TRUE(Check(bps_buffer_free(buffer)));
  }

  std::mt19937_64 random_;
  Guarded guarded_;
  bps_session* session_ = nullptr;
  bps_tensor* tensor_ = nullptr;
  Extension extensions_[8] = {};
  alignas(16) float input_[kElements + 1] = {};
  alignas(16) float output_[kElements + 1] = {};
};

TEST_F(FuzzTest, EveryStructIsAnErrorOrASuccess) {
  const uint64_t first = Variable("BPS_FUZZ_SEED", 1), cases = Variable("BPS_FUZZ_CASES", 1'000'000);
  for (uint64_t seed = first; seed < first + cases; ++seed) {
    random_.seed(seed);
    switch (Below(8)) {
      case 0:
        Open();
        break;
      case 1:
        Info();
        break;
      case 2:
        Declare();
        break;
      case 3:
        PushPull();
        break;
      case 4:
        PushPull();
        break;
      case 5:
        Broadcast();
        break;
      case 6:
        Barrier();
        break;
      default:
        BufferAlloc();
        break;
    }
    ASSERT_FALSE(HasFailure()) << "case " << seed;
  }
}

}  // namespace
}  // namespace byteps
