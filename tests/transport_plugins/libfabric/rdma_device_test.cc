#include "transport_plugins/libfabric/rdma_device.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace byteps::fabric {
namespace {

// A /sys with a RoCE device of two ports and an InfiniBand device whose interface is the loopback one.
class RdmaDevice : public ::testing::Test {
 protected:
  RdmaDevice() : root_(std::filesystem::path(::testing::TempDir()) / "rdma_device_test_sys") {
    std::filesystem::remove_all(root_);
    Gid("mlx5_0", 1, 0, "fe80:0000:0000:0000:0000:0000:0000:0001", "eth2");
    Gid("mlx5_0", 1, 2, "0000:0000:0000:0000:0000:ffff:0a05:0001", "eth2");
    Gid("mlx5_0", 1, 3, "2001:0db8:0000:0000:0000:0000:0000:0007", "eth2");
    Gid("mlx5_0", 1, 10, "0000:0000:0000:0000:0000:0000:0000:0000", "");
    Gid("mlx5_0", 2, 0, "0000:0000:0000:0000:0000:ffff:0a06:0001", "eth3");
    File("class/infiniband/mlx5_0/ports/1/link_layer", "Ethernet");
    File("class/infiniband/mlx5_1/ports/1/link_layer", "InfiniBand");
    File("class/infiniband/mlx5_1/ports/1/gids/0", "fe80:0000:0000:0000:0002:c903:00ef:5ee1");
    File("class/infiniband/mlx5_1/device/net/lo/dev_port", "0");
  }
  ~RdmaDevice() override { std::filesystem::remove_all(root_); }

  void File(const std::string& path, const std::string& text) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text << "\n";
  }
  void Gid(const std::string& device, int port, int index, const std::string& gid, const std::string& interface) {
    const std::string folder = "class/infiniband/" + device + "/ports/" + std::to_string(port);
    File(folder + "/gids/" + std::to_string(index), gid);
    if (!interface.empty()) File(folder + "/gid_attrs/ndevs/" + std::to_string(index), interface);
  }
  std::string Find(const RdmaWish& wish) { return FindRdmaAddress(RdmaAddresses(root_.string()), wish, &reason_); }

  const std::filesystem::path root_;
  std::string reason_;
};

TEST_F(RdmaDevice, ListsDevicesAndTheirAddresses) {
  EXPECT_EQ(RdmaDevices(root_.string()), (std::vector<std::string>{"mlx5_0", "mlx5_1"}));
  const std::string all = PrintAll(RdmaAddresses(root_.string()));
  EXPECT_NE(all.find("mlx5_0 port 1 GID 2 (eth2) 10.5.0.1, mlx5_0 port 2 GID 0 (eth3) 10.6.0.1"), std::string::npos)
      << all;
  EXPECT_NE(all.find("mlx5_0 port 1 GID 3 (eth2) 2001:db8::7"), std::string::npos) << all;
  EXPECT_NE(all.find("mlx5_1 port 1 (lo) 127.0.0.1"), std::string::npos) << all;
  EXPECT_EQ(all.find("fe80"), std::string::npos) << all;
}

TEST_F(RdmaDevice, NothingWithoutDevices) {
  EXPECT_TRUE(RdmaDevices("/nonexistent").empty());
  EXPECT_TRUE(RdmaAddresses("/nonexistent").empty());
}

TEST_F(RdmaDevice, FindsByDevicePortAndGid) {
  EXPECT_EQ(Find({}), "10.5.0.1");
  EXPECT_EQ(Find({.device = "mlx5_0", .port = 2}), "10.6.0.1");
  EXPECT_EQ(Find({.device = "mlx5_0", .gid = 3}), "2001:db8::7");
  EXPECT_EQ(Find({.device = "mlx5_1"}), "127.0.0.1");
  EXPECT_EQ(reason_, "");
  EXPECT_EQ(Find({.device = "mlx5_7", .port = 1, .gid = 4}), "");
  EXPECT_NE(reason_.find("BYTEPS_RDMA_DEVICE=mlx5_7:1 with BYTEPS_RDMA_GID_INDEX=4"), std::string::npos) << reason_;
  EXPECT_NE(reason_.find("10.6.0.1"), std::string::npos) << reason_;
}

TEST(RdmaDeviceName, HasAPortOrNot) {
  RdmaWish wish;
  EXPECT_TRUE(ParseRdmaDevice("mlx5_0", &wish));
  EXPECT_EQ(wish.device, "mlx5_0");
  EXPECT_EQ(wish.port, 0);
  EXPECT_TRUE(ParseRdmaDevice("mlx5_0:2", &wish));
  EXPECT_EQ(wish.device, "mlx5_0");
  EXPECT_EQ(wish.port, 2);
  for (const char* text : {"", ":1", "mlx5_0:", "mlx5_0:0", "mlx5_0:x", "mlx5_0:1:2"}) {
    EXPECT_FALSE(ParseRdmaDevice(text, &wish)) << text;
  }
}

}  // namespace
}  // namespace byteps::fabric
