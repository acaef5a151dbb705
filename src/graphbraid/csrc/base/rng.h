// The counter RNG (docs/architecture.md, "Random numbers"): a draw is a function of its coordinates, never of
// a stream's state. ops/rng.py has the same few lines.
// The test tests/sampling/test_rng.py compares both.
#pragma once

#include <cstdint>

namespace gb {

inline constexpr uint64_t kPhi = 0x9E3779B97F4A7C15ull;

// The finaliser of splitmix64.
inline uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

inline uint64_t batch_key(uint64_t seed, uint64_t epoch, uint64_t step) {
  return mix(seed ^ mix((epoch << 32) + step));
}

inline uint64_t row_key(uint64_t batch_key, uint64_t hop, uint64_t node) {
  return mix(batch_key ^ mix((hop << 56) + node));
}

// The key of the row of a node and a relation. Nodes are below 2^40 and relations below 2^16, so together
// they stay below the hop's bits (56 and up), and no two rows share a key. Relation 0 has the untyped row's
// key.
inline uint64_t typed_row_key(uint64_t batch_key, uint64_t hop, uint64_t relation, uint64_t node) {
  return row_key(batch_key, hop, (relation << 40) + node);
}

// The i-th draw of a row: 32 random bits.
inline uint32_t draw(uint64_t row_key, uint64_t i) {
  return static_cast<uint32_t>(mix(row_key + i * kPhi) >> 32);
}

// Maps a draw to [0, n), n < 2^32.
inline uint64_t bounded(uint32_t bits, uint64_t n) { return (static_cast<uint64_t>(bits) * n) >> 32; }

}  // namespace gb
