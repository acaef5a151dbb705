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
  // Whether rows may go that have a slot.
  virtual bool replaces() const { return true; }
  // A row in a slot was read.
  virtual void hit(int32_t slot, int64_t row, int64_t next) = 0;
  // A row was read that has no slot, and none is free: the slot to give it, whose row goes. -1: none.
  virtual int32_t choose(int64_t row, int64_t next) = 0;
  // A slot holds a row from now on.
  virtual void take(int32_t slot, int64_t row, int64_t next) = 0;
  // A row in a slot is next read by another batch than was known.
  virtual void announced(int32_t, int64_t, int64_t) {}
};

// By name:
//   static  what filled the cache stays;
//   sieve   SIEVE (Zhang et al., NSDI 2024): the oldest row that was not read since the hand last passed it
//           goes;
//   belady  the row that is next read last goes, among those never read again as far as is known one of the
//           lowest rank, the least recently read of these. Exact where all coming batches were announced: no
//           other policy has fewer misses.
// rank: (num_rows,) how much a row is worth beyond what was announced, or null. Null for an unknown name.
std::unique_ptr<Replacement> make_replacement(const std::string& name, int64_t capacity, const uint8_t* rank);

}  // namespace gb
