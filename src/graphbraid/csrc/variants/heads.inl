// Numbers per edge and head in vectors: element (i, h) stands at i * heads + h, so that the edges of a row
// are one flat array. Includes exp.inl.

#include "variants/exp.inl"

// Prefetches `bytes` from p into the second-level cache, for rows that are read some edges later. They are
// more lines than the first-level cache can wait for at a time.
GB_INLINE void prefetch_far(const void* p, int64_t bytes) {
  constexpr int second_level = 2;
  const char* line = static_cast<const char*>(p);
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(line + i, 0, second_level);
}

// Lane l of the result is v[index[l]].
GB_INLINE VecF32 permute(VecF32 v, VecI32 index) {
#if GB_LANES_F32 == 16
  return reinterpret_cast<VecF32>(
      _mm512_permutexvar_ps(reinterpret_cast<__m512i>(index), reinterpret_cast<__m512>(v)));
#elif GB_LANES_F32 == 8
  return reinterpret_cast<VecF32>(
      _mm256_permutevar8x32_ps(reinterpret_cast<__m256>(v), reinterpret_cast<__m256i>(index)));
#else
  VecF32 out;
  for (int l = 0; l < GB_LANES_F32; ++l) out[l] = v[index[l]];
  return out;
#endif
}
GB_INLINE VecF64 permute(VecF64 v, VecI64 index) {
#if GB_LANES_F32 == 16
  return reinterpret_cast<VecF64>(
      _mm512_permutexvar_pd(reinterpret_cast<__m512i>(index), reinterpret_cast<__m512d>(v)));
#else
  VecF64 out;
  for (int l = 0; l < GB_LANES_F32 / 2; ++l) out[l] = v[index[l]];
  return out;
#endif
}

// Lane l of the result is from[index[l]]. A whole vector at `from` must be readable.
template <typename A>
GB_INLINE Vec<A> by_index(const A* from, Mask<A> index) {
  if constexpr (GB_LANES_F32 == 16 || (GB_LANES_F32 == 8 && sizeof(A) == 4))
    return permute(load(from), index);
  Vec<A> out;
  for (int l = 0; l < kLanes<A>; ++l) out[l] = from[index[l]];
  return out;
}

// Loads n elements. A constant n means all lanes.
template <typename T, typename N>
GB_INLINE Vec<T> get(const T* from, N n) {
  if constexpr (std::is_same_v<N, int>)
    return load_n(from, n);
  else
    return load(from);
}
template <typename A, typename N>
GB_INLINE void put(A* to, Vec<A> v, N n) {
  if constexpr (std::is_same_v<N, int>)
    store_n(to, v, n);
  else
    store(to, v);
}

// The sums of pairs of neighbouring lanes: first the pairs of a, then those of b.
template <typename V, int... I>
GB_INLINE V pair_sums_(V a, V b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, (2 * I)...) + __builtin_shufflevector(a, b, (2 * I + 1)...);
}
template <typename V>
GB_INLINE V pair_sums(V a, V b) {
  return pair_sums_(a, b, std::make_integer_sequence<int, sizeof(V) / sizeof(a[0])>{});
}

// The sums of groups of N neighbouring lanes of the vectors leaf(first) ... leaf(first + N - 1), in order. N
// is a power of two, at most the number of lanes.
template <int N, typename Leaf>
GB_INLINE auto group_sums(const Leaf& leaf, int64_t first) {
  if constexpr (N == 1) {
    return leaf(first);
  } else if constexpr (N <= 4) {
    const auto left = group_sums<N / 2>(leaf, first);
    const auto right = group_sums<N / 2>(leaf, first + N / 2);
    return pair_sums(left, right);
  } else {  // a loop keeps the code small
    decltype(leaf(first)) part[N / 4];
    for (int q = 0; q < N / 4; ++q) part[q] = group_sums<4>(leaf, first + 4 * q);
    return group_sums<N / 4>([&](int64_t q) GB_LAMBDA { return part[q]; }, 0);
  }
}

// Writes the `total` sums of groups of Group neighbouring lanes of `count` vectors. `part` has room for Group
// more vectors, which are set to zeros.
template <typename A, int Group>
void sum_parts(Vec<A>* part, int64_t count, int64_t total, A* out) {
  constexpr int L = kLanes<A>;
  for (int64_t k = count; k % Group; ++k) part[k] = Vec<A>{};
  int64_t at = 0, k = 0;
  const auto leaf = [&](int64_t i) GB_LAMBDA { return part[i]; };
  for (; at + L <= total; at += L, k += Group) store(out + at, group_sums<Group>(leaf, k));
  if (at < total) store_n(out + at, group_sums<Group>(leaf, k), static_cast<int>(total - at));
}
template <typename A>
void sum_parts(int group, Vec<A>* part, int64_t count, int64_t total, A* out) {
  constexpr int L = kLanes<A>;
  if (group == L) return sum_parts<A, L>(part, count, total, out);
  if (group == 1) return sum_parts<A, 1>(part, count, total, out);
  if (group == 2) return sum_parts<A, 2>(part, count, total, out);
  if (group == 4) return sum_parts<A, 4>(part, count, total, out);
  if constexpr (L > 8) sum_parts<A, 8>(part, count, total, out);
}

// sum_heads for rows of NV vectors: Fold vectors are a head, or a vector holds several heads of `group`
// columns. If the whole row is one head, its last vector has `last` columns.
template <typename T, int NV, int Fold, typename Term>
GB_INLINE void sum_heads_of(int64_t edges, int64_t heads, int group, int last, const Term& term,
                            Acc<T>* out) {
  constexpr int L = kLanes<T>, M = NV / Fold;
  constexpr int64_t together = 16;  // edges at a time: a multiple of the sums that a vector holds
  Vec<T> part[together * M + L];
  for (int64_t first = 0; first < edges; first += together) {
    const int64_t count = std::min(together, edges - first);
    for (int64_t i = 0; i < count; ++i) {
      const auto columns = term(first + i);
      const auto vector = [&](auto m) GB_LAMBDA {
        if constexpr (M == 1 && decltype(m)::value + 1 == NV) return columns(m * L, last);
        return columns(m * L, std::integral_constant<int, L>{});
      };
      unroll<M>([&](auto m) GB_LAMBDA {
        Vec<T> sum = vector(std::integral_constant<int, m * Fold>{});
        unroll<Fold - 1>([&](auto f)
                             GB_LAMBDA { sum += vector(std::integral_constant<int, m * Fold + f + 1>{}); });
        part[i * M + m] = sum;
      });
    }
    sum_parts<Acc<T>>(group, part, count * M, count * heads, out + first * heads);
  }
}

// out[i * heads + h] = the sum over head h's columns of the terms of edge i, for `edges` edges.
// term(i)(column, n) is the vector of n columns from `column` on, with zeros in its other lanes. With Common,
// common shapes have their own code, in which a vector may hold the columns of several heads.
template <typename T, bool Common = true, typename Term>
GB_INLINE void sum_heads(int64_t edges, int64_t heads, int64_t channels, const Term& term, Acc<T>* out) {
  constexpr int L = kLanes<T>;
  if constexpr (Common && std::is_same_v<T, float> && GB_LANES_F32 > 4) {  // not for all: code size
    const int64_t vectors = (heads * channels + L - 1) / L, fold = std::max<int64_t>(channels / L, 1);
    const bool fits = (heads * channels) % L == 0 && (channels % L == 0 || L % channels == 0);
    const int group = heads == 1 ? L : static_cast<int>(std::min<int64_t>(channels, L));
    const int last = static_cast<int>(channels - (vectors - 1) * L);  // used if there is one head
    const auto run = [&](auto nv, auto f) GB_LAMBDA {
      if (vectors != nv || (heads == 1 ? f != nv : !fits || fold != f)) return false;
      sum_heads_of<T, decltype(nv)::value, decltype(f)::value>(edges, heads, group,
                                                               f == 1 && heads > 1 ? L : last, term, out);
      return true;
    };
    using std::integral_constant;
    constexpr integral_constant<int, 1> k1;
    constexpr integral_constant<int, 2> k2;
    constexpr integral_constant<int, 3> k3;
    constexpr integral_constant<int, 4> k4;
    constexpr integral_constant<int, 8> k8;
    if (run(k1, k1) || run(k2, k1) || run(k2, k2) || run(k3, k3) || run(k4, k1) || run(k4, k4) ||
        run(k8, k1) || run(k8, k2) || run(k8, k8))
      return;
  }
  Vec<T> part[L];
  int waiting = 0;
  for (int64_t i = 0; i < edges; ++i) {
    const auto columns = term(i);
    int64_t c = 0, end = 0;
    for (int64_t h = 0; h < heads; ++h) {  // a head without channels also gets its sum, 0
      end += channels;
      Vec<T> sum{};
      for (; c + L <= end; c += L) sum += columns(c, std::integral_constant<int, L>{});
      if (c < end) sum += columns(c, static_cast<int>(end - c));
      c = end;
      part[waiting++] = sum;
      if (waiting < L) continue;
      store(out, group_sums<L>([&](int64_t k) GB_LAMBDA { return part[k]; }, 0));
      out += L;
      waiting = 0;
    }
  }
  if (waiting > 0) sum_parts<Acc<T>, L>(part, waiting, waiting, out);
}

// The head of each lane in the vectors of a flat row. A vector holds the numbers of as many whole edges as
// fit. If there are more heads than lanes, it holds some heads of one edge.
template <typename A>
struct HeadLanes {
  static constexpr int L = kLanes<A>;
  int64_t heads;
  int64_t together = heads <= L ? L / heads : 1;  // edges in a vector
  bool doubles = (together & (together - 1)) == 0;
  int num_turns = 0;
  Mask<A> head_of{};  // the head of each lane
  Mask<A> turns[4];   // rotations by which a lane gets its head's numbers at the vector's other edges

  explicit HeadLanes(int64_t number) : heads(number) {
    for (int64_t l = 0; l < L; ++l) head_of[l] = heads <= L ? l % heads : l;
    const auto turn = [&](int64_t by) {
      Mask<A> index{};
      for (int64_t l = 0; l < L; ++l) index[l] = heads <= L ? (l + by * heads) % (together * heads) : l;
      return index;
    };
    if (doubles) {
      for (int64_t by = 1; by < together; by *= 2) turns[num_turns++] = turn(by);
    } else {
      num_turns = static_cast<int>(together) - 1;
      turns[0] = turn(1);
    }
  }

  // Joins all lanes of a head by op. With 2^k edges in a vector, v is turned by 1, 2, 4, ... edges, which
  // doubles the edges in a lane. Else the vector that came in is turned by one edge at a time: none is twice.
  template <typename Op>
  GB_INLINE Vec<A> over_edges(Vec<A> v, const Op& op) const {
    Vec<A> turned = v;
    for (int t = 0; t < num_turns; ++t) {
      turned = doubles ? permute(v, turns[t]) : permute(turned, turns[0]);
      v = op(v, turned);
    }
    return v;
  }

  // The numbers of the heads from `first` on, each in all lanes of its head.
  GB_INLINE Vec<A> spread(const A* per_head, int64_t first) const {
    return permute(load_n(per_head + first, own(first)), head_of);
  }
  // Stores a vector in which all lanes of a head are the same, one number per head.
  GB_INLINE void keep(A* per_head, const Vec<A>& v, int64_t first) const {
    store_n(per_head + first, v, own(first));
  }
  // The number of heads in the group that starts with head `first`.
  GB_INLINE int own(int64_t first) const { return static_cast<int>(std::min<int64_t>(L, heads - first)); }

  // The number of lanes in use in the vectors of that group.
  GB_INLINE int64_t live(int64_t first) const {
    return heads <= L ? together * heads : std::min<int64_t>(L, heads - first);
  }

  // Calls body(at, n) for each vector of a flat row, from head `first` on. The vector has the n elements from
  // `at` on; n is a constant if they fill it.
  template <typename Body>
  GB_INLINE void each(int64_t size, int64_t first, const Body& body) const {
    const int64_t most = live(first), stride = heads <= L ? most : heads;
    int64_t at = first;
    if (std::is_same_v<A, float> && most == L)
      for (; at + L <= size; at += stride) body(at, std::integral_constant<int, L>{});
    for (; at < size; at += stride) body(at, static_cast<int>(std::min(most, size - at)));
  }

  // Calls row(first) for each group of heads that share vectors: all heads, or as many as there are lanes.
  template <typename Row>
  GB_INLINE void groups(const Row& row) const {
    for (int64_t first = 0; first < heads; first += L) row(first);
  }
};

// The lanes of a, then those of b.
template <typename V, int... I>
GB_INLINE auto joined(V a, V b, std::integer_sequence<int, I...>) {
  return __builtin_shufflevector(a, b, I...);
}

// A vector of N lanes for the numbers of an edge with N heads, N being small.
template <int N>
struct Few {};
template <typename A, int N>
struct FewLanes {
  typedef A Type __attribute__((vector_size(N * sizeof(A))));
};
template <typename A>
struct FewLanes<A, 1> {
  using Type = A;
};
template <typename A, int N>
GB_INLINE auto get(const A* from, Few<N>) {
  typename FewLanes<A, N>::Type v;
  __builtin_memcpy(&v, from, sizeof(v));
  return v;
}
template <typename A, typename V, int N>
GB_INLINE void put(A* to, V v, Few<N>) {
  __builtin_memcpy(to, &v, sizeof(v));
}

// The N numbers at from(first), those at from(first + 1), ... of Count edges side by side.
template <typename A, int N, int Count, typename From>
GB_INLINE auto side_by_side(const From& from, int first = 0) {
  if constexpr (Count == 1) {
    return get(from(first), Few<N>{});
  } else {
    const auto left = side_by_side<A, N, Count / 2>(from, first);
    const auto right = side_by_side<A, N, Count / 2>(from, first + Count / 2);
    if constexpr (N * Count == 2)
      return typename FewLanes<A, 2>::Type{left, right};
    else
      return joined(left, right, std::make_integer_sequence<int, N * Count>{});
  }
}

// v in the first n lanes, `rest` in the others.
template <typename A, typename N>
GB_INLINE Vec<A> first_of(Vec<A> v, N n, A rest) {
  if constexpr (std::is_same_v<N, int>) {
    Mask<A> lane{};
    for (int l = 0; l < kLanes<A>; ++l) lane[l] = l;
    return lane < n ? v : splat<Vec<A>>(rest);
  }
  return v;
}

// Calls body(heads) for numbers of type A. A common number of heads is passed as a constant.
template <typename A, typename Body>
GB_INLINE void fixed_heads(int64_t heads, const Body& body) {
  if constexpr (std::is_same_v<A, float>) {  // not for doubles: code size
    if (heads == 1) return body(std::integral_constant<int64_t, 1>{});
    if (heads == 2) return body(std::integral_constant<int64_t, 2>{});
    if (heads == 4) return body(std::integral_constant<int64_t, 4>{});
    if constexpr (kLanes<A> >= 8)
      if (heads == 8) return body(std::integral_constant<int64_t, 8>{});
  }
  body(heads);
}

// Calls body(h, n) for each n heads from h on whose numbers fill a vector; once if the number is a constant.
template <typename A, typename Heads, typename Body>
GB_INLINE void each_head(Heads heads, const Body& body) {
  if constexpr (std::is_same_v<Heads, int64_t>) {
    for (int64_t h = 0; h < heads; h += kLanes<A>)
      body(h, static_cast<int>(std::min<int64_t>(kLanes<A>, heads - h)));
  } else {
    body(int64_t{0}, Few<static_cast<int>(Heads::value)>{});
  }
}

struct Sum {
  template <typename V>
  GB_INLINE V operator()(const V& a, const V& b) const {
    return a + b;
  }
};
struct Greater {
  template <typename V>
  GB_INLINE V operator()(const V& a, const V& b) const {
    return a > b ? a : b;
  }
};

// Softmax over a flat row of `size` numbers, for the heads from `first` on. logit(at, n) returns the numbers.
// The powers are written to `to`. finish(at, n, alpha) gets the coefficients, and keep(top, total) the
// largest logits and the sums of powers. start(at) is called before the powers from `at` on are computed.
template <typename A, typename Logit, typename Start, typename Keep, typename Finish>
GB_INLINE void softmax_row(const HeadLanes<A>& lanes, int64_t first, int64_t size, A* to, const Logit& logit,
                           const Start& start, const Keep& keep, const Finish& finish) {
  const A lowest = -std::numeric_limits<A>::infinity();
  Vec<A> top = splat<Vec<A>>(lowest), total{};
  lanes.each(size, first,
             [&](int64_t at, auto n) GB_LAMBDA { top = Greater{}(first_of(logit(at, n), n, lowest), top); });
  top = lanes.over_edges(top, Greater{});
  lanes.each(size, first, [&](int64_t at, auto n) GB_LAMBDA {
    start(at);
    const Vec<A> power = exp_lanes(logit(at, n) - top);
    put(to + at, power, n);
    total += first_of(power, n, A{0});
  });
  total = lanes.over_edges(total, Sum{});
  keep(top, total);
  const Vec<A> inverse = A{1} / total;
  lanes.each(size, first, [&](int64_t at, auto n) GB_LAMBDA { finish(at, n, get(to + at, n) * inverse); });
}
