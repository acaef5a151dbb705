// How far ahead kernels fetch rows that are read by id.
#pragma once

#include <algorithm>

namespace gb {

// Of a prefetch: the second-level cache can wait for more lines at a time than the first.
inline constexpr int kFirstLevel = 3, kSecondLevel = 2;
// Cache lines kept under way per thread, and most rows: more than these are slower again where two threads
// share the third-level cache.
inline constexpr int kLinesAhead = 96, kRowsAhead = 32;

// Edges between a row that is read and the one that is fetched, for rows of so many lines.
constexpr int prefetch_distance(int lines) { return std::clamp(kLinesAhead / lines, 2, kRowsAhead); }

// The cache to fetch such rows into: the narrow ones' few lines come early enough for the first.
constexpr int prefetch_level(int lines) { return lines <= 2 ? kFirstLevel : kSecondLevel; }

}  // namespace gb
