#include "disk/row_cache.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "base/hugepages.h"

namespace gb {
namespace {

constexpr int64_t kSlotsAhead = 64;  // ids whose slots are fetched before they are looked up
constexpr int64_t kCopiedAtOnce = 1024;
constexpr int64_t kFilledAtOnce = 4096;
constexpr int kSecondLevel = 2;  // the cache that can wait for more lines at a time than the first
constexpr size_t kPage = size_t{1} << 21;

}  // namespace

RowCache::RowCache(RowReader& reader, int64_t capacity, std::unique_ptr<Replacement> policy, bool looks_ahead)
    : reader_(reader),
      capacity_(capacity),
      policy_(std::move(policy)),
      ahead_(looks_ahead && capacity > 0 ? std::make_unique<LookAhead>(reader.num_rows()) : nullptr),
      row_in_(static_cast<size_t>(capacity)) {
  if (capacity > 0) {
    slot_of_.reserve(static_cast<size_t>(reader.num_rows()));
    use_huge_pages(slot_of_.data(), reader.num_rows());
    slot_of_.assign(static_cast<size_t>(reader.num_rows()), -1);
  }
  const auto num_bytes = static_cast<size_t>(capacity * reader.row_bytes());
  if (num_bytes == 0) return;
  memory_ = static_cast<char*>(std::aligned_alloc(kPage, (num_bytes + kPage - 1) / kPage * kPage));
  if (memory_ == nullptr) throw std::bad_alloc();
  use_huge_pages(memory_, static_cast<int64_t>(num_bytes));
}

RowCache::~RowCache() { std::free(memory_); }

int64_t RowCache::overhead_bytes() const {
  const int64_t num_rows = static_cast<int64_t>(slot_of_.size());
  constexpr int64_t kSlotBytes = 8 + 16;  // the row in it, and what a policy keeps of it
  return num_rows * (ahead_ == nullptr ? 4 : 8) + capacity_ * kSlotBytes + reader_.buffer_bytes();
}

CacheCounts RowCache::counts() {
  const std::lock_guard<std::mutex> lock(mutex_);
  CacheCounts counts = counts_;
  counts.kept = num_kept_;
  return counts;
}

void RowCache::check(const int64_t* ids, int64_t count) const {
  const auto num_rows = static_cast<uint64_t>(reader_.num_rows());
  for (int64_t i = 0; i < count; ++i)
    if (static_cast<uint64_t>(ids[i]) >= num_rows)
      throw std::invalid_argument("ids must be rows in [0, " + std::to_string(num_rows) + "); ids[" +
                                  std::to_string(i) + "] is " + std::to_string(ids[i]));
}

void RowCache::fill(const int64_t* ids, int64_t count) {
  check(ids, count);
  const int64_t row_bytes = reader_.row_bytes();
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<char> rows(static_cast<size_t>(kFilledAtOnce * row_bytes));
  for (int64_t i = 0; i < count && num_kept_ < capacity_;) {
    wanted_.clear();
    const int64_t room = std::min(kFilledAtOnce, capacity_ - num_kept_);
    for (; i < count && static_cast<int64_t>(wanted_.size()) < room; ++i)
      if (slot_of(ids[i]) < 0) wanted_.push_back({ids[i], static_cast<int64_t>(wanted_.size())});
    reader_.read(wanted_, rows.data());
    counts_.filled += static_cast<int64_t>(wanted_.size());
    for (const WantedRow& row : wanted_)
      if (slot_of(row.id) < 0) keep(row.id, rows.data() + row.place * row_bytes, kNever);
  }
  fix_if_full();
}

int64_t RowCache::announce(const int64_t* ids, int64_t count) {
  check(ids, count);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (ahead_ == nullptr || is_fixed_.load(std::memory_order_relaxed)) return -1;
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
  const int64_t num_hits = copy_kept(ids, count, out, wanted_, [&](int32_t slot, int64_t place) {
    policy_->hit(slot, ids[place], next(place));
  });
  reader_.read(wanted_, out);
  for (const WantedRow& row : wanted_) {
    const char* from = out + row.place * reader_.row_bytes();
    if (capacity_ == 0) break;
    const int32_t slot = slot_of(row.id);
    slot >= 0 ? policy_->hit(slot, row.id, next(row.place)) : keep(row.id, from, next(row.place));
  }
  if (is_announced) ahead_->drop_first();
  fix_if_full();
  counts_.reads += count;
  counts_.hits += num_hits;
}

void RowCache::decide(const int64_t* ids, int64_t count, int64_t batch, int32_t* slots, int32_t* fills) {
  check(ids, count);
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool changes = !is_fixed_.load(std::memory_order_relaxed) && capacity_ > 0;
  const bool is_announced = changes && begin_batch(ids, count, batch);
  const auto next = [&](int64_t place) { return is_announced ? ahead_->next_of(place) : kNever; };
  look_up(ids, count, 0, count, slots);
  counts_.reads += count;
  for (int64_t i = 0; i < count; ++i) {
    if (slots[i] < 0) continue;
    ++counts_.hits;
    if (changes) policy_->hit(slots[i], ids[i], next(i));
  }
  for (int64_t i = 0; changes && i < count; ++i) {
    if (slots[i] >= 0) continue;
    const int32_t slot = slot_of(ids[i]);  // of an id that is there twice
    slot >= 0 ? policy_->hit(slot, ids[i], next(i)) : static_cast<void>(take_slot(ids[i], next(i)));
  }
  // Only now: a slot may have been given to one row after the other.
  for (int64_t i = 0; i < count; ++i) fills[i] = changes && slots[i] < 0 ? slot_of(ids[i]) : -1;
  if (is_announced) ahead_->drop_first();
  fix_if_full();
}

// Slots and what is in them are only read: threads take turns at the reader alone.
void RowCache::gather_fixed(const int64_t* ids, int64_t count, char* out) {
  std::vector<WantedRow> wanted;
  int64_t num_hits = count;
  if (is_prefix_ && capacity_ == reader_.num_rows())
    gather_rows(memory_, reader_.row_bytes(), ids, count, out);
  else
    num_hits = copy_kept(ids, count, out, wanted, [](int32_t, int64_t) {});
  const std::lock_guard<std::mutex> lock(mutex_);
  reader_.read(wanted, out);
  counts_.reads += count;
  counts_.hits += num_hits;
}

// Copies the rows that are kept, puts the others into `wanted`, and returns how many were kept. In parts that
// the first-level cache holds: the slots of a part first, and its rows then.
template <typename Copied>
int64_t RowCache::copy_kept(const int64_t* ids, int64_t count, char* out, std::vector<WantedRow>& wanted,
                            const Copied& copied) {
  const int64_t row_bytes = reader_.row_bytes();
  const size_t before = wanted.size();
  std::array<int32_t, kCopiedAtOnce> slots;
  for (int64_t first = 0; first < count; first += kCopiedAtOnce) {
    const int64_t last = std::min(first + kCopiedAtOnce, count);
    look_up(ids, count, first, last, slots.data());
    copy_slots(memory_, row_bytes, slots.data(), last - first, out + first * row_bytes);
    for (int64_t i = first; i < last; ++i) {
      const int32_t slot = slots[static_cast<size_t>(i - first)];
      slot >= 0 ? copied(slot, i) : wanted.push_back({ids[i], i});
    }
  }
  return count - static_cast<int64_t>(wanted.size() - before);
}

// slots[i - first] = the slot of ids[i], -1 where it has none, for i in [first, last).
void RowCache::look_up(const int64_t* ids, int64_t count, int64_t first, int64_t last, int32_t* slots) const {
  if (is_prefix_ || capacity_ == 0) {
    for (int64_t i = first; i < last; ++i)
      slots[i - first] = ids[i] < capacity_ ? static_cast<int32_t>(ids[i]) : -1;
    return;
  }
  const int32_t* const slot_of = slot_of_.data();
  for (int64_t i = first; i < last; ++i) {
    if (i + kSlotsAhead < count) __builtin_prefetch(slot_of + ids[i + kSlotsAhead], 0, kSecondLevel);
    slots[i - first] = slot_of[ids[i]];
  }
}

// Drops the announced batches before this one: they never came. Returns whether `ids` is what it announced.
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

// Gives a row a slot, evicting another row if none is free, and returns it; -1: the policy evicts none.
int32_t RowCache::take_slot(int64_t row, int64_t next) {
  int32_t slot;
  if (num_kept_ < capacity_) {
    slot = num_kept_++;
  } else {
    slot = policy_->choose(row, next);
    if (slot < 0) return slot;
    slot_of(row_in(slot)) = -1;
  }
  row_in(slot) = row;
  slot_of(row) = slot;
  policy_->take(slot, row, next);
  return slot;
}

void RowCache::keep(int64_t row, const char* from, int64_t next) {
  const int32_t slot = take_slot(row, next);
  if (slot >= 0) std::memcpy(at(slot), from, static_cast<size_t>(reader_.row_bytes()));
}

// Fixes the cache if no row will be evicted any more: from then on neither policy nor look-ahead is asked.
void RowCache::fix_if_full() {
  if (num_kept_ < capacity_ || capacity_ == 0 || is_fixed_.load(std::memory_order_relaxed)) return;
  if (policy_->replaces() && capacity_ < reader_.num_rows()) return;
  while (ahead_ != nullptr && ahead_->holds(ahead_->first_batch())) ahead_->drop_first();
  int64_t slot = 0;
  while (slot < capacity_ && row_in_[static_cast<size_t>(slot)] == slot) ++slot;
  is_prefix_ = slot == capacity_;
  is_fixed_.store(true, std::memory_order_release);  // last: gather then reads all of this without the lock
}

}  // namespace gb
