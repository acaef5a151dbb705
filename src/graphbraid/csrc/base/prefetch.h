// How far ahead kernels prefetch rows that are read by id.
#pragma once

#include <algorithm>

namespace gb {

// Cache levels to prefetch into. The second level can wait for more lines at a time than the first.
inline constexpr int kFirstLevel = 3, kSecondLevel = 2;
// A thread prefetches at most this many lines, and rows, ahead: more are slower where two threads share the
// third-level cache.
inline constexpr int kLinesAhead = 96, kRowsAhead = 32;

// Edges between the row that is read and the row that is prefetched. lines: cache lines of a row.
constexpr int prefetch_distance(int lines) { return std::clamp(kLinesAhead / lines, 2, kRowsAhead); }

// The cache level for rows of so many lines: the first can wait for the few lines of narrow rows.
constexpr int prefetch_level(int lines) { return lines <= 2 ? kFirstLevel : kSecondLevel; }

}  // namespace gb
