// Distances of each query from each row, and their gradients:
//
//   query (num_queries, parts * width), rows (num_rows, parts * width)  --->  out (num_queries, num_rows)
//
//   absolute    out[i, j] = sum over k of |d[k]|,  d = query[i] - rows[j]
//   euclidean   out[i, j] = root of the sum over k of d[k]^2
//   moduli      out[i, j] = sum over k of root(d[k]^2 + d[width + k]^2): two parts, real and imaginary
//
// The gradient of out is multiplied by the slopes s of the terms. A slope is 0 where a distance is 0.
//
//   of_query[i] = sum over j of grad[i, j] * s(i, j),  of_rows[j] = -(sum over i of grad[i, j] * s(i, j))
//
// Nothing is stored per (i, j, k).
// Bound by the roots and divisions of num_queries * num_rows * width terms.

namespace gb::GB_VARIANT {

#include "variants/heads.inl"

constexpr int64_t kRowsTogether = 64;     // so many of 128 columns fit the first-level cache beside a query
constexpr int64_t kQueriesTogether = 16;  // queries of one task
constexpr int kQueriesHeld = 4;           // queries whose vectors and sums stay in registers

GB_INLINE VecF32 root(VecF32 v) {
#if GB_LANES_F32 == 16
  return reinterpret_cast<VecF32>(_mm512_sqrt_ps(reinterpret_cast<__m512>(v)));
#elif GB_LANES_F32 == 8
  return reinterpret_cast<VecF32>(_mm256_sqrt_ps(reinterpret_cast<__m256>(v)));
#else
  for (int l = 0; l < GB_LANES_F32; ++l) v[l] = std::sqrt(v[l]);
  return v;
#endif
}
GB_INLINE VecF64 root(VecF64 v) {
  for (int l = 0; l < GB_LANES_F32 / 2; ++l) v[l] = std::sqrt(v[l]);
  return v;
}

// value / by, and 0 where `by` is 0.
template <typename V>
GB_INLINE V over(V value, V by) {
  return by == 0 ? V{} : value / by;
}

// A kind of distance: the parts of a row, the term of a sum for the differences d of its parts, and slopes.
struct Absolute {
  static constexpr int kParts = 1;
  template <typename V>
  GB_INLINE static V term(const V* d) {
    return d[0] < 0 ? -d[0] : d[0];
  }
  // Replaces the differences by the term's slopes, times `share`.
  template <typename V>
  GB_INLINE static void slopes(V* d, V share) {
    d[0] = d[0] < 0 ? -share : d[0] > 0 ? share : d[0];  // 0 and NaN stay
  }
};
struct Euclidean {
  static constexpr int kParts = 1;
  template <typename V>
  GB_INLINE static V term(const V* d) {
    return d[0] * d[0];
  }
  template <typename V>
  GB_INLINE static void slopes(V* d, V share) {
    d[0] *= share;
  }
};
struct Moduli {
  static constexpr int kParts = 2;
  template <typename V>
  GB_INLINE static V term(const V* d) {
    return root(d[0] * d[0] + d[1] * d[1]);
  }
  template <typename V>
  GB_INLINE static void slopes(V* d, V share) {
    const V slope = over(share, term(d));
    d[0] *= slope;
    d[1] *= slope;
  }
};

template <typename T, typename Kind>
void distances_of(const DistanceArgs& a) {
  constexpr int P = Kind::kParts, L = kLanes<T>;
  const int64_t width = a.width;
  const T *query = static_cast<const T*>(a.query.data), *rows = static_cast<const T*>(a.rows.data);
  parallel_dynamic(a.num_queries, kQueriesTogether, [&](int64_t first, int64_t last) {
    for (int64_t j = 0; j < a.num_rows; j += kRowsTogether) {
      const int64_t count = std::min(kRowsTogether, a.num_rows - j);
      for (int64_t i = first; i < last; ++i) {
        const T* from = query + i * a.query.stride;
        T* out = static_cast<T*>(a.out) + i * a.num_rows + j;
        sum_heads<T>(
            count, 1, width,
            [&](int64_t r) GB_LAMBDA {
              const T* to = rows + (j + r) * a.rows.stride;
              return [from, to, width](int64_t c, auto n) GB_LAMBDA {
                Vec<T> d[P];
                for (int p = 0; p < P; ++p) d[p] = get(from + p * width + c, n) - get(to + p * width + c, n);
                return Kind::term(d);
              };
            },
            out);
        if constexpr (std::is_same_v<Kind, Euclidean>)
          for (int64_t r = 0; r < count; r += L) {
            const int n = static_cast<int>(std::min<int64_t>(L, count - r));
            store_n(out + r, root(load_n(out + r, n)), n);
          }
      }
    }
  });
}

// Computes n columns, from column c on, of each part of the gradients. It adds to the gradients of the rows
// [begin, end), and writes what these rows add to each query's to `sums` (num_queries, kParts * width).
template <typename T, typename Kind, int Held>
GB_INLINE void gradients_of_columns(const DistanceArgs& a, int64_t i, int64_t begin, int64_t end, int64_t c,
                                    int n, T* sums) {
  constexpr int P = Kind::kParts;
  const T* grad = static_cast<const T*>(a.grad) + i * a.num_rows;
  const T* out = static_cast<const T*>(a.out) + i * a.num_rows;
  Vec<T> from[Held][P], sum[Held][P] = {};
  for (int q = 0; q < Held; ++q)
    for (int p = 0; p < P; ++p)
      from[q][p] =
          load_n(static_cast<const T*>(a.query.data) + (i + q) * a.query.stride + p * a.width + c, n);
  for (int64_t j = begin; j < end; ++j) {
    const T* row = static_cast<const T*>(a.rows.data) + j * a.rows.stride + c;
    T* of_row = static_cast<T*>(a.of_rows) + j * P * a.width + c;
    Vec<T> to[P], back[P];
    for (int p = 0; p < P; ++p)
      to[p] = load_n(row + p * a.width, n), back[p] = load_n(of_row + p * a.width, n);
    for (int q = 0; q < Held; ++q) {
      T share = grad[q * a.num_rows + j];
      if constexpr (std::is_same_v<Kind, Euclidean>) {
        const T distance = out[q * a.num_rows + j];
        share = distance == 0 ? T{0} : share / distance;
      }
      Vec<T> d[P];
      for (int p = 0; p < P; ++p) d[p] = from[q][p] - to[p];
      Kind::slopes(d, splat<Vec<T>>(share));
      for (int p = 0; p < P; ++p) sum[q][p] += d[p], back[p] -= d[p];
    }
    for (int p = 0; p < P; ++p) store_n(of_row + p * a.width, back[p], n);
  }
  for (int q = 0; q < Held; ++q)
    for (int p = 0; p < P; ++p) store_n(sums + ((i + q) * P + p) * a.width + c, sum[q][p], n);
}

template <typename T, typename Kind>
void distances_backward_of(const DistanceArgs& a) {
  constexpr int P = Kind::kParts, L = kLanes<T>;
  // Rows are divided into parts that depend on sizes alone. The first part's sums for the queries go to
  // of_query; those of the others are added in order. So the bits do not depend on the number of threads.
  const int64_t parts = std::clamp<int64_t>(a.num_rows / kRowsTogether, 1, 8);
  const int64_t chunks = (a.width + L - 1) / L, size = a.num_queries * P * a.width;
  std::unique_ptr<T[]> others(new T[static_cast<size_t>((parts - 1) * size)]);
  T* of_query = static_cast<T*>(a.of_query);
  std::fill_n(static_cast<T*>(a.of_rows), a.num_rows * P * a.width, T{0});
  parallel_dynamic(parts * chunks, 1, [&](int64_t first, int64_t last) {
    for (int64_t task = first; task < last; ++task) {
      const int64_t part = task / chunks, c = task % chunks * L;
      const int64_t begin = a.num_rows * part / parts, end = a.num_rows * (part + 1) / parts;
      const int n = static_cast<int>(std::min<int64_t>(L, a.width - c));
      T* sums = part == 0 ? of_query : others.get() + (part - 1) * size;
      int64_t i = 0;
      for (; i + kQueriesHeld <= a.num_queries; i += kQueriesHeld)
        gradients_of_columns<T, Kind, kQueriesHeld>(a, i, begin, end, c, n, sums);
      for (; i < a.num_queries; ++i) gradients_of_columns<T, Kind, 1>(a, i, begin, end, c, n, sums);
    }
  });
  for (int64_t part = 1; part < parts; ++part) axpy(of_query, T{1}, others.get() + (part - 1) * size, size);
}

template <typename Body>
void with_distance(const DistanceArgs& a, const Body& body) {
  const auto typed = [&](auto kind) {
    a.dtype == DType::kFloat64 ? body(double{}, kind) : body(float{}, kind);
  };
  switch (a.kind) {
    case DistanceKind::kAbsolute:
      return typed(Absolute{});
    case DistanceKind::kEuclidean:
      return typed(Euclidean{});
    case DistanceKind::kModuli:
      return typed(Moduli{});
  }
}

void distances(const DistanceArgs& a) {
  with_distance(a, [&](auto number, auto kind) { distances_of<decltype(number), decltype(kind)>(a); });
}

void distances_backward(const DistanceArgs& a) {
  with_distance(a,
                [&](auto number, auto kind) { distances_backward_of<decltype(number), decltype(kind)>(a); });
}

}  // namespace gb::GB_VARIANT
