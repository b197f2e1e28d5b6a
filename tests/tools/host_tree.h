// host_tree.h - a host that does not exist: a folder with files as the kernel has them under /proc and /sys.
//
//     HostTree host;
//     host.File("/sys/class/net/eth0/mtu", "1500\n");
//     host.Link("/sys/class/net/eth0/device/driver", "../drivers/mlx5_core");
//     LinksReport(host.root(), {});
#ifndef BYTEPS_TESTS_TOOLS_HOST_TREE_H_
#define BYTEPS_TESTS_TOOLS_HOST_TREE_H_

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace byteps {

class HostTree {
 public:
  HostTree() {
    std::string folder = std::string(std::getenv("TEST_TMPDIR")) + "/host.XXXXXX";
    root_ = ::mkdtemp(folder.data());
  }
  ~HostTree() { std::filesystem::remove_all(root_); }

  void File(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void Link(const std::string& path, const std::string& target) const {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::filesystem::create_symlink(target, root_ + path);
  }
  const std::string& root() const { return root_; }

 private:
  std::string root_;
};

}  // namespace byteps

#endif  // BYTEPS_TESTS_TOOLS_HOST_TREE_H_
