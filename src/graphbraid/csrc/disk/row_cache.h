// A cache of rows in front of a file, or of whatever else reads rows by id:
//
//   ids (num_ids,)  --->  out[i, :] = row ids[i], from memory where it is kept, else from the file
//
// Reads of one cache take turns, each with the disk's whole queue: no row is read twice at a time, and the
// rows that a batch read are kept for the next. A policy decides which rows stay (replacement.h). Once no row
// will be evicted any more, the cache is fixed, and threads copy kept rows at the same time. If a fixed cache
// holds the first rows of the file in their order (a graph renumbered by score, or one kept whole), a
// comparison says where a row is, and the map is not read.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "disk/disk_reader.h"
#include "disk/lookahead.h"
#include "disk/replacement.h"
#include "gather/gather.h"

namespace gb {

struct CacheCounts {
  int64_t reads = 0, hits = 0, filled = 0, kept = 0;  // rows
};

class RowCache {
 public:
  // capacity: rows. policy: of make_replacement, for this capacity. It looks ahead where `looks_ahead`.
  RowCache(RowReader& reader, int64_t capacity, std::unique_ptr<Replacement> policy, bool looks_ahead);
  ~RowCache();

  // Reads rows into free slots until none is free; skips rows that have a slot.
  void fill(const int64_t* ids, int64_t count);
  // Says what a coming batch will read; returns the number to gather it by. Batches come in this order.
  int64_t announce(const int64_t* ids, int64_t count);
  // Forgets the batches that were announced and have not come.
  void forget();
  // batch: the number that announce gave; -1 where it was not announced.
  void gather(const int64_t* ids, int64_t count, char* out, int64_t batch);
  // Decides what gather would do, and moves no row: for rows that the caller keeps by slot. slots[i]: the
  // slot of ids[i]; -1: the row must be brought. fills[i]: the slot for a row that was brought; -1: it is not
  // kept. The caller reads all slots of a call before it fills any, and does so in the order of the calls.
  void decide(const int64_t* ids, int64_t count, int64_t batch, int32_t* slots, int32_t* fills);
  CacheCounts counts();
  // The bytes of everything that it keeps beside rows.
  int64_t overhead_bytes() const;

 private:
  int64_t& row_in(int32_t slot) { return row_in_[static_cast<size_t>(slot)]; }
  int32_t& slot_of(int64_t row) { return slot_of_[static_cast<size_t>(row)]; }
  char* at(int32_t slot) { return memory_ + slot * reader_.row_bytes(); }
  void check(const int64_t* ids, int64_t count) const;
  void look_up(const int64_t* ids, int64_t count, int64_t first, int64_t last, int32_t* slots) const;
  template <typename Copied>
  int64_t copy_kept(const int64_t* ids, int64_t count, char* out, std::vector<WantedRow>& wanted,
                    const Copied& copied);
  void gather_fixed(const int64_t* ids, int64_t count, char* out);
  bool begin_batch(const int64_t* ids, int64_t count, int64_t batch);
  void drop_first();
  int32_t take_slot(int64_t row, int64_t next);
  void keep(int64_t row, const char* from, int64_t next);
  void fix_if_full();

  RowReader& reader_;
  const int64_t capacity_;
  const std::unique_ptr<Replacement> policy_;
  std::unique_ptr<LookAhead> ahead_;   // null: it does not look ahead
  char* memory_ = nullptr;             // (capacity, row_bytes)
  std::vector<int32_t> slot_of_;       // (num_rows,) -1: not kept
  std::vector<int64_t> row_in_;        // (capacity,)
  int32_t num_kept_ = 0;               // slots [0, num_kept) hold rows
  std::atomic<bool> is_fixed_{false};  // all slots hold rows, and these stay
  bool is_prefix_ = false;             // of a fixed cache: slot i holds row i
  std::vector<WantedRow> wanted_;      // of the gather under way
  std::mutex mutex_;
  CacheCounts counts_;
};

}  // namespace gb
