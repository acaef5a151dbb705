// Sums of rectified sums of rows, GINE's, over in-neighbours:
//
//   x (num_src, width), edges (num_edges, width)  --- sum over v's edges --->  out (num_dst, width)
//   grad_edges (num_edges, width), grad_x (num_src, width)
//                                         <--- by v's edges, by u's edges ---  grad (num_dst, width)
//
// With e = u -> v:
//
//   out[v, :] = loop_scale * x[v, :] + sum of relu(x[u, :] + edges[e, :])
//   grad_edges[e, :] = grad[v, :] where x[u, :] + edges[e, :] > 0, else 0
//   grad_x[u, :] = loop_scale * grad[u, :] + sum of grad_edges[e, :] over u's out-edges
//
// grad_x is computed from grad_edges if these were computed, else from grad and the rows that were summed. A
// NaN stays. Sums run in order, by destination or over the transpose by source. Arguments: gine.h.
//
// Edges' rows may be a linear map of a few float32 features, which is computed where they are read. Then no
// row per edge is in memory. Backward sums the gradients of the map over all edges piece by piece, in one
// walk with grad_x. The pieces do not depend on the number of threads.
//
// Bound by reading num_edges rows of x at random and num_edges rows of edges in sequence; by source, both are
// read at random.

namespace gb::GB_VARIANT {

#include "variants/simd.inl"

// Vector i of a tile of NV vectors. The last vector holds `last` elements.
template <int NV, typename T>
GB_INLINE Vec<T> tile_vector(const T* row, int i, int last) {
  constexpr int L = kLanes<T>;
  return i < NV - 1 ? load(row + i * L) : load_n(row + i * L, last);
}

// Row i of a matrix of T, from `column` on.
template <typename T>
GB_INLINE const T* row_of(const Rows& rows, int64_t i, int64_t column) {
  return static_cast<const T*>(rows.data) + i * rows.stride + column;
}

template <typename V>
GB_INLINE V rectified(const V& z) {
  return z < 0 ? V{} : z;
}
// The gradient of z, from the gradient of rectified(z).
template <typename V>
GB_INLINE V through(const V& z, const V& grad) {
  return z <= 0 ? V{} : grad;
}

// The mapped row of an edge, which sums in the order of a product's row: the bias comes last.
template <int NV>
GB_INLINE void map_edge(const GineMap& map, int64_t width, const float* features, int64_t column, int last,
                        VecF32 (&edge)[NV]) {
  const float* row = map.weight + column;
  unroll<NV>([&](auto i) GB_LAMBDA { edge[i] = VecF32{}; });
  for (int64_t k = 0; k < map.channels; ++k, row += width) {
    const VecF32 factor = splat<VecF32>(features[k]);
    unroll<NV>([&](auto i) GB_LAMBDA { edge[i] += factor * tile_vector<NV>(row, i, last); });
  }
  if (map.bias == nullptr) return;
  unroll<NV>([&](auto i) GB_LAMBDA { edge[i] += tile_vector<NV>(map.bias + column, i, last); });
}

// out[v] = sum, plus loop_scale times the node's own row of `own`.
template <typename T, int NV, typename Args>
GB_INLINE void finish(const Args& a, int64_t v, int64_t column, int last, Vec<T> (&sum)[NV]) {
  constexpr int L = kLanes<T>;
  T* out = static_cast<T*>(a.out) + v * a.width + column;
  const bool has_own = v < a.num_loops;
  const T* own = row_of<T>(a.x, has_own ? v : 0, column);
  const Acc<T> scale = static_cast<Acc<T>>(a.loop_scale);
  unroll<NV>([&](auto i) GB_LAMBDA {
    if (has_own) sum[i] += scale * tile_vector<NV>(own, i, last);
    store_n(out + i * L, sum[i], i < NV - 1 ? L : last);
  });
}

template <typename T, int NV, bool Maps>
GB_INLINE void forward_tile(const GineArgs& a, int64_t v, int64_t prefetch_end, int64_t column, int last) {
  constexpr int lines = (NV * kLanes<T> * static_cast<int>(sizeof(T)) + 63) / 64;
  constexpr int distance = prefetch_distance(lines), level = prefetch_level(lines);
  Vec<T> sum[NV] = {};
  for (int64_t e = a.indptr[v]; e < a.indptr[v + 1]; ++e) {
    if (e + distance < prefetch_end) {
      const char* next = reinterpret_cast<const char*>(row_of<T>(a.x, node_at(a, e + distance), column));
      unroll<lines>([&](auto i) GB_LAMBDA { __builtin_prefetch(next + 64 * i, 0, level); });
    }
    const T* row = row_of<T>(a.x, node_at(a, e), column);
    Vec<T> edge[NV];
    if constexpr (Maps)
      map_edge<NV>(a.map, a.width, row_of<T>(a.edges, e, 0), column, last, edge);
    else
      unroll<NV>([&](auto i)
                     GB_LAMBDA { edge[i] = tile_vector<NV>(row_of<T>(a.edges, e, column), i, last); });
    unroll<NV>([&](auto i) GB_LAMBDA { sum[i] += rectified(tile_vector<NV>(row, i, last) + edge[i]); });
  }
  finish<T, NV>(a, v, column, last, sum);
}

// By source. If Gated, `edges` are the edges' rows; else they are the gradients of these.
template <typename T, int NV, bool Gated>
GB_INLINE void backward_tile(const GineBackwardArgs& a, int64_t u, int64_t prefetch_end, int64_t column,
                             int last) {
  constexpr int lines = (NV * kLanes<T> * static_cast<int>(sizeof(T)) + 63) / 64;
  constexpr int distance = prefetch_distance(Gated ? 2 * lines : lines);
  Vec<T> sum[NV] = {}, own[NV];
  if constexpr (Gated)
    unroll<NV>([&](auto i) GB_LAMBDA { own[i] = tile_vector<NV>(row_of<T>(a.source, u, column), i, last); });
  for (int64_t e = a.indptr[u]; e < a.indptr[u + 1]; ++e) {
    if (e + distance < prefetch_end) {
      const char* next = reinterpret_cast<const char*>(row_of<T>(a.edges, a.perm[e + distance], column));
      unroll<lines>([&](auto i) GB_LAMBDA { __builtin_prefetch(next + 64 * i, 0, kSecondLevel); });
      if constexpr (Gated) {
        const char* grad = reinterpret_cast<const char*>(row_of<T>(a.x, node_at(a, e + distance), column));
        unroll<lines>([&](auto i) GB_LAMBDA { __builtin_prefetch(grad + 64 * i, 0, kSecondLevel); });
      }
    }
    const T* edge = row_of<T>(a.edges, a.perm[e], column);
    if constexpr (Gated) {
      const T* grad = row_of<T>(a.x, node_at(a, e), column);
      unroll<NV>([&](auto i) GB_LAMBDA {
        sum[i] += through<Vec<T>>(own[i] + tile_vector<NV>(edge, i, last), tile_vector<NV>(grad, i, last));
      });
    } else {
      unroll<NV>([&](auto i) GB_LAMBDA { sum[i] += tile_vector<NV>(edge, i, last); });
    }
  }
  finish<T, NV>(a, u, column, last, sum);
}

template <typename T, int NV>
GB_INLINE void edge_tile(const GineEdgeBackwardArgs& a, int64_t v, int64_t prefetch_end, int64_t column,
                         int last) {
  constexpr int L = kLanes<T>;
  constexpr int lines = (NV * L * static_cast<int>(sizeof(T)) + 63) / 64;
  constexpr int distance = prefetch_distance(lines), level = prefetch_level(lines);
  Vec<T> grad[NV];
  unroll<NV>([&](auto i) GB_LAMBDA { grad[i] = tile_vector<NV>(row_of<T>(a.grad, v, column), i, last); });
  for (int64_t e = a.indptr[v]; e < a.indptr[v + 1]; ++e) {
    if (e + distance < prefetch_end) {
      const char* next = reinterpret_cast<const char*>(row_of<T>(a.x, node_at(a, e + distance), column));
      unroll<lines>([&](auto i) GB_LAMBDA { __builtin_prefetch(next + 64 * i, 0, level); });
    }
    const T* row = row_of<T>(a.x, node_at(a, e), column);
    const T* edge = row_of<T>(a.edges, e, column);
    T* out = static_cast<T*>(a.out) + e * a.out_stride + column;
    unroll<NV>([&](auto i) GB_LAMBDA {
      const Vec<T> z = tile_vector<NV>(row, i, last) + tile_vector<NV>(edge, i, last);
      store_n(out + i * L, through<Vec<T>>(z, grad[i]), i < NV - 1 ? L : last);
    });
  }
}

// Of mapped edges: the gradient of the walked row's x by source, and those of the map, which are added to
// `of_map`.
template <int NV, bool BySource>
GB_INLINE void map_backward_tile(const GineMapBackwardArgs& a, float* of_map, int64_t v, int64_t prefetch_end,
                                 int64_t column, int last) {
  constexpr int L = GB_LANES_F32;
  constexpr int lines = (NV * L * static_cast<int>(sizeof(float)) + 63) / 64;
  constexpr int distance = prefetch_distance(lines), level = prefetch_level(lines);
  VecF32 sum[NV] = {}, own[NV];
  unroll<NV>([&](auto i) GB_LAMBDA { own[i] = tile_vector<NV>(row_of<float>(a.own, v, column), i, last); });
  for (int64_t e = a.indptr[v]; e < a.indptr[v + 1]; ++e) {
    if (e + distance < prefetch_end) {
      const char* next = reinterpret_cast<const char*>(row_of<float>(a.x, node_at(a, e + distance), column));
      unroll<lines>([&](auto i) GB_LAMBDA { __builtin_prefetch(next + 64 * i, 0, level); });
      if (BySource) __builtin_prefetch(row_of<float>(a.edges, a.perm[e + distance], 0), 0, level);
    }
    const float* row = row_of<float>(a.x, node_at(a, e), column);
    const float* features = row_of<float>(a.edges, a.perm ? a.perm[e] : e, 0);
    VecF32 edge[NV];
    map_edge<NV>(a.map, a.width, features, column, last, edge);
    unroll<NV>([&](auto i) GB_LAMBDA {
      const VecF32 other = tile_vector<NV>(row, i, last);
      edge[i] =
          BySource ? through<VecF32>(own[i] + edge[i], other) : through<VecF32>(other + edge[i], own[i]);
      if (BySource) sum[i] += edge[i];
    });
    if (of_map == nullptr) continue;
    float* to = of_map + column;
    for (int64_t k = 0; k <= a.map.channels; ++k, to += a.width) {
      const VecF32 factor = splat<VecF32>(k < a.map.channels ? features[k] : 1.0f);
      unroll<NV>([&](auto i) GB_LAMBDA {
        const int n = i < NV - 1 ? L : last;
        store_n(to + i * L, tile_vector<NV>(to, i, last) + factor * edge[i], n);
      });
    }
  }
  if constexpr (BySource)
    if (a.out != nullptr) finish<float, NV>(a, v, column, last, sum);
}

// Calls tile(number of vectors as a constant, row, end of the edges to prefetch, first column, elements in
// the last vector) for the tiles of the rows [first, last_row).
template <typename T, typename Tile>
GB_INLINE void over_tiles(const EdgeRows& a, int64_t first, int64_t last_row, const Tile& tile) {
  constexpr int L = kLanes<T>;
  constexpr bool common = std::is_same_v<T, float>;  // other dtypes have fewer tiles, for code size
  const int64_t prefetch_end = a.indptr[last_row];
  for (int64_t v = first; v < last_row; ++v)
    for (int64_t column = 0; column < a.width;) {
      const int64_t vectors = (a.width - column + L - 1) / L;
      const auto run = [&](auto nv) GB_LAMBDA {
        const int64_t taken = std::min<int64_t>(nv * L, a.width - column);
        tile(nv, v, prefetch_end, column, static_cast<int>(taken - (nv - 1) * L));
        column += taken;
      };
      if (common && vectors >= 8)
        run(std::integral_constant<int, common ? 8 : 1>{});
      else if (vectors >= 4)
        run(std::integral_constant<int, 4>{});
      else if (common && vectors >= 2)
        run(std::integral_constant<int, common ? 2 : 1>{});
      else
        run(std::integral_constant<int, 1>{});
    }
}

// The tiles of all rows. `matrices`: how many matrices an edge reads a row of.
template <typename T, typename Tile>
GB_INLINE void over_rows(const EdgeRows& a, int matrices, const Tile& tile) {
  const int64_t lines = (a.width * static_cast<int64_t>(sizeof(T)) + 63) / 64;
  parallel_rows(a.indptr, a.num_dst, matrices * lines,
                [&](int64_t first, int64_t last_row) { over_tiles<T>(a, first, last_row, tile); });
}

template <typename T>
void run(const GineArgs& a) {
  if constexpr (std::is_same_v<T, float>)
    if (a.map.weight != nullptr)
      return over_rows<T>(a, 2, [&](auto nv, auto... at) GB_LAMBDA { forward_tile<T, nv, true>(a, at...); });
  over_rows<T>(a, 2, [&](auto nv, auto... at) GB_LAMBDA { forward_tile<T, nv, false>(a, at...); });
}

template <typename T>
void run(const GineBackwardArgs& a) {
  if (a.source.data)
    over_rows<T>(a, 2, [&](auto nv, auto... at) GB_LAMBDA { backward_tile<T, nv, true>(a, at...); });
  else
    over_rows<T>(a, 1, [&](auto nv, auto... at) GB_LAMBDA { backward_tile<T, nv, false>(a, at...); });
}

template <typename T>
void run(const GineEdgeBackwardArgs& a) {
  over_rows<T>(a, 3, [&](auto nv, auto... at) GB_LAMBDA { edge_tile<T, nv>(a, at...); });
}

template <typename Args>
void run_any(const Args& a) {
  for_dtype(a.dtype, [&](auto type) { run<decltype(type)>(a); });
}

void gine(const GineArgs& a) { run_any(a); }
void gine_backward(const GineBackwardArgs& a) { run_any(a); }
void gine_edge_backward(const GineEdgeBackwardArgs& a) { run_any(a); }

template <bool BySource>
void map_backward(const GineMapBackwardArgs& a) {
  constexpr int64_t kRowCost = 4, kEdgesOfAPiece = 4096, kMostPieces = 64;
  const int64_t rows = a.num_dst, work = a.num_edges + rows * kRowCost;
  const int64_t pieces = std::clamp<int64_t>(work / kEdgesOfAPiece, 1, kMostPieces);
  const int64_t size = a.of_map != nullptr ? (a.map.channels + 1) * a.width : 0;
  Buffer<float> sums(pieces * size);
  std::fill_n(sums.data(), pieces * size, 0.0f);
  const auto begin = [&](int64_t piece) {
    return piece == pieces ? rows : row_at_work(a.indptr, rows, kRowCost, work * piece / pieces);
  };
  parallel_dynamic(pieces, 1, [&](int64_t first, int64_t last) {
    for (int64_t piece = first; piece < last; ++piece) {
      float* of_map = size > 0 ? sums.data() + piece * size : nullptr;
      over_tiles<float>(a, begin(piece), begin(piece + 1), [&](auto nv, auto... at) GB_LAMBDA {
        map_backward_tile<nv, BySource>(a, of_map, at...);
      });
    }
  });
  for (int64_t i = 0; i < size; ++i) {
    float total = 0;
    for (int64_t piece = 0; piece < pieces; ++piece) total += sums.data()[piece * size + i];
    a.of_map[i] = total;
  }
}

void gine_map_backward(const GineMapBackwardArgs& a) {
  a.by_source ? map_backward<true>(a) : map_backward<false>(a);
}

}  // namespace gb::GB_VARIANT
