// Rows of results in a pool of memory that every step uses again.
//
// The C library returns large blocks to the system when a step frees them, and each page of the next step's
// costs a fault: up to a third of a step on mini-batches. The pool is one range of addresses. A block takes
// the lowest place that is free, so that the pool has about the bytes in use at once by the largest batch.
// What no block has reached for some thousands of blocks goes back to the system. Segments of a model take
// and free blocks without the GIL, so a lock guards all of it.
#include "arguments/pool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>

#include "arguments/binding.h"
#include "base/buffer.h"

namespace gb {
namespace {

constexpr int64_t kAlign = 256;
constexpr int64_t kPage = int64_t{1} << 21;
// Least and most bytes of a block: LEAST_POOLED and _MOST_POOLED of ops/kernels.py, which says why.
constexpr int64_t kLeastBytes = int64_t{1} << 20;
constexpr int64_t kMostBytes = int64_t{1} << 28;
constexpr int64_t kBlocksRemembered = 4096;
constexpr int64_t kShare = 4;  // the pool may take one in four bytes of the machine's memory

class Pool {
 public:
  // Returns the place of a block, or nothing: memory then comes from the C library.
  void* take(int64_t bytes) {
    const std::lock_guard lock(guard_);
    if (bytes > kMostBytes || (base_ == nullptr && !reserve())) return nullptr;
    bytes = (bytes + kAlign - 1) / kAlign * kAlign;
    int64_t begin = 0;
    for (const auto& [other, end] : used_) {
      if (begin + bytes <= other) break;
      begin = end;
    }
    if (bytes > size_ - begin || !open(begin + bytes)) return nullptr;
    used_.emplace(begin, begin + bytes);
    reached_ = std::max(reached_, begin + bytes);
    if (++num_taken_ % kBlocksRemembered == 0) {
      close_from(reached_);
      reached_ = end();
    }
    return base_ + begin;
  }

  void give_back(void* block) {
    const std::lock_guard lock(guard_);
    used_.erase(static_cast<char*>(block) - base_);
  }

  // Bytes of memory that are held.
  int64_t opened() {
    const std::lock_guard lock(guard_);
    return opened_;
  }

 private:
  // Takes addresses for all that the pool may become; no memory yet.
  bool reserve() {
#ifdef __SANITIZE_ADDRESS__
    return false;  // the first access past the end of rows must hit the sanitizer's red zone
#endif
    if (std::exchange(was_tried_, true)) return false;
    const int64_t machine = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE);
    const int64_t size = machine / kShare / kPage * kPage;
    void* found = mmap(nullptr, static_cast<size_t>(size + kPage), PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (found == MAP_FAILED) return false;
    // Rounds up to a page: (-address) mod page is what is missing. One page more was mapped for it.
    base_ = static_cast<char*>(found) + (-reinterpret_cast<intptr_t>(found) & (kPage - 1));
    size_ = size;
    return true;
  }

  bool open(int64_t until) {
    until = (until + kPage - 1) / kPage * kPage;
    if (until <= opened_) return true;
    const auto more = static_cast<size_t>(until - opened_);
    if (mprotect(base_ + opened_, more, PROT_READ | PROT_WRITE) != 0) return false;
#ifdef MADV_HUGEPAGE
    madvise(base_ + opened_, more, MADV_HUGEPAGE);
#endif
    opened_ = until;
    return true;
  }

  void close_from(int64_t first) {
    first = (first + kPage - 1) / kPage * kPage;
    if (first >= opened_) return;
    const auto rest = static_cast<size_t>(opened_ - first);
    madvise(base_ + first, rest, MADV_DONTNEED);
    mprotect(base_ + first, rest, PROT_NONE);
    opened_ = first;
  }

  int64_t end() const { return used_.empty() ? 0 : used_.rbegin()->second; }

  std::mutex guard_;
  char* base_ = nullptr;
  bool was_tried_ = false;
  int64_t size_ = 0, opened_ = 0, reached_ = 0, num_taken_ = 0;
  std::map<int64_t, int64_t> used_;  // begin of each block: its end
};

Pool& pool() {
  static auto* made = new Pool();  // never destroyed: results may outlive the module
  return *made;
}

std::optional<nb::ndarray<nb::pytorch>> rows_in_pool(int64_t num_rows, int64_t num_columns, int dtype_code,
                                                     int dtype_bits) {
  need_count(num_rows, 1, kMostItems, "num_rows");
  need_count(num_columns, 1, kMostItems / num_rows, "num_columns");
  need_count(dtype_bits, 8, 64, "dtype_bits");
  void* block = pool().take(num_rows * num_columns * (dtype_bits / 8));
  if (block == nullptr) return std::nullopt;
  nb::capsule owner(block, [](void* p) noexcept { pool().give_back(p); });
  const size_t shape[] = {static_cast<size_t>(num_rows), static_cast<size_t>(num_columns)};
  const nb::dlpack::dtype dtype{static_cast<uint8_t>(dtype_code), static_cast<uint8_t>(dtype_bits), 1};
  return nb::ndarray<nb::pytorch>(block, 2, shape, owner, nullptr, dtype, nb::device::cpu::value);
}

// Makes the memory of rows while torch's profiler counts them; null: nothing is counted. The GIL guards it.
std::atomic<PyObject*> counted_maker = nullptr;

void count_rows(const nb::object& maker) {
  Py_XDECREF(counted_maker.exchange(maker.is_none() ? nullptr : nb::object(maker).release().ptr()));
}

// Null if nothing is counted any more: another thread may have ended that before this one got the GIL.
std::shared_ptr<float> counted_memory(int64_t bytes) {
  const nb::gil_scoped_acquire acquire;
  PyObject* maker = counted_maker.load();
  if (maker == nullptr) return nullptr;
  const nb::object memory = nb::borrow(maker)(bytes);
  auto* data = reinterpret_cast<float*>(nb::cast<uintptr_t>(memory.attr("data_ptr")()));
  return {data, [held = nb::object(memory).release().ptr()](float*) {
            const nb::gil_scoped_acquire acquire;
            Py_DECREF(held);
          }};
}

}  // namespace

std::shared_ptr<float> row_memory(int64_t count) {
  const int64_t bytes = std::max<int64_t>(count, 1) * static_cast<int64_t>(sizeof(float));
  if (counted_maker.load() != nullptr)
    if (auto counted = counted_memory(bytes)) return counted;
  if (bytes >= kLeastBytes) {
    if (void* block = pool().take(bytes))
      return {static_cast<float*>(block), [](float* p) { pool().give_back(p); }};
  }
#ifndef __SANITIZE_ADDRESS__  // which must see the first access past the end
  if (bytes < kLeastBytes) {  // aligned here: the C library takes several times as long for aligned blocks
    constexpr size_t line = 64 / sizeof(float);
    const std::shared_ptr<float[]> own(new float[static_cast<size_t>(count) + line]);
    return {own, own.get() + (line - reinterpret_cast<uintptr_t>(own.get()) / sizeof(float) % line)};
  }
#endif
  const auto own = std::make_shared<Buffer<float>>(std::max<int64_t>(count, 1));
  return {own, own->data()};
}

void bind_pool(nb::module_& m) {
  m.def("rows_in_pool", &rows_in_pool, nb::arg("num_rows"), nb::arg("num_columns"), nb::arg("dtype_code"),
        nb::arg("dtype_bits"));
  m.def("count_rows", &count_rows, nb::arg("maker").none());
  m.def("pool_bytes", [] { return pool().opened(); });
}

}  // namespace gb
