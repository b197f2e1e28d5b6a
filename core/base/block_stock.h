// block_stock.h - memory of objects of one type, kept for the next of them: a steady stream allocates nothing.
//
//     auto stock = std::make_shared<BlockStock>();
//     auto object = std::allocate_shared<Thing>(StockAllocator<Thing>(stock), arguments...);
//
// The stock lives as long as the last of its objects; what is free by then goes with it.
//
// Threads: any.
#ifndef BYTEPS_CORE_BASE_BLOCK_STOCK_H_
#define BYTEPS_CORE_BASE_BLOCK_STOCK_H_

#include <cstddef>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

namespace byteps {

// Blocks of one size: that of the first that was taken. Others are the heap's business.
class BlockStock {
 public:
  BlockStock() = default;
  BlockStock(const BlockStock&) = delete;
  BlockStock& operator=(const BlockStock&) = delete;
  ~BlockStock() {
    while (free_ != nullptr) ::operator delete(std::exchange(free_, free_->next));
  }

  void* Take(size_t bytes) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (bytes_ == 0) bytes_ = bytes;
      if (bytes == bytes_ && free_ != nullptr) return std::exchange(free_, free_->next);
    }
    return ::operator new(bytes < sizeof(Free) ? sizeof(Free) : bytes);
  }

  void Give(void* block, size_t bytes) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (bytes != bytes_) return ::operator delete(block);
    free_ = new (block) Free{free_};
  }

 private:
  struct Free {
    Free* next;
  };
  std::mutex mutex_;
  size_t bytes_ = 0;
  Free* free_ = nullptr;
};

template <typename T>
class StockAllocator {
 public:
  using value_type = T;

  explicit StockAllocator(std::shared_ptr<BlockStock> stock) : stock_(std::move(stock)) {}
  template <typename U>
  StockAllocator(const StockAllocator<U>& other) : stock_(other.stock()) {}

  T* allocate(size_t count) { return static_cast<T*>(stock_->Take(count * sizeof(T))); }
  void deallocate(T* memory, size_t count) { stock_->Give(memory, count * sizeof(T)); }
  const std::shared_ptr<BlockStock>& stock() const { return stock_; }

  template <typename U>
  bool operator==(const StockAllocator<U>& other) const {
    return stock_ == other.stock();
  }

 private:
  std::shared_ptr<BlockStock> stock_;
};

}  // namespace byteps

#endif  // BYTEPS_CORE_BASE_BLOCK_STOCK_H_
