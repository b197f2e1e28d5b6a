// hello.cc - the same in C++, by the header of the C++ binding.
#include <byteps/byteps.hpp>
#include <cstdio>

int main() {
  byteps::Session session;
  std::printf("hello from BytePS %s\n", bps_version_string());
  session.Shutdown();
}
