// The rows that coming batches read, and for each such read the batch that reads the row next.
//
// Batches are announced in the order they will come and have rising numbers. Of each row the place of its
// last announced read is kept (4 bytes a row), so that announcing a read takes one look-up.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "disk/replacement.h"

namespace gb {

class LookAhead {
 public:
  explicit LookAhead(int64_t num_rows) : last_place_(static_cast<size_t>(num_rows)) {}

  // Adds a batch and returns its number; fresh(row, batch) for each row that no announced batch was to read.
  template <typename Fresh>
  int64_t announce(const int64_t* rows, int64_t count, const Fresh& fresh) {
    const int64_t batch = next_batch_++;
    for (int64_t i = 0; i < count; ++i) {
      uint32_t& last = last_place_[static_cast<size_t>(rows[i])];
      const uint32_t place = first_place_ + static_cast<uint32_t>(reads_.size());
      // Modulo 2^32. A row with reads in the queue has the place of its latest. For any other row the index
      // is arbitrary: it lies behind the queue, or at a read of another row.
      const uint32_t index = last - first_place_;
      if (index < reads_.size() && reads_[index].row == rows[i])
        reads_[index].next = batch;
      else
        fresh(rows[i], batch);
      last = place;
      reads_.push_back({rows[i], kNever});
    }
    counts_.push_back(count);
    return batch;
  }

  bool holds(int64_t batch) const { return batch >= first_batch() && batch < next_batch_; }
  int64_t first_batch() const { return next_batch_ - static_cast<int64_t>(counts_.size()); }
  int64_t first_count() const { return counts_.front(); }
  bool is_first_of(const int64_t* rows, int64_t count) const {
    if (counts_.empty() || counts_.front() != count) return false;
    for (int64_t i = 0; i < count; ++i)
      if (reads_[static_cast<size_t>(i)].row != rows[i]) return false;
    return true;
  }
  // The batch that next reads the row of the first batch's i-th read, or kNever.
  int64_t next_of(int64_t i) const { return reads_[static_cast<size_t>(i)].next; }
  int64_t row_of(int64_t i) const { return reads_[static_cast<size_t>(i)].row; }
  void drop_first() {
    const int64_t count = counts_.front();
    reads_.erase(reads_.begin(), reads_.begin() + count);
    first_place_ += static_cast<uint32_t>(count);
    counts_.pop_front();
  }

 private:
  struct Read {
    int64_t row, next;
  };
  std::deque<Read> reads_;
  std::deque<int64_t> counts_;  // reads of each batch
  std::vector<uint32_t> last_place_;
  uint32_t first_place_ = 0;
  int64_t next_batch_ = 0;
};

}  // namespace gb
