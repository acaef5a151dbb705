// Which seeds a step trains on: a keyed permutation, so that position -> seed needs no state.
#pragma once

#include <bit>
#include <cstdint>

#include "base/rng.h"

namespace gb {

// A permutation of [0, n) from a Feistel network over the next even number of bits; positions that fall
// outside are sent through again (cycle walking), at most four times on average. That ends: the network is a
// permutation, so a position's cycle leads back to it. Twin: sampling/config.py.
class KeyedPermutation {
 public:
  KeyedPermutation(uint64_t n, uint64_t key) : n_(n), key_(key) {
    const int bits = n > 1 ? std::bit_width(n - 1) : 1;
    half_bits_ = (bits + 1) / 2;
    mask_ = (uint64_t{1} << half_bits_) - 1;
  }

  uint64_t operator()(uint64_t position) const {
    do position = once(position);
    while (position >= n_);
    return position;
  }

 private:
  static constexpr int kRounds = 4;

  uint64_t once(uint64_t x) const {
    uint64_t left = x >> half_bits_, right = x & mask_;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t mixed = mix(key_ ^ mix((round << 56) + right)) & mask_;
      const uint64_t next = left ^ mixed;
      left = right;
      right = next;
    }
    return (left << half_bits_) | right;
  }

  uint64_t n_, key_, mask_;
  int half_bits_;
};

// The key of an epoch's shuffle; no batch of the same seed has it, as steps end below 2^32 - 1.
inline uint64_t shuffle_key(uint64_t seed, uint64_t epoch) { return batch_key(seed, epoch, 0xFFFFFFFFull); }

struct Schedule {
  const int64_t* seeds = nullptr;  // (num_seeds,) node ids
  int64_t num_seeds = 0;
  int64_t batch_size = 1;
  bool shuffle = false;
  uint64_t seed = 0;
  uint64_t epoch = 0;
  int64_t part = 0;  // of each step's seeds, which are cut into contiguous parts; see part_of in config.py
  int64_t num_parts = 1;

  int64_t whole_count(int64_t step) const { return std::min(num_seeds - step * batch_size, batch_size); }
  int64_t batch_begin(int64_t step) const { return step * batch_size + whole_count(step) * part / num_parts; }
  int64_t batch_count(int64_t step) const {
    return step * batch_size + whole_count(step) * (part + 1) / num_parts - batch_begin(step);
  }

  // Writes the positions, in `seeds`, of a step's seeds, and the node ids.
  void seeds_of(int64_t step, int64_t* positions, int64_t* nodes) const {
    const KeyedPermutation permutation(static_cast<uint64_t>(num_seeds), shuffle_key(seed, epoch));
    const int64_t begin = batch_begin(step), count = batch_count(step);
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t at = static_cast<uint64_t>(begin + i);
      positions[i] = static_cast<int64_t>(shuffle ? permutation(at) : at);
      nodes[i] = seeds[positions[i]];
    }
  }
};

}  // namespace gb
