// transfers.h - the transfers in flight, by their operation's number.
//
//     Transfer* transfer = transfers.Add(operation);      // reused memory: no allocation in the steady state
//     transfers.Find(operation->id)
//     Partition* partition = transfers.FindCookie(Transfers::CookieOf(*partition));
//     transfers.Remove(transfer);
//
// Threads: none.
#ifndef BYTEPS_CORE_WORKER_SERVERS_TRANSFERS_H_
#define BYTEPS_CORE_WORKER_SERVERS_TRANSFERS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>

#include "absl/container/flat_hash_map.h"
#include "core/worker/servers/transfer.h"

namespace byteps {

class Transfers {
 public:
  Transfer* Add(Operation* operation) {
    Transfer* transfer = std::pmr::polymorphic_allocator<>(&pool_).new_object<Transfer>(&pool_);
    std::unique_ptr<Transfer, Deleter> owned(transfer, Deleter{&pool_});
    transfer->operation = operation;
    all_.insert_or_assign(operation->id, std::move(owned));
    return transfer;
  }
  void Remove(const Transfer* transfer) { all_.erase(transfer->operation->id); }

  // nullptr: not here.
  Transfer* Find(uint64_t operation) const {
    const auto found = all_.find(operation);
    return found == all_.end() ? nullptr : found->second.get();
  }
  bool empty() const { return all_.empty(); }
  // The one that there is; nullptr if there are none, or several.
  const Transfer* only() const { return all_.size() == 1 ? all_.begin()->second.get() : nullptr; }

  // What stands for a partition where it is announced: the operation's number and the part; never 0.
  static uint64_t CookieOf(const Partition& partition) {
    return partition.transfer->operation->id << kPartBits | partition.part;
  }
  Partition* FindCookie(uint64_t cookie) const {
    Transfer* transfer = Find(cookie >> kPartBits);
    const size_t part = cookie & ((uint64_t{1} << kPartBits) - 1);
    return transfer == nullptr || part >= transfer->partitions.size() ? nullptr : &transfer->partitions[part];
  }

  template <typename Visit>
  void ForEach(const Visit& visit) {
    for (auto& [id, transfer] : all_) visit(transfer.get());
  }

 private:
  static constexpr int kPartBits = 24;  // Cut::Make allows no more parts

  struct Deleter {
    std::pmr::memory_resource* memory;
    void operator()(Transfer* transfer) const { std::pmr::polymorphic_allocator<>(memory).delete_object(transfer); }
  };

  std::pmr::unsynchronized_pool_resource pool_{{.max_blocks_per_chunk = 0, .largest_required_pool_block = 1 << 16}};
  absl::flat_hash_map<uint64_t, std::unique_ptr<Transfer, Deleter>> all_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_WORKER_SERVERS_TRANSFERS_H_
