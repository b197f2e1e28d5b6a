// sysfs.h - the small files in which the kernel tells of the host.
//
//     std::string state = ReadLine(root + "/sys/class/net/eth0/operstate");     // "" if it cannot be read
//     for (const std::string& name : Entries(root + "/sys/class/net")) ...
//
// Threads: free functions.
#ifndef BYTEPS_TOOLS_INFO_SYSFS_H_
#define BYTEPS_TOOLS_INFO_SYSFS_H_

#include <cstdint>
#include <string>
#include <vector>

namespace byteps {

// The first line of a file, without its end; "" if there is none.
std::string ReadLine(const std::string& path);

// The number that a file begins with, hexadecimal after "0x"; `otherwise` if there is none.
int64_t ReadNumber(const std::string& path, int64_t otherwise);

// What follows "<key>:" in a file of such lines, as /proc/meminfo is, without spaces around it; "" if there is none.
std::string ReadField(const std::string& path, const std::string& key);

// The names in a folder, sorted, without those that begin with '.'; none if it cannot be read.
std::vector<std::string> Entries(const std::string& folder);

// The last part of what a symbolic link points to; "" if it is none.
std::string LinkName(const std::string& path);

// "20.1 GiB", "512 KiB".
std::string Bytes(uint64_t bytes);

}  // namespace byteps

#endif  // BYTEPS_TOOLS_INFO_SYSFS_H_
