// The shipped models: they are what they claim to be, and every server gets its share of them.

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "abi/byteps.h"
#include "core/control/control.pb.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/membership/placement.h"
#include "server/membership/tensor_directory.h"
#include "tools/model_file.h"
#include "tools/placement_report.h"

namespace byteps {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

ModelFile Shipped(const std::string& name) {
  const std::string root =
      std::string(std::getenv("TEST_SRCDIR")) + "/" + std::string(std::getenv("TEST_WORKSPACE")) + "/tools/models/";
  absl::StatusOr<ModelFile> model = ReadModel(root + name + ".model");
  EXPECT_TRUE(model.ok()) << model.status();
  return model.ok() ? *model : ModelFile();
}

absl::StatusOr<ModelFile> Parse(const std::string& text) {
  std::istringstream file(text);
  return ParseModel(file);
}

// Numbers of parameters as their authors and the usual implementations state them.
const std::map<std::string, std::pair<size_t, uint64_t>> kModels = {
    {"resnet50", {161, 25557032}},
    {"vgg16", {32, 138357544}},
    {"bert-large", {391, 335141888}},
};

TEST(ModelPlacementTest, TheModelsAreWhatTheyClaimToBe) {
  for (const auto& [name, size] : kModels) {
    const ModelFile model = Shipped(name);
    EXPECT_EQ(model.tensors.size(), size.first) << name;
    EXPECT_EQ(model.elements(), size.second) << name;
    EXPECT_THAT(model.source, HasSubstr("arXiv:")) << name;
  }
  EXPECT_NEAR(static_cast<double>(Shipped("transformer").elements()), 63e6, 1e6);
}

TEST(ModelPlacementTest, NoServerIsMoreThanFivePercentOverItsShare) {
  for (const char* name : {"resnet50", "vgg16", "bert-large", "transformer"}) {
    const ModelFile model = Shipped(name);
    const double total = 4 * static_cast<double>(model.elements());
    for (const size_t servers : {1, 2, 3, 4, 8, 16, 64}) {
      for (const uint32_t lanes : {1, 2, 4}) {
        PlacementOptions options;
        options.lanes.assign(servers, lanes);
        options.slot_bytes = 512 << 10;
        Placement placement(options);
        for (const ModelTensor& tensor : model.tensors) {
          ASSERT_TRUE(placement.Add(tensor.elements, 4, std::nullopt).ok());
        }
        for (uint32_t server = 0; server < servers; ++server) {
          EXPECT_LE(static_cast<double>(placement.bytes(server)), 1.05 * total / static_cast<double>(servers))
              << name << ", " << servers << " servers with " << lanes << " lanes, server " << server;
        }
      }
    }
  }
}

// Bytes of each server, by the cuts of all tensors.
std::vector<uint64_t> BytesOf(const std::vector<control::Assignment>& cuts, const ModelFile& model, size_t servers) {
  std::vector<uint64_t> bytes(servers);
  for (size_t i = 0; i < cuts.size(); ++i) {
    uint64_t left = model.tensors[i].elements;
    for (const control::Assignment::Run& run : cuts[i].runs()) {
      const uint64_t taken = std::min(left, run.parts() * cuts[i].part_elements());
      left -= taken;
      bytes[run.server()] += 4 * taken;
    }
    EXPECT_EQ(left, 0u) << model.tensors[i].name;
  }
  return bytes;
}

// What a job has from its second round on, when the coordinator has cut again by the rate at which results came home;
// and again at the rounds 4 and 8, when that has become another one. Workers ask in the order of a backward pass.
TEST(ModelPlacementTest, NorIsAnyServerWhenTensorsWereCutAgain) {
  constexpr double kMbit = 1e6 / 8 * 0.956;
  const std::vector<std::vector<double>> rates_told = {{200},    {1000},    {10'000},
                                                       {25'000}, {100'000}, {3000, 200, 10'000}};
  for (const char* name : {"resnet50", "vgg16", "bert-large", "transformer"}) {
    const ModelFile model = Shipped(name);
    const double total = 4 * static_cast<double>(model.elements());
    for (const size_t servers : {1, 2, 3, 4, 8, 16, 64}) {
      for (const uint32_t lanes : {1, 4}) {
        for (const std::vector<double>& rates : rates_told) {
          PlacementOptions options;
          options.lanes.assign(servers, lanes);
          options.slot_bytes = 512 << 10;
          TensorDirectory directory(options);
          std::vector<control::Assignment> cuts;
          for (const ModelTensor& tensor : model.tensors) {
            control::TensorSpec spec;
            spec.set_name(tensor.name);
            spec.set_dtype(BPS_FLOAT32);
            spec.add_shape(static_cast<int64_t>(tensor.elements));
            cuts.push_back(directory.Declare(spec));
            ASSERT_EQ(cuts.back().code(), BPS_OK);
          }
          uint64_t changed = 0;
          for (const double rate : rates) {
            for (size_t i = cuts.size(); i-- > 0;) {
              if (cuts[i].next_cut() == 0) continue;
              control::TensorSpec spec = cuts[i].tensor();
              spec.set_from_round(cuts[i].next_cut());
              spec.set_bytes_per_second(static_cast<uint64_t>(rate * kMbit));
              const uint64_t before = cuts[i].part_elements();
              cuts[i] = directory.Declare(spec);
              ASSERT_EQ(cuts[i].code(), BPS_OK);
              changed += cuts[i].part_elements() != before ? 1 : 0;
            }
          }
          if (rates[0] == 200 && servers <= 8) {
            EXPECT_GT(changed, 0u) << name << ", " << servers;
          }
          for (const uint64_t bytes : BytesOf(cuts, model, servers)) {
            EXPECT_LE(static_cast<double>(bytes), 1.05 * total / static_cast<double>(servers))
                << name << ", " << servers << " servers with " << lanes << " lanes, at first " << rates[0] << " Mbit/s";
          }
        }
      }
    }
  }
}

TEST(ModelPlacementTest, TheReportSaysWhichCutItIs) {
  const ModelFile model =
      *Parse("# A net (somebody 2020).\nforward_ms 1\nbackward_ms 1\ntensor big 5000x1000 0 1\ntensor small 10 0 1\n");
  const auto report = [&](PlacementRequest request, std::map<std::string, std::string> variables) {
    variables["BYTEPS_SERVER_ENGINE_THREAD"] = "1";
    return *PlacementReport(model, request, *Config::Make(variables));
  };
  const std::string first = report({}, {});
  EXPECT_THAT(first, AllOf(HasSubstr("The first cut, which knows no links (--rate "),
                           HasSubstr("big 5000x1000: 20000000 bytes, 40 parts of 500224 bytes, on 0 (10) 1 (10)")));
  const std::string again = report({.link_rate = 200e6}, {});
  EXPECT_THAT(again,
              AllOf(HasSubstr("The cut from the second round on, where full links bring results home at 23.9 MB/s "
                              "(they carry each byte 1.00 times):\n"),
                    HasSubstr("parts of 59648 bytes, on 0 (84)"), Not(HasSubstr("The first cut"))));
  // Half as many servers as workers, and servers beside workers: the busiest link decides.
  EXPECT_THAT(report({.servers = 2, .link_rate = 200e6}, {}),
              HasSubstr("at 12.0 MB/s (they carry each byte 2.00 times)"));
  EXPECT_THAT(report({.servers = 12, .workers = 8, .colocated = 8, .link_rate = 200e6}, {}),
              HasSubstr("at 18.8 MB/s (they carry each byte 1.27 times)"));
  // On one host there is no link to fill, and nothing is cut again.
  EXPECT_THAT(report({.servers = 1, .workers = 1, .colocated = 1, .link_rate = 1e9}, {}),
              AllOf(HasSubstr("The cut of all rounds:\n"), HasSubstr("39 parts of 513024 bytes")));
  const std::string fixed = report({.link_rate = 200e6}, {{"BYTEPS_PARTITION_BYTES", "1000001"}});
  EXPECT_THAT(fixed, AllOf(HasSubstr("The cut of all rounds, at most BYTEPS_PARTITION_BYTES for a part:\n"),
                           HasSubstr("39 parts of 524288 bytes")));
}

// A hash sees to no shares: what it gave is compared with what would be best, and called so.
TEST(ModelPlacementTest, OfAHashTheReportClaimsNoShares) {
  const ModelFile model = Shipped("vgg16");
  const auto report = [&](const PlacementRequest& request, const std::string& hash, const std::string& mode) {
    return *PlacementReport(model, request,
                            *Config::Make({{"BYTEPS_KEY_HASH_FN", hash}, {"BYTEPS_ENABLE_MIXED_MODE", mode}}));
  };
  const PlacementRequest mixed = {.servers = 6, .workers = 4, .colocated = 4};
  for (const char* hash : {"djb2", "mixed"}) {
    EXPECT_THAT(report(mixed, hash, "on"),
                AllOf(HasSubstr("; the optimum would be 30.0%\n"), HasSubstr("; the optimum would be 10.0%\n"),
                      HasSubstr("% over the optimum.\n"), Not(HasSubstr("its share"))))
        << hash;
  }
  EXPECT_THAT(report(mixed, "djb2", "off"), AllOf(HasSubstr("; an even share would be 16.7%\n"),
                                                  HasSubstr("% over an even share.\n"), Not(HasSubstr("optimum"))));
  EXPECT_THAT(report({.servers = 3, .workers = 4, .colocated = 2}, "djb2", "auto"),
              AllOf(HasSubstr("There is no optimum: only 2 of 4 worker hosts have a server"),
                    Not(HasSubstr("Every server gets the same"))));
  EXPECT_THAT(report(mixed, "none", "on"), AllOf(HasSubstr("; its share is 30.0%\n"), HasSubstr("% over a share.\n")));
}

TEST(ModelPlacementTest, RatesOfLinks) {
  EXPECT_EQ(*ParseLinkRate("200mbit"), 200e6);
  EXPECT_EQ(*ParseLinkRate("1.5gbit"), 1.5e9);
  EXPECT_EQ(*ParseLinkRate("56kbit"), 56e3);
  for (const char* wrong : {"", "200", "mbit", "0mbit", "-1mbit", "1mbyte", "1e3mbit", "fast", "nanmbit", "infmbit"}) {
    EXPECT_FALSE(ParseLinkRate(wrong).ok()) << wrong;
  }
}

TEST(ModelPlacementTest, TheReportSaysWhoGetsWhat) {
  const ModelFile model =
      *Parse("# A net (somebody 2020).\nforward_ms 1\nbackward_ms 1\ntensor big 1000x1000 0 1\ntensor small 10 0 1\n");
  const std::string report = *PlacementReport(model, {.servers = 6, .workers = 4, .colocated = 4}, *Config::Make({}));
  EXPECT_THAT(report, AllOf(HasSubstr("A net (somebody 2020).\n"), HasSubstr("2 tensors of float32, 4.0 MB"),
                            HasSubstr("server 0 (on worker host 0): "), HasSubstr("its share is 10.0%"),
                            HasSubstr("server 5: "), HasSubstr("its share is 30.0%"),
                            HasSubstr("small 10: 40 bytes, 1 part, on ")));
  EXPECT_THAT(*PlacementReport(model, {.servers = 3, .workers = 4, .colocated = 2}, *Config::Make({})),
              HasSubstr("Every server gets the same: only 2 of 4 worker hosts have a server"));
  EXPECT_THAT(*PlacementReport(model, {.servers = 3}, *Config::Make({{"BYTEPS_KEY_HASH_FN", "djb2"}})),
              HasSubstr("placed by BYTEPS_KEY_HASH_FN=djb2"));
  for (const PlacementRequest& wrong : {PlacementRequest{.servers = 0}, PlacementRequest{.workers = 0},
                                        PlacementRequest{.servers = 2, .workers = 4, .colocated = 3}}) {
    EXPECT_FALSE(PlacementReport(model, wrong, *Config::Make({})).ok());
  }
}

TEST(ModelPlacementTest, WrongFilesAreErrorsThatNameTheLine) {
  const std::string times = "forward_ms 3\nbackward_ms 4\n";
  EXPECT_EQ(Parse(times + "# comment\n#\n\ntensor a 3x4 3 4\n")->elements(), 12u);
  EXPECT_TRUE(Parse("tensor a 3 3e0 4.0\n" + times).ok()) << "in any order";
  const std::pair<const char*, const char*> wrong[] = {
      {"", "needs forward_ms, backward_ms and tensors"},
      {"tensor", "line 3: expected `tensor NAME SHAPE BEGINS_MS READY_MS`"},
      {"tensor a 3", "line 3: expected `tensor NAME"},
      {"tensor a 3 0 1 2", "line 3: expected `tensor NAME"},
      {"tensor a x 0 1", "x is no shape"},
      {"tensor a 0x3 0 1", "0x3 is no shape"},
      {"tensor a 3x 0 1", "3x is no shape"},
      {"tensor a -3 0 1", "-3 is no shape"},
      {"tensor a 99999999999999999999 0 1", "is no shape"},
      {"tensor a 1000000000x1000000000 0 1", "is no shape"},
      {"tensor a 3 x 1", "x is no time"},
      {"tensor a 3 0 -1", "-1 is no time"},
      {"tensor a 3 0 nan", "nan is no time"},
      {"tensor a 3 0 1ms", "1ms is no time"},
      {"tensor a 3 0 1\ntensor b 3y4 0 1", "line 4: 3y4 is no shape"},
      {"tensor a 3 0 1\n\ntensor a 3 0 1", "line 5: there is a tensor a already, in line 3"},
      {"tensor a 3 3.1 1", "line 3: its layer begins beyond forward_ms"},
      {"tensor a 3 0 4.1", "line 3: its gradient is ready beyond backward_ms"},
      {"tensr a 3 0 1", "line 3: expected `forward_ms MS`"},
      {"forward_ms 3", "line 3: forward_ms is there already"},
      {"forward_ms -3", "line 3: -3 is no time"},
      {"forward_ms inf", "line 3: inf is no time"},
  };
  for (const auto& [line, says] : wrong) {
    EXPECT_THAT(std::string(Parse(times + line).status().message()), HasSubstr(says)) << line;
  }
  EXPECT_FALSE(Parse("forward_ms 3\ntensor a 3 0 0\n").ok());
  EXPECT_FALSE(Parse("forward_ms 0\nbackward_ms 0\ntensor a 3 0 0\n").ok());
  EXPECT_FALSE(ReadModel("/no/such/file").ok());
  EXPECT_THAT(std::string(ReadModel("/proc/self").status().message()), HasSubstr("it is a folder"));
}

}  // namespace
}  // namespace byteps
