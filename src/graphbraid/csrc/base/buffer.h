// Uninitialised memory that grows and is reused: a mini-batch's arrays are written once and never zeroed.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace gb {

template <typename T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(int64_t count) { reserve(count); }
  Buffer(Buffer&& other) noexcept { *this = std::move(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(capacity_, other.capacity_);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(data_); }

  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](int64_t i) { return data_[i]; }
  const T& operator[](int64_t i) const { return data_[i]; }
  int64_t capacity() const { return capacity_; }

  // Makes room for `count` elements and keeps the first `used`.
  void reserve(int64_t count, int64_t used = 0) {
    if (count <= capacity_) return;
#ifdef __SANITIZE_ADDRESS__
    // No slack: the first access past the end must hit the sanitizer's red zone.
    const int64_t capacity = count;
    const size_t bytes = static_cast<size_t>(capacity) * sizeof(T);
    void* data = nullptr;
    if (posix_memalign(&data, kAlign, bytes) != 0) throw std::bad_alloc();
#else
    const int64_t capacity = std::max<int64_t>(count + count / 4, 64);
    const size_t bytes = (static_cast<size_t>(capacity) * sizeof(T) + kAlign - 1) / kAlign * kAlign;
    const size_t align = bytes >= kHugePage ? kHugePage : kAlign;
    void* data = std::aligned_alloc(align, (bytes + align - 1) / align * align);
    if (data == nullptr) throw std::bad_alloc();
    // A batch touches its table at random: with 4 KiB pages most of the time goes into page walks.
    if (align == kHugePage) madvise(data, (bytes + align - 1) / align * align, MADV_HUGEPAGE);
#endif
    if (used > 0) std::memcpy(data, data_, static_cast<size_t>(used) * sizeof(T));
    std::free(data_);
    data_ = static_cast<T*>(data);
    capacity_ = capacity;
  }

 private:
  static constexpr size_t kAlign = 64;
  static constexpr size_t kHugePage = size_t{1} << 21;
  T* data_ = nullptr;
  int64_t capacity_ = 0;
};

}  // namespace gb
