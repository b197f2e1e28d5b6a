// crc32c.h - the checksum of payloads (CRC-32C, Castagnoli: as in iSCSI and ext4), by the processor's instruction.
//
//     uint32_t checksum = Crc32c(bytes);
//
// Finds every change of up to 32 bits in a row, and misses one other change in four billion. It is no protection from
// intended changes.
//
// Threads: any.
#ifndef BYTEPS_CORE_BASE_CRC32C_H_
#define BYTEPS_CORE_BASE_CRC32C_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace byteps {

uint32_t Crc32c(std::span<const std::byte> bytes);

// Without the instruction: for processors that lack it, and to compare with.
uint32_t Crc32cByTable(std::span<const std::byte> bytes);

}  // namespace byteps

#endif  // BYTEPS_CORE_BASE_CRC32C_H_
