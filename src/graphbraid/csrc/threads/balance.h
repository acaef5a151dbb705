// Sharing rows of a CSC among threads by work instead of by count: degrees follow a power law.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "threads/parallel.h"

namespace gb {

// Rows of more edges than this are summed in segments of this many, added in order. Fixed, so that the bits
// do not depend on the number of threads. Several threads may sum one hub, and its rounding error grows with
// the segment's length instead of the row's.
inline constexpr int64_t kHubEdges = 2048;

// First row whose work (edges before it plus row_cost per row) reaches `target`.
inline int64_t row_at_work(const int64_t* indptr, int64_t num_rows, int64_t row_cost, int64_t target) {
  int64_t low = 0, high = num_rows;
  while (low < high) {
    const int64_t mid = (low + high) / 2;
    if (indptr[mid] + mid * row_cost < target)
      low = mid + 1;
    else
      high = mid;
  }
  return low;
}

// Calls body(first_row, last_row) over all rows in chunks of about equal work, handed out as threads become
// free. `edge_work`: cost of an edge in some unit such that a chunk should hold about 2^15 of it.
template <typename Body>
void parallel_rows(const int64_t* indptr, int64_t num_rows, int64_t edge_work, const Body& body) {
  constexpr int64_t kRowCost = 4;  // a row's own cost in edges: its output, loop start and epilogue
  constexpr int64_t kWorkOfAChunk = int64_t{1} << 15, kMostChunks = 4096;
  if (num_rows == 0) return;
  const int64_t work = indptr[num_rows] + num_rows * kRowCost;
  const int64_t grain = std::max<int64_t>(1, kWorkOfAChunk / std::max<int64_t>(1, edge_work));
  const int64_t chunks = std::clamp<int64_t>(work / grain, 1, kMostChunks);
  if (chunks == 1 || max_threads() == 1) {
    body(int64_t{0}, num_rows);
    return;
  }
  parallel_dynamic(chunks, 1, [&](int64_t first, int64_t last) {
    const int64_t begin = row_at_work(indptr, num_rows, kRowCost, work * first / chunks);
    const int64_t end =
        last == chunks ? num_rows : row_at_work(indptr, num_rows, kRowCost, work * last / chunks);
    if (begin < end) body(begin, end);
  });
}

struct Segment {
  int64_t row, begin, end;  // edges [begin, end) of a hub
};

// The segments of all hubs, in order.
inline std::vector<Segment> hub_segments(const int64_t* indptr, int64_t num_rows) {
  std::vector<Segment> segments;
  if (num_rows == 0 || indptr[num_rows] - indptr[0] <= kHubEdges) return segments;
  // Threads look for blocks of rows that have hubs, few of all.
  constexpr int64_t kBlock = int64_t{1} << 13;
  const int64_t blocks = (num_rows + kBlock - 1) / kBlock;
  std::vector<char> has_hub(static_cast<size_t>(blocks));
  parallel_static(blocks, 8, [&](int64_t first, int64_t last) {
    for (int64_t block = first; block < last; ++block) {
      int64_t spare = 0;  // below 0 where a row's is: many rows are seen without a branch
      for (int64_t v = block * kBlock; v < std::min(num_rows, (block + 1) * kBlock); ++v)
        spare |= kHubEdges - (indptr[v + 1] - indptr[v]);
      has_hub[block] = spare < 0;
    }
  });
  for (int64_t block = 0; block < blocks; ++block) {
    if (!has_hub[block]) continue;
    for (int64_t v = block * kBlock; v < std::min(num_rows, (block + 1) * kBlock); ++v) {
      if (indptr[v + 1] - indptr[v] <= kHubEdges) continue;
      for (int64_t e = indptr[v]; e < indptr[v + 1]; e += kHubEdges)
        segments.push_back({v, e, std::min(e + kHubEdges, indptr[v + 1])});
    }
  }
  return segments;
}

// Position of the first segment of `row`.
inline int64_t first_segment(const std::vector<Segment>& segments, int64_t row) {
  const auto at = std::lower_bound(segments.begin(), segments.end(), row,
                                   [](const Segment& segment, int64_t r) { return segment.row < r; });
  return at - segments.begin();
}

}  // namespace gb
