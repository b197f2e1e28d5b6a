// Every struct that a caller hands to the library, filled at random: sizes, NULLs, numbers at their limits, text that
// is no text, tails that are not zero. The answer is an error with a text, or success; never a crash, and no byte
// beyond struct_size is read. An accepted operation ends once; one that was refused never calls back.
//
// BPS_FUZZ_CASES says how many cases, BPS_FUZZ_SEED where they begin; a failure prints the case, which runs alone with
// BPS_FUZZ_CASES=1 BPS_FUZZ_SEED=<case>.

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <limits>
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

// What a collective moves at most: the tests' shapes claim no more memory than there is.
constexpr size_t kBytes = 1024;

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
    bps_process_set_args set = BPS_PROCESS_SET_ARGS_INIT;
    const int32_t rank = 0;
    set.ranks = &rank;
    set.num_ranks = 1;
    ASSERT_EQ(bps_process_set_create(session_, &set, &set_), nullptr);
  }
  void TearDown() override {
    bps_status_free(bps_close(session_));
    EXPECT_EQ(bps_process_set_free(set_), nullptr);
  }

  uint64_t Below(uint64_t n) { return random_() % n; }
  bool Rarely() { return Below(8) == 0; }

  template <typename Number>
  Number Odd() {
    constexpr int64_t kNumbers[] = {0,  0,  0,  1,    1,         2,         3,         4,
                                    -1, 64, 65, 1000, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN};
    return static_cast<Number>(Rarely() ? static_cast<int64_t>(random_()) : kNumbers[Below(std::size(kNumbers))]);
  }

  // What is right, but for one field in sixteen: so that what many fields make together is tried, too.
  template <typename Number>
  Number Mostly(Number right) {
    return Below(16) == 0 ? Odd<Number>() : right;
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
      // The one pointer of an extension that the library follows: text, or NULL.
      if (extension.ext.type == BPS_EXT_GIVE_UP && extension.ext.struct_size >= sizeof(bps_give_up)) {
        const char* reason = Text();
        std::memcpy(extension.rest + offsetof(bps_give_up, reason) - sizeof(bps_ext), &reason, sizeof reason);
      }
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
    args.done_in_call = Rarely() ? Odd<int32_t>() : static_cast<int32_t>(Below(2));
    args.reserved2 = Rarely() ? Odd<int32_t>() : 0;
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
    args.done_in_call = Rarely() ? Odd<int32_t>() : static_cast<int32_t>(Below(2));
    args.reserved2 = Rarely() ? Odd<int32_t>() : 0;
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

  void ProcessSet() {
    bps_process_set_args args = {};
    const int32_t ranks[] = {Rarely() ? Odd<int32_t>() : 0, Odd<int32_t>()};
    args.ext = Extensions();
    args.name = Text();
    args.ranks = Rarely() ? nullptr : ranks;
    args.num_ranks = Rarely() ? Odd<int32_t>() : static_cast<int32_t>(Below(3));
    args.reserved = Rarely() ? Odd<int32_t>() : 0;
    bps_process_set* set = nullptr;
    const bool made =
        Check(bps_process_set_create(Rarely() ? nullptr : session_, Place(args), Rarely() ? nullptr : &set));
    EXPECT_EQ(made, set != nullptr);
    EXPECT_TRUE(Check(bps_process_set_free(set)));
  }

  uint32_t Dtype() {
    constexpr uint32_t kDtypes[] = {BPS_INT8,    BPS_INT16,    BPS_UINT8,     BPS_FLOAT16,    BPS_FLOAT32,
                                    BPS_FLOAT64, BPS_BFLOAT16, BPS_COMPLEX64, BPS_COMPLEX128, BPS_BOOL};
    return Mostly(kDtypes[Below(std::size(kDtypes))]);
  }

  // Extents that are small, sometimes one that is not; `rows` of them count bytes that a caller has to have.
  int32_t Shape(int64_t* shape) {
    for (int i = 0; i < 64; ++i) shape[i] = static_cast<int64_t>(Below(4));
    if (Rarely()) shape[Below(3)] = Odd<int64_t>();
    return Mostly(static_cast<int32_t>(Below(4)));
  }

  // Whether a tensor of these extents, of the widest type, lies within kBytes; one that is no tensor does, too.
  static bool Fits(const int64_t* shape, int32_t ndim) {
    constexpr int64_t kMost = kBytes / 16;
    int64_t elements = 1;
    for (int32_t i = 0; i < std::min(ndim, 64); ++i) {
      if (shape[i] < 0) return true;
      if (shape[i] == 0) return true;
      elements = shape[i] > kMost ? kMost + 1 : elements * shape[i];
      if (elements > kMost) return false;
    }
    return true;
  }

  // A collective of memory that is there: where the shape claims more there is no input.
  bps_collective_args CollectiveArgs() {
    bps_collective_args args = {};
    int64_t* shape = shapes_[next_shape_++ % std::size(shapes_)];
    args.struct_size = sizeof args;
    args.ext = Extensions();
    args.name = Below(16) == 0 ? Text() : "collective";
    args.set = Below(2) == 0 ? nullptr : set_;
    args.kind = Mostly(static_cast<int32_t>(Below(12)));
    args.ndim = Shape(shape);
    args.shape = Below(16) == 0 ? nullptr : shape;
    args.dtype = Dtype();
    const bool in_place = args.kind == BPS_ALL_REDUCE || args.kind == BPS_BROADCAST || args.kind == BPS_REDUCE;
    unsigned char* other = in_place && Below(2) == 0 ? to_ : from_;
    args.input = Below(16) == 0 || !Fits(shape, args.ndim) ? nullptr : other + (Below(16) == 0 ? 1 : 0);
    args.output = Below(2) == 0 ? nullptr : to_ + (Below(16) == 0 ? 1 : 0);
    if (args.input != nullptr && args.output != nullptr && other == to_) args.output = other;
    if (other == to_ && args.input != nullptr) args.input = other;
    args.output_bytes = Mostly<uint64_t>(Below(4) == 0 ? Below(kBytes) : kBytes);
    for (int64_t& rows : splits_) rows = Mostly(shape[0]);
    args.splits = Below(2) == 0 ? nullptr : splits_;
    args.num_splits = Mostly(static_cast<int32_t>(Below(4) / 3));
    args.tag = Odd<int64_t>();
    args.priority = Odd<int64_t>();
    args.timeout_ms = Mostly(int64_t{0});
    args.scaled = Mostly(static_cast<int32_t>(Below(2)));
    constexpr double kFactors[] = {0, 1, -0.5, 1e308, std::numeric_limits<double>::infinity(), 5e-324};
    args.prescale = Rarely() ? std::nan("") : kFactors[Below(std::size(kFactors))];
    args.postscale = Rarely() ? std::nan("") : kFactors[Below(std::size(kFactors))];
    args.op = Mostly(static_cast<int32_t>(Below(9)));
    args.root = Mostly(0);
    args.peer = Mostly(0);
    args.input_device = Mostly(0);
    args.output_device_id = Mostly(0);
    return args;
  }

  // What an accepted operation has brought, asked in any way; a rightly ended one is asked rightly, too.
  void Result(bps_request* request) {
    bps_status_free(bps_wait(request, 10000));
    bps_result result = {};
    Check(bps_request_result(Rarely() ? nullptr : request, Odd<int32_t>(), Place(result)));
    if (bps_request_state(request) != BPS_REQUEST_DONE) return;
    result = BPS_RESULT_INIT;
    EXPECT_TRUE(Check(bps_request_result(request, 0, &result)));
    if (result.data != nullptr) std::memset(result.data, 1, result.bytes);
    EXPECT_TRUE(result.ndim == 0 || result.shape != nullptr);
    EXPECT_TRUE(result.num_splits == 0 || result.splits != nullptr);
  }

  void Collective() {
    Ended ended;
    bps_collective_args args = CollectiveArgs();
    const bool callback = Below(2) == 0;
    if (callback) args.done = Done;
    args.user = &ended;
    bps_request* request = nullptr;
    const bool accepted = Check(bps_collective(Rarely() ? nullptr : session_, Place(args), &request));
    if (accepted) Result(request);
    collectives_ += accepted;
    Settle(accepted, request, ended, callback);
  }

  void Group() {
    Ended ended;
    bps_collective_args members[3];
    const bps_collective_args* pointers[3];
    const char* const kNames[] = {"first", "second", "third"};
    for (size_t i = 0; i < std::size(members); ++i) {
      members[i] = CollectiveArgs();
      if (Below(16) != 0) members[i].name = kNames[i];
      // Smaller ones are there as a whole; larger ones would not be.
      if (Below(16) == 0) members[i].struct_size = Below(sizeof members[i]);
      if (Below(16) == 0) members[i].done = Done;
      members[i].user = nullptr;
      pointers[i] = Below(16) == 0 ? nullptr : &members[i];
    }
    bps_group_args args = {};
    args.ext = Extensions();
    args.operations = Rarely() ? nullptr : pointers;
    args.num_operations = Rarely() ? -static_cast<int32_t>(Below(3)) : static_cast<int32_t>(Below(3));
    args.reserved = Rarely() ? Odd<int32_t>() : 0;
    const bool callback = Below(2) == 0;
    if (callback) args.done = Done;
    args.user = &ended;
    bps_request* request = nullptr;
    const bool accepted = Check(bps_group(Rarely() ? nullptr : session_, Place(args), &request));
    if (accepted) bps_status_free(bps_wait(request, 10000));
    groups_ += accepted;
    Settle(accepted, request, ended, callback);
  }

  void Join() {
    Ended ended;
    bps_join_args args = {};
    int32_t last_rank = -1;
    args.ext = Extensions();
    args.last_rank = Rarely() ? nullptr : &last_rank;
    args.timeout_ms = Odd<int64_t>();
    args.done = Done;
    args.user = &ended;
    bps_request* request = nullptr;
    const bool accepted = Check(bps_join(Rarely() ? nullptr : session_, Place(args), &request));
    if (accepted) {
      EXPECT_TRUE(Check(bps_wait(request, 10000)));
      if (args.last_rank != nullptr) {
        EXPECT_EQ(last_rank, 0);
      }
    }
    joins_ += accepted;
    Settle(accepted, request, ended, true);
  }

  void Sparse() {
    Ended ended;
    bps_sparse_args args = {};
    int64_t numbers[4];
    int64_t* shape = shapes_[0];
    for (int64_t& number : numbers) number = Mostly(static_cast<int64_t>(Below(2)));
    args.ext = Extensions();
    args.name = Below(16) == 0 ? Text() : "sparse";
    args.set = Below(2) == 0 ? nullptr : set_;
    args.ndim = Shape(shape);
    args.shape = Rarely() ? nullptr : shape;
    args.num_rows = static_cast<int64_t>(Below(6)) - 1;
    args.indices = Rarely() ? nullptr : numbers;
    int64_t claimed[64];
    std::copy(shape, shape + 64, claimed);
    claimed[0] = std::clamp<int64_t>(args.num_rows, 0, 4);
    args.values = Rarely() || !Fits(claimed, args.ndim) ? nullptr : from_ + (Rarely() ? 1 : 0);
    args.num_rows = std::min<int64_t>(args.num_rows, 4);
    args.priority = Odd<int64_t>();
    args.timeout_ms = Mostly(int64_t{0});
    args.dtype = Dtype();
    args.op = Mostly(static_cast<int32_t>(Below(2)));
    args.reserved = Mostly(0);
    args.done = Done;
    args.user = &ended;
    bps_request* request = nullptr;
    const bool accepted = Check(bps_sparse_all_reduce(Rarely() ? nullptr : session_, Place(args), &request));
    if (accepted) Result(request);
    sparse_ += accepted;
    Settle(accepted, request, ended, true);
  }

  // On for a few cases of every other operation, now and then.
  void Timeline() {
    const uint64_t which = Below(64);
    const char* text = Rarely() ? Text() : "fuzz";
    if (which == 0) {
      const std::string path = text == nullptr ? "" : testing::TempDir() + text + ".json";
      const uint32_t flags = Rarely() ? Odd<uint32_t>() : static_cast<uint32_t>(Below(2));
      timelines_ +=
          Check(bps_timeline_start(Rarely() ? nullptr : session_, text == nullptr ? nullptr : path.c_str(), flags));
    } else if (which < 4) {
      Check(bps_timeline_stop(Rarely() ? nullptr : session_));
    } else {
      const int32_t kind = Rarely() ? Odd<int32_t>() : static_cast<int32_t>(Below(3));
      marks_ += Check(bps_timeline_mark(Rarely() ? nullptr : session_, Rarely() ? Text() : text, kind));
    }
  }

  std::mt19937_64 random_;
  Guarded guarded_;
  bps_session* session_ = nullptr;
  bps_tensor* tensor_ = nullptr;
  Extension extensions_[8] = {};
  alignas(16) float input_[kElements + 1] = {};
  alignas(16) float output_[kElements + 1] = {};
  bps_process_set* set_ = nullptr;
  int64_t shapes_[3][64] = {};
  size_t next_shape_ = 0;
  int64_t splits_[3] = {};
  // Of those that were accepted.
  uint64_t collectives_ = 0, groups_ = 0, joins_ = 0, sparse_ = 0, timelines_ = 0, marks_ = 0;
  alignas(16) unsigned char from_[kBytes + 1] = {};
  alignas(16) unsigned char to_[kBytes + 1] = {};
};

TEST_F(FuzzTest, EveryStructIsAnErrorOrASuccess) {
  const uint64_t first = Variable("BPS_FUZZ_SEED", 1), cases = Variable("BPS_FUZZ_CASES", 1'000'000);
  for (uint64_t seed = first; seed < first + cases; ++seed) {
    random_.seed(seed);
    next_shape_ = 0;
    switch (Below(16)) {
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
      case 7:
        ProcessSet();
        break;
      case 8:
      case 9:
      case 10:
        Collective();
        break;
      case 11:
        Group();
        break;
      case 12:
        Join();
        break;
      case 13:
        Sparse();
        break;
      case 14:
        Timeline();
        break;
      default:
        BufferAlloc();
        break;
    }
    ASSERT_FALSE(HasFailure()) << "case " << seed;
  }
  if (cases < 100'000) return;
  // Else nothing but refusals would have been tried.
  for (const uint64_t accepted : {collectives_, groups_, joins_, sparse_, marks_}) EXPECT_GT(accepted, cases / 1000);
  EXPECT_GT(timelines_, cases / 100'000);
}

}  // namespace
}  // namespace byteps
