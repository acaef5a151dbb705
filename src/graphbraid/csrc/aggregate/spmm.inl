// Aggregation over in-neighbours:
//
//   indptr  (num_dst + 1,)      edges e of row v:   indptr[v] <= e < indptr[v + 1]
//   x       (num_src, width)  --------------------------------------------------->  out  (num_dst, width)
//   weight  (num_edges,)        out[v, :] sums the rows x[u, :], u = indices[e]
//
//   out[v, :] = dst_scale[v] * sum of weight[e] * src_scale[u] * x[u, :] over the edges e = u -> v
//
// each factor optional, `mean` divides by the row's edges; with implicit self-loops, loop_scale * loop[v] *
// src_scale[v] * x[v, :] joins the sum; addend[v, :] is added last. An epilogue then runs over the rows just
// written, while the first-level cache holds them; or the sums pass a ReLU back, whose result they replace.
// Arguments: spmm.h; ops/spmm.py has checked them.
//
// Bound by reading num_edges rows of x. A row's sum is held in registers, up to kMaxTile vectors at once, and
// the rows of coming neighbours are prefetched, also across the ends of rows (blocks of mini-batches have
// short ones).

namespace gb::GB_VARIANT {

#include "rowwise/epilogue_call.inl"
#include "variants/simd.inl"

// Accumulators that fit in the registers, beside a loaded vector and a coefficient.
constexpr int kMaxTile = GB_LANES_F32 == 16 ? 16 : 8;
// Rows of the result between the one that is written and the one that is fetched to be written.
constexpr int64_t kWrittenAhead = 8;
// Rows that are summed before their epilogue: few enough to stay in the first-level cache.
constexpr int64_t kRowsPerEpilogue = 32;

// The segments of hubs, and the sums of each.
template <typename A>
struct Hubs {
  std::vector<Segment> segments;
  std::vector<A> sums;  // (number of segments, width)
};

// The coefficients of the edges: none, one of each source, one of each edge, or any, stored loops left out.
// In a text of their own the common ones take fewer instructions for each edge, which narrow rows feel.
enum class Coefficients { kNone, kOfSource, kOfEdge, kAny };

// What a tile of NV vectors does with the edges [begin, end) of row v: acc[i] += coefficient * x[u, column +
// i * L ...]. The last vector holds `last` elements.
template <typename T, typename I, int NV, Coefficients kBy>
GB_INLINE void sum_edges(const SpmmArgs& a, int64_t v, int64_t begin, int64_t end, int64_t prefetch_end,
                         int64_t column, int last, Vec<T> (&acc)[NV]) {
  constexpr int L = kLanes<T>;
  constexpr int lines = (NV * L * static_cast<int>(sizeof(T)) + 63) / 64;
  constexpr int distance = prefetch_distance(lines), level = prefetch_level(lines);
  const T* x = static_cast<const T*>(a.x.data) + column;
  const Acc<T>* weight = static_cast<const Acc<T>*>(a.weight);
  const Acc<T>* src_scale = static_cast<const Acc<T>*>(a.src_scale);
  for (int64_t e = begin; e < end; ++e) {
    const int64_t u = node_at<I>(a, e);
    if (e + distance < prefetch_end) {
      const char* next = reinterpret_cast<const char*>(x + node_at<I>(a, e + distance) * a.x.stride);
      unroll<lines>([&](auto i) GB_LAMBDA { __builtin_prefetch(next + 64 * i, 0, level); });
    }
    const T* row = x + u * a.x.stride;
    if constexpr (kBy == Coefficients::kNone) {
      unroll<NV - 1>([&](auto i) GB_LAMBDA { acc[i] += load(row + i * L); });
      acc[NV - 1] += load_n(row + (NV - 1) * L, last);
    } else {
      Acc<T> c = 1;
      if constexpr (kBy == Coefficients::kAny) {
        if (a.skip_loops && u == v) continue;
        if (weight) c = weight[e];
        if (src_scale) c *= src_scale[u];
      } else {
        c = kBy == Coefficients::kOfEdge ? weight[e] : src_scale[u];
      }
      const Vec<T> c_all = splat<Vec<T>>(c);
      unroll<NV - 1>([&](auto i) GB_LAMBDA { acc[i] += c_all * load(row + i * L); });
      acc[NV - 1] += c_all * load_n(row + (NV - 1) * L, last);
    }
  }
}

// Adds the addend's row to acc and writes it.
template <typename T, int NV, typename Out>
GB_INLINE void write_row(const SpmmArgs& a, int64_t v, int64_t column, int last, Vec<T> (&acc)[NV]) {
  constexpr int L = kLanes<T>;
  if (v < a.num_addend) {
    const Out* row = static_cast<const Out*>(a.addend.data) + v * a.addend.stride + column;
    unroll<NV - 1>([&](auto i) GB_LAMBDA { acc[i] += load(row + i * L); });
    acc[NV - 1] += load_n(row + (NV - 1) * L, last);
  }
  Out* out = static_cast<Out*>(a.out) + v * a.out_stride + column;
  if constexpr (std::is_same_v<T, float>)
    if (a.is_gated) {  // as in epilogue.inl
      const float scale = static_cast<float>(a.gate_scale);
      const auto pass = [=](Vec<T> grad, Vec<T> y) GB_LAMBDA { return y <= 0 ? Vec<T>{} : grad * scale; };
      unroll<NV - 1>([&](auto i) GB_LAMBDA { acc[i] = pass(acc[i], load(out + i * L)); });
      acc[NV - 1] = pass(acc[NV - 1], load_n(out + (NV - 1) * L, last));
    }
  unroll<NV - 1>([&](auto i) GB_LAMBDA { store(out + i * L, acc[i]); });
  store_n(out + (NV - 1) * L, acc[NV - 1], last);
}

template <typename T, int NV>
GB_INLINE void finish_row(const SpmmArgs& a, int64_t v, int64_t column, int last, Vec<T> (&acc)[NV]) {
  constexpr int L = kLanes<T>;
  if (v < a.num_loops) {
    const Acc<T>* loop = static_cast<const Acc<T>*>(a.loop);
    const Acc<T>* src_scale = static_cast<const Acc<T>*>(a.src_scale);
    Acc<T> c = static_cast<Acc<T>>(a.loop_scale);
    if (loop) c *= loop[v];
    if (src_scale) c *= src_scale[v];
    const Vec<T> c_all = splat<Vec<T>>(c);
    const T* row = static_cast<const T*>(a.x.data) + v * a.x.stride + column;
    unroll<NV - 1>([&](auto i) GB_LAMBDA { acc[i] += c_all * load(row + i * L); });
    acc[NV - 1] += c_all * load_n(row + (NV - 1) * L, last);
  }
  if (a.mean || a.dst_scale) {
    const int64_t degree = a.indptr[v + 1] - a.indptr[v];
    Acc<T> c = a.mean && degree > 1 ? Acc<T>{1} / static_cast<Acc<T>>(degree) : Acc<T>{1};
    if (a.dst_scale) c *= static_cast<const Acc<T>*>(a.dst_scale)[v];
    unroll<NV>([&](auto i) GB_LAMBDA { acc[i] *= c; });
  }
  if constexpr (!std::is_same_v<T, Acc<T>>)
    if (a.out_wide) return write_row<T, NV, Acc<T>>(a, v, column, last, acc);
  write_row<T, NV, T>(a, v, column, last, acc);
}

// A hub's row is summed from those of its segments.
template <typename T, int NV>
GB_INLINE void add_segments(const Hubs<Acc<T>>& hubs, int64_t v, int64_t width, int64_t degree,
                            int64_t column, int last, Vec<T> (&acc)[NV]) {
  constexpr int L = kLanes<T>;
  const int64_t parts = (degree + kHubEdges - 1) / kHubEdges;
  const Acc<T>* part = hubs.sums.data() + first_segment(hubs.segments, v) * width + column;
  for (int64_t s = 0; s < parts; ++s, part += width) {
    unroll<NV - 1>([&](auto i) GB_LAMBDA { acc[i] += load(part + i * L); });
    acc[NV - 1] += load_n(part + (NV - 1) * L, last);
  }
}

// One tile of columns of the rows [first, last_row), or of those segments of hubs. By a branch for each row:
// with a text of their own for the segments the kernels are twice the code. The arguments come by value: what
// lies behind a reference would be read again after every row that is stored.
template <typename T, typename I, int NV, Coefficients kBy>
void sum_rows(const SpmmArgs a, Hubs<Acc<T>>& hubs, bool of_hubs, int64_t first, int64_t last_row,
              int64_t prefetch_end, int64_t column, int last) {
  constexpr int L = kLanes<T>;
  constexpr int lines = (NV * L * static_cast<int>(sizeof(T)) + 63) / 64;
  const T* ahead = static_cast<const T*>(a.out) + column + kWrittenAhead * a.out_stride;
  for (int64_t row = first; row < last_row; ++row) {
    const Segment edges = of_hubs ? hubs.segments[row] : Segment{row, a.indptr[row], a.indptr[row + 1]};
    if (!of_hubs && !a.out_wide)
      unroll<lines>([&](auto i) GB_LAMBDA {
        __builtin_prefetch(ahead + row * a.out_stride + i * (64 / sizeof(T)), 1);
      });
    const int64_t degree = edges.end - edges.begin;
    Vec<T> acc[NV] = {};
    if (degree > kHubEdges)
      add_segments<T>(hubs, row, a.width, degree, column, last, acc);
    else
      sum_edges<T, I, NV, kBy>(a, edges.row, edges.begin, edges.end, of_hubs ? edges.end : prefetch_end,
                               column, last, acc);
    if (of_hubs) {
      Acc<T>* out = hubs.sums.data() + row * a.width + column;
      unroll<NV - 1>([&](auto i) GB_LAMBDA { store(out + i * L, acc[i]); });
      store_n(out + (NV - 1) * L, acc[NV - 1], last);
    } else {
      finish_row<T, NV>(a, row, column, last, acc);
    }
  }
}

// The epilogue of the rows [first, last).
template <typename Out>
void follow_up(const SpmmArgs& a, int64_t first, int64_t last) {
  Out* out = static_cast<Out*>(a.out);
  epilogue_rows<Out>(*a.epilogue, a.width, first, last, out, a.out_stride, out, a.out_stride);
}

// Whether tiles of so many vectors are compiled: of the portable variant powers of two, for code size.
constexpr bool has_tile(int size) {
  return GB_LANES_F32 == 4 ? (size & (size - 1)) == 0 : size <= 8 || size == 12 || size == 16;
}

// Vectors of the next tile when `rest` are left: the largest compiled size.
inline int tile_vectors(int64_t rest, int max_tile) {
  for (int size = static_cast<int>(std::min<int64_t>(rest, max_tile)); size > 1; --size)
    if (has_tile(size)) return size;
  return 1;
}

struct Tile {
  int64_t column;
  int vectors;
  int last;  // elements in the last vector
};

// Tiles of a row of `width` elements in vectors of `lanes`.
__attribute__((noinline)) std::vector<Tile> tiles_of(int64_t width, int lanes, int max_tile) {
  std::vector<Tile> tiles;
  for (int64_t column = 0; column < width;) {
    const int nv = tile_vectors((width - column + lanes - 1) / lanes, max_tile);
    const int64_t taken = std::min<int64_t>(width - column, nv * lanes);
    tiles.push_back({column, nv, static_cast<int>(taken - (nv - 1) * lanes)});
    column += taken;
  }
  return tiles;
}

// Calls f with the number of vectors as a constant, up to MaxTile.
template <int MaxTile, int Size = 1, typename F>
GB_INLINE void with_vectors(int vectors, F&& f) {
  if constexpr (Size == 1 || has_tile(Size))
    if (vectors == Size) return f(std::integral_constant<int, Size>{});
  if constexpr (Size < MaxTile) with_vectors<MaxTile, Size + 1>(vectors, f);
}

template <typename T, typename I, Coefficients kBy>
void spmm_typed(const SpmmArgs& a) {
  // Code size: ids of 64 bits and doubles (for checking gradients) are rare, and half rows have half the
  // lines.
  constexpr bool is_rare = sizeof(T) == 8 || (sizeof(T) == 4 && std::is_same_v<I, AnyId>);
  constexpr int max_tile = is_rare ? 4 : sizeof(T) == 2 ? 8 : kMaxTile;
  const std::vector<Tile> tiles = tiles_of(a.width, kLanes<T>, max_tile);
  Hubs<Acc<T>> hubs{hub_segments(a.indptr, a.num_dst), {}};
  hubs.sums.resize(hubs.segments.size() * static_cast<size_t>(a.width));
  const auto sum = [&](bool of_hubs, int64_t first, int64_t last, int64_t prefetch_end) {
    for (const Tile& tile : tiles)
      with_vectors<max_tile>(tile.vectors, [&](auto nv) {
        sum_rows<T, I, nv, kBy>(a, hubs, of_hubs, first, last, prefetch_end, tile.column, tile.last);
      });
  };
  parallel_dynamic(static_cast<int64_t>(hubs.segments.size()), 1, [&](int64_t first, int64_t last) {
    for (int64_t s = first; s < last; ++s) sum(true, s, s + 1, 0);
  });
  const int64_t lines = (a.width * static_cast<int64_t>(sizeof(T)) + 63) / 64;
  parallel_rows(a.indptr, a.num_dst, lines, [&](int64_t first, int64_t last_row) {
    const int64_t prefetch_end = a.indptr[last_row];
    // Wide rows take several tiles; each row finishes all of them while its neighbours' ids and pages are at
    // hand.
    const int64_t step = tiles.size() > 1 ? 1 : a.epilogue ? kRowsPerEpilogue : last_row - first;
    for (int64_t v = first; v < last_row; v += step) {
      const int64_t end = std::min(v + step, last_row);
      sum(false, v, end, prefetch_end);
      if (a.epilogue) a.out_wide ? follow_up<Acc<T>>(a, v, end) : follow_up<T>(a, v, end);
    }
  });
}

// Rows of float32 by int32 ids are what training reads: a text of their own for each kind of coefficients.
void spmm_float32(const SpmmArgs& a) {
  if (a.wide_indices) return spmm_typed<float, AnyId, Coefficients::kAny>(a);
  if (a.skip_loops || (a.weight && a.src_scale)) return spmm_typed<float, int32_t, Coefficients::kAny>(a);
  if (a.weight) return spmm_typed<float, int32_t, Coefficients::kOfEdge>(a);
  if (a.src_scale) return spmm_typed<float, int32_t, Coefficients::kOfSource>(a);
  spmm_typed<float, int32_t, Coefficients::kNone>(a);
}

void spmm(const SpmmArgs& a) {
  if (a.dtype == DType::kFloat32) return spmm_float32(a);
  for_dtype(a.dtype, [&](auto type) { spmm_typed<decltype(type), AnyId, Coefficients::kAny>(a); });
}

}  // namespace gb::GB_VARIANT
