// Memory that is mapped piece by piece, as by PyTorch's expandable segments: tensors may lie in it, and it has no
// identity, so no registration of it is kept.

#include <dlfcn.h>

#include <cstdlib>

#include "abi/byteps.h"
#include "abi/device.h"
#include "gtest/gtest.h"

extern "C" int32_t bps_device_plugin_v1_cuda(const bps_plugin_host*, const bps_device_plugin**);

namespace byteps {
namespace {

bps_device_pointer PointerOf(const bps_device_table& table, bps_device* device, const void* address) {
  bps_device_pointer pointer = {};
  pointer.struct_size = sizeof pointer;
  EXPECT_EQ(table.pointer(device, address, &pointer, nullptr), BPS_OK);
  return pointer;
}

TEST(MappedMemoryTest, HasNoIdentity) {
  ASSERT_NE(::dlopen("tests/device_plugins/cuda/standin/libcuda.so.1", RTLD_NOW | RTLD_LOCAL), nullptr) << ::dlerror();
  const bps_device_plugin* plugin = nullptr;
  const bps_plugin_host host = {sizeof host, nullptr,
                                [](bps_failure*, int32_t code, const char* reason) {
                                  ADD_FAILURE() << reason;
                                  return code;
                                },
                                [](const void*, const char*) -> const char* { return nullptr; }};
  ASSERT_EQ(bps_device_plugin_v1_cuda(&host, &plugin), BPS_OK);
  const bps_device_table& table = *plugin->table;
  bps_device_open_args args = {};
  args.struct_size = sizeof args;
  bps_device* device = nullptr;
  ASSERT_EQ(table.open(&args, &device, nullptr), BPS_OK);
  void* base = nullptr;
  ASSERT_EQ(table.allocate(device, 1000, &base, nullptr), BPS_OK);
  EXPECT_NE(PointerOf(table, device, base).identity, 0u);
  ::setenv("STANDIN_CUDA_MAPPED", "1", 1);
  const bps_device_pointer mapped = PointerOf(table, device, base);
  ::unsetenv("STANDIN_CUDA_MAPPED");
  EXPECT_EQ(mapped.type, BPS_CUDA);
  EXPECT_EQ(mapped.base, base);
  EXPECT_EQ(mapped.identity, 0u);
  EXPECT_EQ(table.release(device, base, nullptr), BPS_OK);
  table.close(device);
}

}  // namespace
}  // namespace byteps
