// Stable counting scatter, the one algorithm behind building, transposing and sorting adjacency lists.
//
// Bound by cache misses on the scattered writes, not by instructions: one code for every processor, no
// variants. Work is cut into chunks of items. A chunk writes to places that the counts of the chunks before
// it fix, and equal keys stay in order. So results depend neither on the number of chunks nor of threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/hugepages.h"
#include "threads/parallel.h"

namespace gb {

// The number of chunks into which `num_items` are divided. Each needs `num_keys` counters. All counters
// together stay below one per item, so one thread does a graph with more nodes than edges.
inline int64_t scatter_chunks(int64_t num_items, int64_t num_keys) {
  // A mini-batch block stays on one thread (5 ms): beside busy sampling threads a second one that waits for
  // its turn has cost up to 50 ms.
  constexpr int64_t kItemsPerChunk = 1 << 18;
  const int64_t by_memory = num_items / std::max<int64_t>(num_keys, 1);
  return std::clamp<int64_t>(std::min(by_memory, num_items / kItemsPerChunk), 1, max_threads());
}

// Turns counts[chunk * num_keys + key] into the place of that chunk's first item of that key, and fills
// indptr.
template <typename Count>
void counts_to_places(Count* counts, int64_t num_chunks, int64_t num_keys, int64_t* indptr) {
  const int64_t num_ranges = num_keys < (1 << 15) ? 1 : num_chunks;
  std::vector<int64_t> first(num_ranges + 1, 0);
  parallel_dynamic(num_ranges, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t from = num_keys * r / num_ranges, to = num_keys * (r + 1) / num_ranges;
      int64_t sum = 0;
      for (int64_t c = 0; c < num_chunks; ++c)
        for (int64_t k = from; k < to; ++k) sum += counts[c * num_keys + k];
      first[r + 1] = sum;
    }
  });
  for (int64_t r = 0; r < num_ranges; ++r) first[r + 1] += first[r];
  parallel_dynamic(num_ranges, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t from = num_keys * r / num_ranges, to = num_keys * (r + 1) / num_ranges;
      int64_t place = first[r];
      for (int64_t k = from; k < to; ++k) {
        indptr[k] = place;
        for (int64_t c = 0; c < num_chunks; ++c) {
          const Count count = counts[c * num_keys + k];
          counts[c * num_keys + k] = static_cast<Count>(place);
          place += count;
        }
      }
    }
  });
  indptr[num_keys] = first[num_ranges];
}

// Orders items 0..num_items by key(item), ties in rising order of item: fills indptr (num_keys + 1) and calls
// emit(item, place, cursor) for each. make_cursor(first_item) gives a chunk's own state, e.g. the row it is
// in. Count holds any place: uint32_t for fewer than 2^32 items.
template <typename Count, typename Key, typename MakeCursor, typename Emit>
void counting_scatter(int64_t num_items, int64_t num_keys, int64_t* indptr, const Key& key,
                      const MakeCursor& make_cursor, const Emit& emit) {
  const int64_t num_chunks = scatter_chunks(num_items, num_keys);
  std::unique_ptr<Count[]> counts(new Count[num_chunks * num_keys]);
  use_huge_pages(counts.get(), num_chunks * num_keys);
  const auto chunk_begin = [&](int64_t chunk) { return num_items * chunk / num_chunks; };
  parallel_dynamic(num_chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      Count* own = counts.get() + c * num_keys;
      std::fill(own, own + num_keys, Count{0});
      for (int64_t i = chunk_begin(c); i < chunk_begin(c + 1); ++i) ++own[key(i)];
    }
  });
  counts_to_places(counts.get(), num_chunks, num_keys, indptr);
  parallel_dynamic(num_chunks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      Count* own = counts.get() + c * num_keys;
      auto cursor = make_cursor(chunk_begin(c));
      for (int64_t i = chunk_begin(c); i < chunk_begin(c + 1); ++i) emit(i, own[key(i)]++, cursor);
    }
  });
}

// Finds the rows of rising positions in an indptr.
class RowCursor {
 public:
  RowCursor(const int64_t* indptr, int64_t num_rows, int64_t position)
      : indptr_(indptr), row_(std::upper_bound(indptr, indptr + num_rows + 1, position) - indptr - 1) {}
  int64_t row_of(int64_t position) {
    while (position >= indptr_[row_ + 1]) ++row_;
    return row_;
  }

 private:
  const int64_t* indptr_;
  int64_t row_;
};

// The first index in [0, n) for which wrong(index) holds, or -1.
template <typename Wrong>
int64_t first_where(int64_t n, const Wrong& wrong, int64_t grain = 1 << 16) {
  std::atomic<int64_t> first{n};
  parallel_dynamic(n, grain, [&](int64_t begin, int64_t end) {
    if (begin >= first.load(std::memory_order_relaxed)) return;
    for (int64_t i = begin; i < end; ++i) {
      if (!wrong(i)) continue;
      int64_t seen = first.load(std::memory_order_relaxed);
      while (i < seen && !first.compare_exchange_weak(seen, i, std::memory_order_relaxed)) {
      }
      return;
    }
  });
  const int64_t found = first.load();
  return found < n ? found : -1;
}

// Like first_where, for a test that the compiler can make of many indices at once.
template <typename Wrong>
int64_t first_where_fast(int64_t n, const Wrong& wrong) {
  constexpr int64_t kBlock = 1024, kBlocksPerTask = 256;
  const int64_t block = first_where((n + kBlock - 1) / kBlock,
                                    [=](int64_t b) {
                                      const int64_t begin = b * kBlock, end = std::min(n, begin + kBlock);
                                      int any = 0;
                                      for (int64_t i = begin; i < end; ++i) any |= static_cast<int>(wrong(i));
                                      return any != 0;
                                    },
                                    kBlocksPerTask);
  if (block < 0) return -1;
  int64_t i = block * kBlock;
  while (!wrong(i)) ++i;
  return i;
}

}  // namespace gb
