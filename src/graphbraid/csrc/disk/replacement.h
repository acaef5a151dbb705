// Which rows a full cache keeps. A policy sees slots, the rows in them, and, where coming batches were
// announced, the batch that next reads a row; it moves nothing.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>

namespace gb {

// The next reader of a row that no announced batch reads. Numbers of batches stay far below.
inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

class Replacement {
 public:
  virtual ~Replacement() = default;
  // Whether rows are ever evicted.
  virtual bool replaces() const { return true; }
  // A row in a slot was read.
  virtual void hit(int32_t slot, int64_t row, int64_t next) = 0;
  // A row without a slot was read, and none is free. Returns the slot whose row is evicted for it; -1: none.
  virtual int32_t choose(int64_t row, int64_t next) = 0;
  // A slot holds a row from now on.
  virtual void take(int32_t slot, int64_t row, int64_t next) = 0;
  // The batch that next reads a row in a slot has changed.
  virtual void announced(int32_t, int64_t, int64_t) {}
};

// By name:
//   static  never evicts;
//   sieve   SIEVE (Zhang et al., NSDI 2024). A hand moves from the oldest row to the newest, again and again.
//           It evicts the first row that was not read since it last passed. A row that was read stays, and
//           must be read again before the hand comes back;
//   belady  evicts the row whose next read is last. Rows that no announced batch reads go first: those of the
//           lowest rank, and of these the least recently read. If all coming batches were announced, no other
//           policy has fewer misses.
// rank: (num_rows,) how much a row is worth beyond what was announced, or null. Null for an unknown name.
std::unique_ptr<Replacement> make_replacement(const std::string& name, int64_t capacity, const uint8_t* rank);

}  // namespace gb
