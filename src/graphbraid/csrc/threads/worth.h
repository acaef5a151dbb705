// Whether work is worth waking threads for. A sleeping thread (decision 0009) takes some 60 microseconds to
// wake; small work is done by one thread meanwhile.
#pragma once

#include <cstdint>

#include "threads/parallel.h"

namespace gb {

// The work of a thread in about 40 microseconds, in the cache: floats that are passed over, multiplications
// of a matrix product, and vectors of sums that are looked up by bits.
inline constexpr int64_t kFloatsWorth = int64_t{1} << 17;
inline constexpr int64_t kProductsWorth = int64_t{1} << 21;
inline constexpr int64_t kLookupsWorth = int64_t{1} << 16;

// Like parallel_dynamic if `work` is enough for two threads; else one thread does it. The threads of a pass
// are awake, and a quarter is enough for them.
template <typename Body>
void parallel_if_worth(int64_t work, int64_t worth, int64_t n, int64_t grain, const Body& body) {
  if (work >= (team_of_pass ? worth / 2 : 2 * worth)) return parallel_dynamic(n, grain, body);
  if (n > 0) body(int64_t{0}, n);
}

}  // namespace gb
