// Largest message per destination and feature, and the edges that its gradient goes to:
//
//   x (num_src, width)  --- largest over v's edges --->  out, found (num_dst, width)
//   grad of x (num_src, width)  <--- sum over u's edges of the transpose ---  grad of out (num_dst, width)
//
//   out[v, f] = max of weight[e] * x[u, f] over the edges e = u -> v
//
// 0 in an empty row; a NaN wins. found[v, f] depends on `ties`:
//
//   kFirst           the first edge with the maximum, counted in the row; -1 in an empty row
//   kShared          the number of edges with the maximum; 0 for a NaN and in an empty row
//   kSharedWithZero  the same, and one more if the maximum is 0
//
// The gradient is collected by source over the transposed graph, in order, so that no two threads write one
// row. spmm_max_backward gives it to the first edges. spmm_max_shared_backward gives it to all equal ones: it
// takes each maximum's gradient divided by their number, and finds them again by comparing. Arguments:
// spmm_max.h.

namespace gb::GB_VARIANT {

#include "variants/simd.inl"

// Each vector of a tile takes two registers: one for the maxima, one for `found`.
constexpr int kMaxTileVectors = GB_LANES_F32 == 16 ? 8 : 4;

// A message that is larger than the best so far, or the first NaN, replaces it, and `taken` replaces `found`.
// A message that equals the best adds `tie` to `found`. `wins` is "not (message <= best)", which also holds
// for a NaN, and "best is no NaN", since the first NaN stays.
#if GB_LANES_F32 == 16
GB_INLINE void keep_larger(VecF32 message, VecI32 taken, VecI32 tie, VecF32& best, VecI32& found) {
  const __m512 m = reinterpret_cast<__m512>(message), b = reinterpret_cast<__m512>(best);
  const __mmask16 wins = _mm512_mask_cmp_ps_mask(_mm512_cmp_ps_mask(m, b, _CMP_NLE_UQ), b, b, _CMP_ORD_Q);
  const __m512i before = reinterpret_cast<__m512i>(found);
  const __m512i counted = _mm512_mask_add_epi32(before, _mm512_cmp_ps_mask(m, b, _CMP_EQ_OQ), before,
                                                reinterpret_cast<__m512i>(tie));
  best = reinterpret_cast<VecF32>(_mm512_mask_mov_ps(b, wins, m));
  found = reinterpret_cast<VecI32>(_mm512_mask_mov_epi32(counted, wins, reinterpret_cast<__m512i>(taken)));
}
GB_INLINE void keep_larger(VecF64 message, VecI64 taken, VecI64 tie, VecF64& best, VecI64& found) {
  const __m512d m = reinterpret_cast<__m512d>(message), b = reinterpret_cast<__m512d>(best);
  const __mmask8 wins = _mm512_mask_cmp_pd_mask(_mm512_cmp_pd_mask(m, b, _CMP_NLE_UQ), b, b, _CMP_ORD_Q);
  const __m512i before = reinterpret_cast<__m512i>(found);
  const __m512i counted = _mm512_mask_add_epi64(before, _mm512_cmp_pd_mask(m, b, _CMP_EQ_OQ), before,
                                                reinterpret_cast<__m512i>(tie));
  best = reinterpret_cast<VecF64>(_mm512_mask_mov_pd(b, wins, m));
  found = reinterpret_cast<VecI64>(_mm512_mask_mov_epi64(counted, wins, reinterpret_cast<__m512i>(taken)));
}
#else
template <typename V, typename M>
GB_INLINE void keep_larger(V message, M taken, M tie, V& best, M& found) {
  const M wins = ~(message <= best) & (best == best);  // lanes of a comparison are all ones or all zeros
  found = wins ? taken : found + ((message == best) & tie);
  best = wins ? message : best;
}
#endif

// The first n positions, 0 < n <= lanes. They have 32 bits in memory and the sums' width in a vector.
GB_INLINE VecI32 load_positions(const int32_t* p, int n, VecI32) { return load_n(p, n); }
GB_INLINE VecI64 load_positions(const int32_t* p, int n, VecI64) {
#if GB_LANES_F32 == 16
  return reinterpret_cast<VecI64>(
      _mm512_cvtepi32_epi64(_mm256_maskz_loadu_epi32(static_cast<__mmask8>(first_lanes(n)), p)));
#else
  VecI64 out{};
  for (int i = 0; i < GB_LANES_F32 / 2; ++i) out[i] = i < n ? p[i] : 0;
  return out;
#endif
}
GB_INLINE void store_positions(int32_t* p, VecI32 v, int n) { store_n(p, v, n); }
GB_INLINE void store_positions(int32_t* p, VecI64 v, int n) {
  for (int i = 0; i < n; ++i) p[i] = static_cast<int32_t>(v[i]);
}

template <typename T, typename I, int NV>
GB_INLINE void max_tile(const SpmmMaxArgs& a, int64_t v, int64_t prefetch_end, int64_t column, int last) {
  constexpr int L = kLanes<T>;
  constexpr int lines = (NV * L * static_cast<int>(sizeof(T)) + 63) / 64;
  constexpr int distance = prefetch_distance(lines), level = prefetch_level(lines);
  const T* x = static_cast<const T*>(a.x.data) + column;
  const Acc<T>* weight = static_cast<const Acc<T>*>(a.weight);
  const int64_t begin = a.indptr[v], end = a.indptr[v + 1];
  using Lane = std::decay_t<decltype(Mask<T>{}[0])>;
  const bool empty = begin == end, first = a.ties == Ties::kFirst;
  const Mask<T> tie = splat<Mask<T>>(static_cast<Lane>(first ? 0 : 1));
  // `best` starts at -infinity, so the first message of a row wins or, if it is -infinity, too, ties. `found`
  // starts at 0: then it is the first edge's place, or becomes 0 + tie = 1.
  Vec<T> best[NV];
  Mask<T> found[NV];
  unroll<NV>([&](auto i) GB_LAMBDA {
    best[i] = splat<Vec<T>>(empty ? Acc<T>{0} : -std::numeric_limits<Acc<T>>::infinity());
    found[i] = empty && first ? Mask<T>{} - 1 : Mask<T>{};
  });
  for (int64_t e = begin; e < end; ++e) {
    if (e + distance < prefetch_end) {
      const char* next = reinterpret_cast<const char*>(x + node_at<I>(a, e + distance) * a.x.stride);
      unroll<lines>([&](auto i) GB_LAMBDA { __builtin_prefetch(next + 64 * i, 0, level); });
    }
    const T* row = x + node_at<I>(a, e) * a.x.stride;
    const Acc<T> c = weight ? weight[e] : Acc<T>{1};
    const Mask<T> taken = splat<Mask<T>>(static_cast<Lane>(first ? e - begin : 1));
    unroll<NV>([&](auto i) GB_LAMBDA {
      const Vec<T> message = c * (i < NV - 1 ? load(row + i * L) : load_n(row + (NV - 1) * L, last));
      keep_larger(message, taken, tie, best[i], found[i]);
    });
  }
  T* out = static_cast<T*>(a.out) + v * a.width + column;
  // A lane of a comparison is -1 or 0: "& initial" leaves one more for a maximum of 0, and the last "&"
  // clears the count of a NaN.
  const Mask<T> initial = splat<Mask<T>>(static_cast<Lane>(a.ties == Ties::kSharedWithZero && !empty));
  unroll<NV>([&](auto i) GB_LAMBDA {
    const int n = i < NV - 1 ? L : last;
    if (!first) found[i] = (found[i] + ((best[i] == Vec<T>{}) & initial)) & (best[i] == best[i]);
    store_n(out + i * L, best[i], n);
    if (a.found) store_positions(a.found + v * a.width + column + i * L, found[i], n);
  });
}

// Calls f(number of vectors as a constant, first column, elements in the last vector) for each tile of a row.
template <typename T, typename F>
GB_INLINE void over_tiles(int64_t width, F&& f) {
  constexpr int L = kLanes<T>;
  constexpr int most = sizeof(T) == 8 ? 4 : kMaxTileVectors;  // doubles are rare: code size
  for (int64_t column = 0; column < width;) {
    const int64_t vectors = (width - column + L - 1) / L;
    const int nv = vectors >= most ? most : vectors >= 4 ? 4 : vectors >= 2 ? 2 : 1;
    const int64_t taken = std::min<int64_t>(nv * L, width - column);
    const int last = static_cast<int>(taken - (nv - 1) * L);
    if (most > 4 && nv == most)
      f(std::integral_constant<int, most>{}, column, last);
    else if (nv == 4)
      f(std::integral_constant<int, 4>{}, column, last);
    else if (nv == 2)
      f(std::integral_constant<int, 2>{}, column, last);
    else
      f(std::integral_constant<int, 1>{}, column, last);
    column += taken;
  }
}

// One tile of columns of a source's gradient: the sum of the gradients of its winning messages.
template <typename T, typename I, int NV>
GB_INLINE void won_tile(const SpmmMaxBackwardArgs& a, int64_t u, int64_t prefetch_end, int64_t column,
                        int last) {
  constexpr int L = kLanes<T>;
  constexpr int lines = (NV * L * static_cast<int>(sizeof(T)) + 63) / 64;
  constexpr int winner_lines = (NV * L * 4 + 63) / 64;
  constexpr int distance = prefetch_distance(lines + winner_lines);
  const T* grad = static_cast<const T*>(a.x.data) + column;
  const int32_t* winners = a.winner + column;
  const Acc<T>* weight = static_cast<const Acc<T>*>(a.weight);
  Vec<T> acc[NV] = {};
  for (int64_t e = a.indptr[u]; e < a.indptr[u + 1]; ++e) {
    if (e + distance < prefetch_end) {
      const int64_t next = node_at<I>(a, e + distance);
      const char* row = reinterpret_cast<const char*>(grad + next * a.x.stride);
      const char* won = reinterpret_cast<const char*>(winners + next * a.width);
      unroll<lines>([&](auto i) GB_LAMBDA { __builtin_prefetch(row + 64 * i, 0, kSecondLevel); });
      unroll<winner_lines>([&](auto i) GB_LAMBDA { __builtin_prefetch(won + 64 * i, 0, kSecondLevel); });
      __builtin_prefetch(a.forward_indptr + next, 0, kSecondLevel);
    }
    const int64_t v = node_at<I>(a, e);
    // perm leads to the edge among the in-edges; less the beginning of v's row, it is the place in `winner`.
    const Mask<T> position =
        splat<Mask<T>>(static_cast<std::decay_t<decltype(Mask<T>{}[0])>>(a.perm[e] - a.forward_indptr[v]));
    const T* row = grad + v * a.x.stride;
    const int32_t* won = winners + v * a.width;
    const Acc<T> c = weight ? weight[e] : Acc<T>{1};
    unroll<NV>([&](auto i) GB_LAMBDA {
      const int n = i < NV - 1 ? L : last;
      const Vec<T> given = c * load_n(row + i * L, n);
      acc[i] += load_positions(won + i * L, n, Mask<T>{}) == position ? given : Vec<T>{};
    });
  }
  T* out = static_cast<T*>(a.out) + u * a.width + column;
  unroll<NV>([&](auto i) GB_LAMBDA { store_n(out + i * L, acc[i], i < NV - 1 ? L : last); });
}

// The same if equal messages share the gradient: a.x holds the share of each of them.
template <typename T, typename I, int NV>
GB_INLINE void shared_tile(const SpmmMaxSharedArgs& a, int64_t u, int64_t prefetch_end, int64_t column,
                           int last) {
  constexpr int L = kLanes<T>;
  constexpr int lines = (NV * L * static_cast<int>(sizeof(T)) + 63) / 64;
  constexpr int distance = prefetch_distance(2 * lines);
  const T* share = static_cast<const T*>(a.x.data) + column;
  const T* largest = static_cast<const T*>(a.largest) + column;
  const T* own = static_cast<const T*>(a.rows.data) + u * a.rows.stride + column;
  const Acc<T>* weight = static_cast<const Acc<T>*>(a.weight);
  Vec<T> acc[NV] = {}, row[NV];
  unroll<NV>([&](auto i) GB_LAMBDA { row[i] = load_n(own + i * L, i < NV - 1 ? L : last); });
  for (int64_t e = a.indptr[u]; e < a.indptr[u + 1]; ++e) {
    if (e + distance < prefetch_end) {
      const int64_t next = node_at<I>(a, e + distance);
      const char* given = reinterpret_cast<const char*>(share + next * a.x.stride);
      const char* best = reinterpret_cast<const char*>(largest + next * a.width);
      unroll<lines>([&](auto i) GB_LAMBDA {
        __builtin_prefetch(given + 64 * i, 0, kSecondLevel);
        __builtin_prefetch(best + 64 * i, 0, kSecondLevel);
      });
    }
    const int64_t v = node_at<I>(a, e);
    const T* given = share + v * a.x.stride;
    const T* best = largest + v * a.width;
    const Acc<T> c = weight ? weight[e] : Acc<T>{1};
    unroll<NV>([&](auto i) GB_LAMBDA {
      const int n = i < NV - 1 ? L : last;
      // No message is above the maximum, so a message that is not below it is equal. A comparison with a NaN
      // is false: all messages share a maximum that is a NaN.
      const Mask<T> below = c * row[i] < load_n(best + i * L, n);
      acc[i] += below ? Vec<T>{} : c * load_n(given + i * L, n);
    });
  }
  T* out = static_cast<T*>(a.out) + u * a.width + column;
  unroll<NV>([&](auto i) GB_LAMBDA { store_n(out + i * L, acc[i], i < NV - 1 ? L : last); });
}

// Calls tile(number of vectors as a constant, row, end of the edges to prefetch, first column, elements in
// the last vector) for the tiles of all rows. edge_bytes: what an edge reads for each column.
template <typename T, typename Tile>
GB_INLINE void over_rows(const EdgeRows& a, int64_t edge_bytes, const Tile& tile) {
  parallel_rows(a.indptr, a.num_dst, (a.width * edge_bytes + 63) / 64, [&](int64_t first, int64_t last_row) {
    const int64_t prefetch_end = a.indptr[last_row];
    for (int64_t v = first; v < last_row; ++v)
      over_tiles<T>(a.width, [&](auto nv, int64_t column, int last)
                                 GB_LAMBDA { tile(nv, v, prefetch_end, column, last); });
  });
}

template <typename T, typename I>
void run_max(const SpmmMaxArgs& a) {
  over_rows<T>(a, 2 * sizeof(T), [&](auto nv, auto... at) GB_LAMBDA { max_tile<T, I, nv>(a, at...); });
}

template <typename T, typename I>
void run_max(const SpmmMaxBackwardArgs& a) {
  over_rows<T>(a, sizeof(T) + sizeof(int32_t),
               [&](auto nv, auto... at) GB_LAMBDA { won_tile<T, I, nv>(a, at...); });
}

template <typename T, typename I>
void run_max(const SpmmMaxSharedArgs& a) {
  over_rows<T>(a, 2 * sizeof(T), [&](auto nv, auto... at) GB_LAMBDA { shared_tile<T, I, nv>(a, at...); });
}

// Training reads rows of float32 by int32 ids. These have compiled code of their own: in narrow rows, a
// branch for the width of each id would cost time.
template <typename A>
void run_max_of_dtype(const A& a) {
  if (a.dtype == DType::kFloat32 && !a.wide_indices) return run_max<float, int32_t>(a);
  for_dtype(a.dtype, [&](auto type) { run_max<decltype(type), AnyId>(a); });
}

void spmm_max(const SpmmMaxArgs& a) { run_max_of_dtype(a); }
void spmm_max_backward(const SpmmMaxBackwardArgs& a) { run_max_of_dtype(a); }
void spmm_max_shared_backward(const SpmmMaxSharedArgs& a) { run_max_of_dtype(a); }

}  // namespace gb::GB_VARIANT
