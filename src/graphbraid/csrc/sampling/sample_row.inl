// Draws the in-neighbours of one node at one hop. Included by sample.inl, once per variant.
//
//   row key, its d edges [start, start + d), fanout k, weight (num_edges,) or null
//     --->  out (min(d, k),), or (k,) with replacement, or (d,) where k < 0: positions in the graph's indices
//
// A row keeps all its neighbours in order where k < 0, or where d <= k without replacement; else k are drawn.
// Every way of drawing is a function of (row key, d, k, weights) alone, and sampling/reference.py has its
// twin.

namespace gb::GB_VARIANT {
namespace {

// Natural logarithm of (bits + 1/2) / 2^32 in a fixed order of IEEE operations, so that Python, C++ and a GPU
// get the same double: log m = 2 atanh s with s = (m - 1) / (m + 1), after reducing m to [sqrt(1/2),
// sqrt(2)).
inline double log_of_draw(uint32_t bits) {
  const double z = static_cast<double>(bits) + 0.5;
  uint64_t raw;
  std::memcpy(&raw, &z, sizeof raw);
  double exponent = static_cast<double>(static_cast<int64_t>(raw >> 52) - 1023 - 32);
  raw = (raw & 0x000FFFFFFFFFFFFFull) | 0x3FF0000000000000ull;
  double m;
  std::memcpy(&m, &raw, sizeof m);
  if (m > 1.4142135623730951) {
    m = m * 0.5;
    exponent = exponent + 1.0;
  }
  const double s = (m - 1.0) / (m + 1.0);
  const double q = s * s;
  double p = 1.0 / 17.0;
  for (int odd = 15; odd >= 1; odd -= 2) p = p * q + 1.0 / odd;
  return exponent * 0.6931471805599453 + 2.0 * s * p;
}

// Floyd's algorithm: k of d without replacement, each with probability k/d exactly, because the bound of draw
// i is inclusive: t in [0, d - k + i], and a t already taken is replaced by the bound itself.
inline void floyd(uint64_t key, int64_t start, int64_t d, int64_t k, SampleScratch& scratch, int64_t* out) {
  if (k <= 48) {
    for (int64_t i = 0; i < k; ++i) {
      const int64_t bound = d - k + i;
      const int64_t t = start + static_cast<int64_t>(bounded(draw(key, i), bound + 1));
      bool taken = false;
      for (int64_t j = 0; j < i; ++j) taken |= out[j] == t;
      out[i] = taken ? start + bound : t;
    }
    return;
  }
  // An open-addressing set of positions + 1; zero is empty.
  const int bits = std::bit_width(static_cast<uint64_t>(k)) + 1;
  const uint32_t mask = (1u << bits) - 1;
  scratch.set.reserve(mask + 1);
  uint32_t* set = scratch.set.data();
  std::memset(set, 0, (static_cast<size_t>(mask) + 1) * sizeof(uint32_t));
  const auto insert = [&](uint32_t value) {
    for (uint32_t slot = (value * 0x9E3779B1u) >> (32 - bits);; slot = (slot + 1) & mask) {
      if (set[slot] == value) return false;
      if (set[slot] == 0) return set[slot] = value, true;
    }
  };
  for (int64_t i = 0; i < k; ++i) {
    const int64_t bound = d - k + i;
    int64_t t = static_cast<int64_t>(bounded(draw(key, i), bound + 1));
    if (!insert(static_cast<uint32_t>(t + 1))) insert(static_cast<uint32_t>((t = bound) + 1));
    out[i] = start + t;
  }
}

#if GB_LANES_F32 == 16
inline __m512i mix_lanes(__m512i z) {
  z = _mm512_mullo_epi64(_mm512_xor_si512(z, _mm512_srli_epi64(z, 30)),
                         _mm512_set1_epi64(0xBF58476D1CE4E5B9ull));
  z = _mm512_mullo_epi64(_mm512_xor_si512(z, _mm512_srli_epi64(z, 27)),
                         _mm512_set1_epi64(0x94D049BB133111EBull));
  return _mm512_xor_si512(z, _mm512_srli_epi64(z, 31));
}

// Eight of floyd's first choices of positions, from draw `first` on; lane i is draw first + i.
inline __m512i floyd_lanes(uint64_t key, int64_t first, int64_t d, int64_t k) {
  const __m512i lane = _mm512_add_epi64(_mm512_set1_epi64(first), _mm512_set_epi64(7, 6, 5, 4, 3, 2, 1, 0));
  const __m512i z =
      mix_lanes(_mm512_add_epi64(_mm512_set1_epi64(static_cast<int64_t>(key)),
                                 _mm512_mullo_epi64(lane, _mm512_set1_epi64(static_cast<int64_t>(kPhi)))));
  const __m512i bound = _mm512_add_epi64(lane, _mm512_set1_epi64(d - k + 1));
  return _mm512_srli_epi64(_mm512_mul_epu32(_mm512_srli_epi64(z, 32), bound), 32);
}

// floyd for k <= 16: all draws at once. The order of its steps matters only if two draws are equal.
// Writes 16 entries to `out`; the first k count.
inline void floyd_small(uint64_t key, int64_t start, int64_t d, int64_t k, SampleScratch& scratch,
                        int64_t* out) {
  const __m512i low = floyd_lanes(key, 0, d, k);
  const __m512i high = k > 8 ? floyd_lanes(key, 8, d, k) : _mm512_setzero_si512();
  const __m512i all =
      _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtepi64_epi32(low)), _mm512_cvtepi64_epi32(high), 1);
  const __mmask16 used = static_cast<__mmask16>((1u << k) - 1);
  const __m512i meets = _mm512_maskz_conflict_epi32(used, all);
  if (_mm512_test_epi32_mask(meets, meets) != 0) return floyd(key, start, d, k, scratch, out);
  _mm512_storeu_si512(out, _mm512_add_epi64(low, _mm512_set1_epi64(start)));
  _mm512_storeu_si512(out + 8, _mm512_add_epi64(high, _mm512_set1_epi64(start)));
}
#endif

// k distinct neighbours by weight, without replacement: the k first of an exponential race, neighbour i
// arriving at -log(u_i) / w_i (Efraimidis and Spirakis 2006), in order of arrival. Weight 0 never arrives.
inline int64_t race_by_weight(uint64_t key, const float* weight, int64_t start, int64_t d, int64_t k,
                              SampleScratch& scratch, int64_t* out) {
  scratch.race.reserve(d);
  scratch.order.reserve(d);
  double* arrival = scratch.race.data();
  int64_t* order = scratch.order.data();
  int64_t runners = 0;
  for (int64_t i = 0; i < d; ++i) {
    if (!(weight[start + i] > 0.0f)) continue;
    arrival[i] = -log_of_draw(draw(key, i)) / static_cast<double>(weight[start + i]);
    order[runners++] = i;
  }
  if (k < 0 || runners <= k) {
    for (int64_t i = 0; i < runners; ++i) out[i] = start + order[i];
    return runners;
  }
  std::partial_sort(order, order + k, order + runners, [arrival](int64_t a, int64_t b) {
    return arrival[a] != arrival[b] ? arrival[a] < arrival[b] : a < b;
  });
  for (int64_t i = 0; i < k; ++i) out[i] = start + order[i];
  return k;
}

// k neighbours by weight with replacement: inversion of the row's running sum.
inline int64_t invert_by_weight(uint64_t key, const float* weight, int64_t start, int64_t d, int64_t k,
                                SampleScratch& scratch, int64_t* out) {
  scratch.race.reserve(d);
  double* running = scratch.race.data();
  double total = 0.0;
  for (int64_t i = 0; i < d; ++i) {
    if (weight[start + i] > 0.0f) total = total + static_cast<double>(weight[start + i]);
    running[i] = total;
  }
  if (!(total > 0.0)) return 0;
  for (int64_t i = 0; i < k; ++i) {
    // 0 < target < total. The first sum above it belongs to an edge of positive weight: others raise no sum.
    const double target = (static_cast<double>(draw(key, i)) + 0.5) * 0x1p-32 * total;
    out[i] = start + (std::upper_bound(running, running + d, target) - running);
  }
  return k;
}

// The most edges a row of degree d can give.
inline int64_t max_count(int64_t d, int64_t fanout, bool replace) {
  if (fanout < 0) return d;
  if (replace) return d > 0 ? fanout : 0;
  return std::min(d, fanout);
}

// Writes the positions drawn for one row, and returns how many; `out` has room for max_count + 16 entries.
inline int64_t draw_row(const SampleGraph& graph, const SampleConfig& config, uint64_t key, int64_t start,
                        int64_t d, int64_t fanout, SampleScratch& scratch, int64_t* out) {
  if (graph.weight != nullptr && d > 0) {
    if (config.replace && fanout >= 0)
      return invert_by_weight(key, graph.weight, start, d, fanout, scratch, out);
    return race_by_weight(key, graph.weight, start, d, fanout, scratch, out);
  }
  if (fanout < 0 || (d <= fanout && !config.replace)) {
    for (int64_t i = 0; i < d; ++i) out[i] = start + i;
    return d;
  }
  if (d == 0) return 0;
  if (config.replace) {
    for (int64_t i = 0; i < fanout; ++i) out[i] = start + static_cast<int64_t>(bounded(draw(key, i), d));
    return fanout;
  }
#if GB_LANES_F32 == 16
  if (fanout <= 16) return floyd_small(key, start, d, fanout, scratch, out), fanout;
#endif
  floyd(key, start, d, fanout, scratch, out);
  return fanout;
}

}  // namespace
}  // namespace gb::GB_VARIANT
