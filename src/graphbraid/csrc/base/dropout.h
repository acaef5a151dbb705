// Dropout by counter: whether an element is kept is a function of seed, row and column, so a backward pass
// draws the same mask again instead of storing it. The twin is `keep_mask` in ops/rng.py.
#pragma once

#include <cstdint>

#include "base/rng.h"

namespace gb {

inline constexpr uint32_t kPhi32 = 0x9E3779B9u;

// An element is dropped if its 32 random bits are below this number: with probability p.
inline uint32_t drop_threshold(double p) { return static_cast<uint32_t>(p * 0x1p32); }

inline uint32_t dropout_row_key(uint64_t seed, uint64_t row) {
  return static_cast<uint32_t>(mix(seed + row * kPhi) >> 32);
}

// 32 random bits of a column: the finaliser of MurmurHash3, whose multiplications stay in 32-bit lanes.
inline uint32_t dropout_bits(uint32_t row_key, uint32_t column) {
  uint32_t h = row_key + column * kPhi32;
  h = (h ^ (h >> 16)) * 0x85EBCA6Bu;
  h = (h ^ (h >> 13)) * 0xC2B2AE35u;
  return h ^ (h >> 16);
}

}  // namespace gb
