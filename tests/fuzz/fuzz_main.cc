// fuzz_main.cc - runs a fuzz target (LLVMFuzzerTestOneInput): as a plain test, or by libFuzzer.
//
//     some_fuzz CORPUS             each file of the folder, and some thousand variations of them from a fixed seed
//     some_fuzz CORPUS             with --config=fuzz: libFuzzer, for BPS_FUZZ_SECONDS from BPS_FUZZ_SEED, led by what
//                                  the code does
//
// libFuzzer is linked to what gcc has compiled. gcc tells of each branch by a call (-fsanitize-coverage=trace-pc), of
// which libFuzzer knows nothing: here it is counted in a table, which libFuzzer takes for the counters that clang would
// make.
#include <dirent.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

#ifdef BPS_LIBFUZZER

extern "C" {

int LLVMFuzzerRunDriver(int* argc, char*** argv, int (*one_input)(const uint8_t* data, size_t size));
void __sanitizer_cov_8bit_counters_init(uint8_t* begin, uint8_t* end);
void __sanitizer_cov_pcs_init(const uintptr_t* begin, const uintptr_t* end);
void __wrap___sanitizer_cov_trace_pc();

// gcc tells of comparisons of floating-point numbers, too; libFuzzer takes those of integers alone.
__attribute__((visibility("default"))) void __sanitizer_cov_trace_cmpf(float, float) {}
__attribute__((visibility("default"))) void __sanitizer_cov_trace_cmpd(double, double) {}

}  // extern "C"

namespace {

constexpr size_t kCounters = size_t{1} << 16;
uint8_t counters[kCounters];
uintptr_t places[2 * kCounters];  // address and flags of each

}  // namespace

// The linker lets every call of __sanitizer_cov_trace_pc end here; its own branches are not told.
__attribute__((no_sanitize_coverage, no_sanitize_address)) void __wrap___sanitizer_cov_trace_pc() {
  const auto place = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  uint8_t& counter = counters[(place * 0x9e3779b97f4a7c15u) >> 48];
  if (counter != 255) ++counter;
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  for (size_t i = 0; i < kCounters; ++i) places[2 * i] = reinterpret_cast<uintptr_t>(&main) + i;
  __sanitizer_cov_8bit_counters_init(counters, counters + kCounters);
  __sanitizer_cov_pcs_init(places, places + 2 * kCounters);
  const char* seconds = std::getenv("BPS_FUZZ_SECONDS");
  const char* seed = std::getenv("BPS_FUZZ_SEED");
  const char* folder = std::getenv("TEST_TMPDIR");
  const std::string found = folder == nullptr ? "/tmp" : folder;
  std::vector<std::string> words = {
      argv[0], "-max_total_time=" + std::string(seconds == nullptr ? "5" : seconds), "-max_len=8192",
      // The same way each time, as far as the time reaches; a hunt names another one.
      "-seed=" + std::string(seed == nullptr ? "1" : seed), "-timeout=60", "-rss_limit_mb=4096", "-print_final_stats=1",
      "-artifact_prefix=" + found + "/", found, argv[1]};
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  int count = static_cast<int>(pointers.size());
  pointers.push_back(nullptr);
  char** arguments = pointers.data();
  return LLVMFuzzerRunDriver(&count, &arguments, LLVMFuzzerTestOneInput);
}

#else

namespace {

using Bytes = std::vector<uint8_t>;

constexpr int kVariations = 1500;

std::vector<Bytes> ReadCorpus(const std::string& folder) {
  std::vector<std::string> names;
  if (DIR* const open = opendir(folder.c_str())) {
    while (const dirent* entry = readdir(open)) {
      if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
    }
    closedir(open);
  }
  std::sort(names.begin(), names.end());
  std::vector<Bytes> corpus;
  for (const std::string& name : names) {
    std::ifstream file(folder + "/" + name, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return corpus;
}

// Some bytes changed, to values at which sums and comparisons break; a piece taken out, doubled, or of another file.
Bytes Vary(Bytes bytes, const std::vector<Bytes>& corpus, std::mt19937_64& random) {
  constexpr uint8_t kAwkward[] = {0, 1, 0x7f, 0x80, 0xff, 0xfe};
  for (uint64_t left = 1 + random() % 6; left > 0 && !bytes.empty(); --left) {
    const auto at = static_cast<ptrdiff_t>(random() % bytes.size());
    const auto end =
        at + static_cast<ptrdiff_t>(std::min<size_t>(random() % 64, bytes.size() - static_cast<size_t>(at)));
    switch (random() % 6) {
      case 0:
        bytes[static_cast<size_t>(at)] ^= static_cast<uint8_t>(1u << random() % 8);
        break;
      case 1:
        std::fill(bytes.begin() + at, bytes.begin() + std::min(end, at + 8), kAwkward[random() % std::size(kAwkward)]);
        break;
      case 2:
        bytes[static_cast<size_t>(at)] = static_cast<uint8_t>(random());
        break;
      case 3:
        bytes.erase(bytes.begin() + at, bytes.begin() + end);
        break;
      case 4: {
        const Bytes piece(bytes.begin() + at, bytes.begin() + end);
        bytes.insert(bytes.begin() + at, piece.begin(), piece.end());
        break;
      }
      default: {
        const Bytes& other = corpus[random() % corpus.size()];
        bytes.insert(bytes.begin() + at, other.begin(), other.end());
      }
    }
    if (bytes.size() > 8192) bytes.resize(8192);
  }
  return bytes;
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<Bytes> corpus = argc == 2 ? ReadCorpus(argv[1]) : std::vector<Bytes>();
  if (corpus.empty()) {
    std::fprintf(stderr, "no corpus: name its folder\n");
    return 2;
  }
  for (const Bytes& bytes : corpus) LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  std::mt19937_64 random(1);
  for (int i = 0; i < kVariations; ++i) {
    const Bytes bytes = Vary(corpus[random() % corpus.size()], corpus, random);
    LLVMFuzzerTestOneInput(bytes.data(), bytes.size());
  }
  std::printf("%zu files and %d variations\n", corpus.size(), kVariations);
  return 0;
}

#endif
