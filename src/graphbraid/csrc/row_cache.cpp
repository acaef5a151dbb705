#include "row_cache.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "hugepages.h"

namespace gb {
namespace {

constexpr int64_t kSlotsAhead = 16;  // ids whose slots are fetched before they are looked up
constexpr int64_t kCopiedAtOnce = 1024;
constexpr int64_t kFilledAtOnce = 4096;
constexpr size_t kPage = size_t{1} << 21;

}  // namespace

RowCache::RowCache(DiskReader& disk, int64_t capacity, std::unique_ptr<Replacement> policy, bool looks_ahead)
    : disk_(disk),
      capacity_(capacity),
      policy_(std::move(policy)),
      ahead_(looks_ahead && capacity > 0 ? std::make_unique<LookAhead>(disk.table().num_rows) : nullptr),
      slot_of_(capacity > 0 ? static_cast<size_t>(disk.table().num_rows) : 0, -1),
      row_in_(static_cast<size_t>(capacity)) {
  const auto num_bytes = static_cast<size_t>(capacity * disk.table().row_bytes);
  if (num_bytes == 0) return;
  memory_ = static_cast<char*>(std::aligned_alloc(kPage, (num_bytes + kPage - 1) / kPage * kPage));
  if (memory_ == nullptr) throw std::bad_alloc();
  use_huge_pages(memory_, static_cast<int64_t>(num_bytes));
}

RowCache::~RowCache() { std::free(memory_); }

int64_t RowCache::overhead_bytes() const {
  const int64_t num_rows = static_cast<int64_t>(slot_of_.size());
  constexpr int64_t kSlotBytes = 8 + 16;  // the row in it, and what a policy keeps of it
  return num_rows * (ahead_ == nullptr ? 4 : 8) + capacity_ * kSlotBytes + disk_.buffer_bytes();
}

CacheCounts RowCache::counts() {
  const std::lock_guard<std::mutex> lock(mutex_);
  CacheCounts counts = counts_;
  counts.kept = num_kept_;
  return counts;
}

void RowCache::check(const int64_t* ids, int64_t count) const {
  const auto num_rows = static_cast<uint64_t>(disk_.table().num_rows);
  for (int64_t i = 0; i < count; ++i)
    if (static_cast<uint64_t>(ids[i]) >= num_rows)
      throw std::invalid_argument("ids must be rows in [0, " + std::to_string(num_rows) + "); ids[" +
                                  std::to_string(i) + "] is " + std::to_string(ids[i]));
}

void RowCache::fill(const int64_t* ids, int64_t count) {
  check(ids, count);
  const int64_t row_bytes = disk_.table().row_bytes;
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<char> rows(static_cast<size_t>(kFilledAtOnce * row_bytes));
  for (int64_t i = 0; i < count && num_kept_ < capacity_;) {
    wanted_.clear();
    const int64_t room = std::min(kFilledAtOnce, capacity_ - num_kept_);
    for (; i < count && static_cast<int64_t>(wanted_.size()) < room; ++i)
      if (slot_of(ids[i]) < 0) wanted_.push_back({ids[i], static_cast<int64_t>(wanted_.size())});
    disk_.read(wanted_, rows.data());
    counts_.filled += static_cast<int64_t>(wanted_.size());
    for (const WantedRow& row : wanted_)
      if (slot_of(row.id) < 0) keep(row.id, rows.data() + row.place * row_bytes, kNever);
  }
}

int64_t RowCache::announce(const int64_t* ids, int64_t count) {
  check(ids, count);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (ahead_ == nullptr) return -1;
  return ahead_->announce(ids, count, [&](int64_t row, int64_t batch) {
    if (const int32_t slot = slot_of(row); slot >= 0) policy_->announced(slot, row, batch);
  });
}

void RowCache::forget() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (ahead_ == nullptr) return;
  while (ahead_->holds(ahead_->first_batch())) drop_first();
}

void RowCache::gather(const int64_t* ids, int64_t count, char* out, int64_t batch) {
  check(ids, count);
  if (is_fixed_.load(std::memory_order_acquire)) return gather_fixed(ids, count, out);
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool is_announced = begin_batch(ids, count, batch);
  const auto next = [&](int64_t place) { return is_announced ? ahead_->next_of(place) : kNever; };
  wanted_.clear();
  const int64_t num_hits = copy_kept(ids, count, out, wanted_, [&](const RowCopy& copy) {
    policy_->hit(static_cast<int32_t>(copy.row), ids[copy.place], next(copy.place));
  });
  disk_.read(wanted_, out);
  for (const WantedRow& row : wanted_) {
    const char* from = out + row.place * disk_.table().row_bytes;
    if (capacity_ == 0) break;
    const int32_t slot = slot_of(row.id);
    slot >= 0 ? policy_->hit(slot, row.id, next(row.place)) : keep(row.id, from, next(row.place));
  }
  if (is_announced) ahead_->drop_first();
  counts_.reads += count;
  counts_.hits += num_hits;
}

// Slots and what is in them are only read: threads take turns at the disk alone.
void RowCache::gather_fixed(const int64_t* ids, int64_t count, char* out) {
  std::vector<WantedRow> wanted;
  const int64_t num_hits = copy_kept(ids, count, out, wanted, [](const RowCopy&) {});
  const std::lock_guard<std::mutex> lock(mutex_);
  disk_.read(wanted, out);
  counts_.reads += count;
  counts_.hits += num_hits;
}

// Copies the rows that are kept, puts the others into `wanted`, and returns how many were kept. In parts that
// the first-level cache holds beside what is noted of them.
template <typename Copied>
int64_t RowCache::copy_kept(const int64_t* ids, int64_t count, char* out, std::vector<WantedRow>& wanted,
                            const Copied& copied) {
  std::array<RowCopy, kCopiedAtOnce> copies;
  int64_t num_hits = 0;
  for (int64_t first = 0; first < count; first += kCopiedAtOnce) {
    const int64_t last = std::min(first + kCopiedAtOnce, count);
    size_t found = 0;
    for (int64_t i = first; i < last; ++i) {
      if (i + kSlotsAhead < count && capacity_ > 0) __builtin_prefetch(&slot_of(ids[i + kSlotsAhead]));
      const int32_t slot = capacity_ > 0 ? slot_of(ids[i]) : -1;
      if (slot >= 0)
        copies[found++] = {slot, i};
      else
        wanted.push_back({ids[i], i});
    }
    copy_rows(memory_, disk_.table().row_bytes, copies.data(), static_cast<int64_t>(found), out);
    for (size_t i = 0; i < found; ++i) copied(copies[i]);
    num_hits += static_cast<int64_t>(found);
  }
  return num_hits;
}

// Brings an announced batch to the front; those before it never came.
bool RowCache::begin_batch(const int64_t* ids, int64_t count, int64_t batch) {
  if (ahead_ == nullptr || !ahead_->holds(batch)) return false;
  while (ahead_->first_batch() < batch) drop_first();
  return ahead_->is_first_of(ids, count);
}

void RowCache::drop_first() {
  for (int64_t i = 0; i < ahead_->first_count(); ++i) {
    const int64_t row = ahead_->row_of(i);
    if (const int32_t slot = slot_of(row); slot >= 0) policy_->announced(slot, row, ahead_->next_of(i));
  }
  ahead_->drop_first();
}

void RowCache::keep(int64_t row, const char* from, int64_t next) {
  int32_t slot;
  if (num_kept_ < capacity_) {
    slot = num_kept_++;
  } else {
    slot = policy_->choose(row, next);
    if (slot < 0) return;
    slot_of(row_in(slot)) = -1;
  }
  row_in(slot) = row;
  slot_of(row) = slot;
  std::memcpy(at(slot), from, static_cast<size_t>(disk_.table().row_bytes));
  policy_->take(slot, row, next);
  if (num_kept_ == capacity_ && !policy_->replaces()) is_fixed_.store(true, std::memory_order_release);
}

}  // namespace gb
