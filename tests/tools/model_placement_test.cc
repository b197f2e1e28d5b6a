// The shipped models: they are what they claim to be, and every server gets its share of them.

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/placement.h"
#include "tools/model_file.h"
#include "tools/placement_report.h"

namespace byteps {
namespace {

using testing::AllOf;
using testing::HasSubstr;

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

TEST(ModelPlacementTest, TheReportSaysWhoGetsWhat) {
  const ModelFile model = *Parse("# A net (somebody 2020).\ntensor big 1000x1000 0 1\ntensor small 10 0 1\n");
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
  for (const char* text : {"", "tensor", "tensor a", "tensor a x", "tensor a 0x3", "tensor a 3x", "tensor a -3",
                           "tensor a 99999999999999999999", "tensor a 1000000000x1000000000"}) {
    EXPECT_FALSE(Parse(text).ok()) << text;
  }
  EXPECT_THAT(std::string(Parse("# x\ntensor a 3\ntensor b 3y4\n").status().message()), HasSubstr("line 3"));
  EXPECT_EQ(Parse("forward_ms 3\ntensor a 3x4 0 1\n")->elements(), 12u);
  EXPECT_FALSE(ReadModel("/no/such/file").ok());
}

}  // namespace
}  // namespace byteps
