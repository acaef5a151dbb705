// Whether work is worth waking threads for. A sleeping thread (decision 0009) takes some 60 microseconds to
// wake; small work is done by one thread meanwhile.
#pragma once

#include <cstdint>

#include "threads/parallel.h"

namespace gb {

// What a thread does in about 40 microseconds, in the cache: floats passed over, multiplications of a matrix
// product, and vectors of sums looked up for bits.
inline constexpr int64_t kFloatsWorth = int64_t{1} << 17;
inline constexpr int64_t kProductsWorth = int64_t{1} << 21;
inline constexpr int64_t kLookupsWorth = int64_t{1} << 16;

// Like parallel_dynamic, where `work` is enough for two threads; else alone.
template <typename Body>
void parallel_if_worth(int64_t work, int64_t worth, int64_t n, int64_t grain, const Body& body) {
  if (work >= 2 * worth) return parallel_dynamic(n, grain, body);
  if (n > 0) body(int64_t{0}, n);
}

}  // namespace gb
