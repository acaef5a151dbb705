// Products of tall matrices, the shape of every layer: millions of rows, a weight that fits in the cache.
//
//   product  a (num_rows, depth), b (depth, width): a weight  --->  out = a * b  (num_rows, width)
//   gram     a (num_rows, height), b (num_rows, width)        --->  out = aᵀ * b  (height, width)
//
// The gram is a weight's gradient. All are float32; the rows of a, or of the gram's b, may be taken by id.
// Arguments: dense.h.
//
// Bound by multiplications. A tile of kTileRows rows by kTileVectors vectors of `out` stays in registers over
// the whole depth. `b` is packed into panels of a tile's width, which the first-level cache holds or which
// stream from the second. Where a row of `out` fills at most half of a vector, a vector takes two steps of
// the depth at once: its even lanes sum the even ones. No sum is split by the number of threads, so no bit
// depends on it.

namespace gb::GB_VARIANT {

#include "rowwise/epilogue_call.inl"
#include "variants/heads.inl"

#if GB_LANES_F32 == 16
constexpr int kTileRows = 14;  // 28 sums, 2 vectors of the panel, 1 broadcast: 31 of 32 registers
#else
constexpr int kTileRows = 6;  // 12 sums, 2 vectors of the panel, 1 broadcast: 15 of 16 registers
#endif
constexpr int kTileVectors = 2;
constexpr int kTileColumns = kTileVectors * GB_LANES_F32;
constexpr int kTilesPerChunk = 8;      // row tiles that meet a panel while it is in the cache
constexpr int64_t kDepthBlock = 1024;  // depth of the product at a time: a panel's block is 128 KiB at most
constexpr int kSecondLevel = 2;        // prefetched lines go to the second-level cache

// Vectors a tile needs for the columns that are left.
inline int vectors_for(int64_t columns) { return columns > GB_LANES_F32 ? kTileVectors : 1; }

// Whether a vector takes two steps of the depth.
inline bool takes_pairs(const TallProductArgs& p) { return 2 * p.width <= GB_LANES_F32 && p.depth % 2 == 0; }

GB_INLINE VecF32 splat_pair(const float* p) {
  double pair;
  __builtin_memcpy(&pair, p, sizeof(pair));
  return reinterpret_cast<VecF32>(splat<VecF64>(pair));
}

// acc[r][i] += a[r * row_stride + k] * panel[k][i] for k below depth, kSteps of them at a time.
// Meanwhile it prefetches the lines that lie `ahead` elements after those it reads (0: none). The hardware
// does not: rows are too short for it.
template <int NV, int kSteps>
GB_INLINE void multiply_tile(const float* a, int64_t row_stride, const float* panel, int64_t depth,
                             int64_t ahead, VecF32 (&acc)[kTileRows][NV]) {
  constexpr int64_t line = 16;  // elements
  for (int64_t begin = 0; begin < depth; begin += line) {
    if (ahead != 0)
      unroll<kTileRows>([&](auto r)
                            GB_LAMBDA { __builtin_prefetch(a + r * row_stride + ahead, 0, kSecondLevel); });
    for (int64_t k = begin; k < std::min(depth, begin + line);
         k += kSteps, panel += kTileColumns, a += kSteps) {
      VecF32 b[NV];
      unroll<NV>([&](auto i) GB_LAMBDA { b[i] = load(panel + i * GB_LANES_F32); });
      unroll<kTileRows>([&](auto r) GB_LAMBDA {
        const VecF32 factor = kSteps == 2 ? splat_pair(a + r * row_stride) : splat<VecF32>(a[r * row_stride]);
        unroll<NV>([&](auto i) GB_LAMBDA { acc[r][i] += factor * b[i]; });
      });
    }
  }
}

GB_INLINE void copy_floats(const float* from, int count, float* to) {
  for (int j = 0; j < count; j += GB_LANES_F32) {
    const int n = std::min(count - j, GB_LANES_F32);
    store_n(to + j, load_n(from + j, n), n);
  }
}

// Packs kTileColumns columns of b's rows [first, first + depth); zeros stand for columns that b lacks. With
// `pairs`, two rows stand in the even and odd places of one.
inline void pack_panel(const Strided& b, int64_t first, int64_t depth, int64_t column, int64_t columns,
                       bool pairs, float* panel) {
  const int count = static_cast<int>(std::min<int64_t>(columns, kTileColumns));
  if (count < kTileColumns) std::fill_n(panel, depth * kTileColumns, 0.0f);
  if (pairs) {
    for (int64_t k = 0; k < depth; ++k)
      for (int j = 0; j < count; ++j)
        panel[k / 2 * kTileColumns + 2 * j + k % 2] =
            b.data[(first + k) * b.row_stride + (column + j) * b.column_stride];
    return;
  }
  for (int64_t k = 0; k < depth; ++k, panel += kTileColumns) {
    const float* from = b.data + (first + k) * b.row_stride + column * b.column_stride;
    if (b.column_stride == 1)
      copy_floats(from, count, panel);
    else
      for (int j = 0; j < count; ++j) panel[j] = from[j * b.column_stride];
  }
}

// The rows of `a` that one tile reads.
struct TileRows {
  const float* data;
  int64_t stride;
  int count;      // rows of the tile that are stored: at most kTileRows
  int64_t ahead;  // elements to the rows of the next tile; 0 if these are in the cache
};

// Computes one tile of the product.
template <int NV, int kSteps>
void product_tile(const TallProductArgs& p, const TileRows& rows, int64_t row, int64_t depth,
                  const float* panel, int64_t column, bool add) {
  VecF32 acc[kTileRows][NV] = {};
  multiply_tile<NV, kSteps>(rows.data, rows.stride, panel, depth, rows.ahead, acc);
  const int last =
      static_cast<int>(std::min<int64_t>(p.width - column - (NV - 1) * GB_LANES_F32, GB_LANES_F32));
  unroll<kTileRows>([&](auto r) GB_LAMBDA {
    if (r >= rows.count) return;
    float* out = p.out + (row + r) * p.out_stride + column;
    unroll<NV>([&](auto i) GB_LAMBDA {
      const int n = i == NV - 1 ? last : GB_LANES_F32;
      VecF32 sum = kSteps == 2 ? pair_sums(acc[r][i], acc[r][i]) : acc[r][i];
      if (add) sum += load_n(out + i * GB_LANES_F32, n);
      store_n(out + i * GB_LANES_F32, sum, n);
    });
  });
}

inline std::vector<float> filled_tile(const TileRows& rows, int64_t depth) {
  std::vector<float> tile(static_cast<size_t>(kTileRows * depth));
  for (int r = 0; r < rows.count; ++r)
    std::copy_n(rows.data + r * rows.stride, depth, tile.data() + r * depth);
  return tile;
}

// Copies `width` elements of the rows with these ids, one after the other, and prefetches rows `ahead`.
inline void copy_rows_by_id(const float* from, int64_t stride, const int64_t* ids, int64_t count,
                            int64_t width, float* to) {
  constexpr int64_t line = 16, ahead = 2;
  for (int64_t i = 0; i < count; ++i, to += width) {
    const float* row = from + ids[i] * stride;
    const float* later = from + ids[std::min(i + ahead, count - 1)] * stride;
    for (int64_t j = 0; j < width; j += line) {
      __builtin_prefetch(later + j, 0, kSecondLevel);
      copy_floats(row + j, static_cast<int>(std::min(line, width - j)), to + j);
    }
  }
}

// Computes all columns of the rows [begin, end), a chunk that the second-level cache holds. `gathered` has
// these rows of a, one after the other; null: a itself is read.
inline void product_chunk(const TallProductArgs& p, int64_t begin, int64_t end, int64_t first_k,
                          int64_t depth, const float* gathered, const float* packed, int64_t panel_size,
                          bool add) {
  const bool pairs = takes_pairs(p);
  std::vector<float> rest;  // a copy of the last rows if they do not fill a tile, which reads all its rows
  for (int64_t column = 0; column < p.width; column += kTileColumns, packed += panel_size) {
    for (int64_t row = begin; row < end; row += kTileRows) {
      const int count = static_cast<int>(std::min<int64_t>(kTileRows, end - row));
      TileRows rows{p.a + row * p.a_stride + first_k, p.a_stride, count,
                    column == 0 ? kTileRows * p.a_stride : 0};
      if (gathered) rows = {gathered + (row - begin) * depth, depth, count, 0};
      if (count < kTileRows) {
        if (rest.empty()) rest = filled_tile(rows, depth);
        rows = {rest.data(), depth, count, 0};
      }
      if (pairs)
        product_tile<1, 2>(p, rows, row, depth, packed, column, add);
      else if (vectors_for(p.width - column) == 1)
        product_tile<1, 1>(p, rows, row, depth, packed, column, add);
      else
        product_tile<kTileVectors, 1>(p, rows, row, depth, packed, column, add);
    }
  }
}

void tall_product(const TallProductArgs& p) {
  const int64_t panels = (p.width + kTileColumns - 1) / kTileColumns;
  const int64_t block = std::clamp<int64_t>(p.depth, 1, kDepthBlock);
  const int64_t panel_size = block * kTileColumns;
  constexpr int64_t chunk = kTileRows * kTilesPerChunk;
  Buffer<float> packed(panels * panel_size);  // aligned: a vector across two cache lines takes two loads
  for (int64_t first_k = 0; first_k < std::max<int64_t>(p.depth, 1); first_k += block) {
    const int64_t depth = std::min(block, p.depth - first_k);
    const bool add = p.add || first_k > 0;
    parallel_static(panels, 4, [&](int64_t first, int64_t last) {
      for (int64_t j = first; j < last; ++j)
        pack_panel(p.b, first_k, depth, j * kTileColumns, p.width - j * kTileColumns, takes_pairs(p),
                   packed.data() + j * panel_size);
    });
    const int64_t products = p.num_rows * depth * panels * kTileColumns;
    parallel_if_worth(products, kProductsWorth, p.num_rows, chunk, [&](int64_t begin, int64_t end) {
      Buffer<float> rows(p.ids ? chunk * depth : 0);
      for (; begin < end; begin += chunk) {
        const int64_t last = std::min(end, begin + chunk);
        if (p.ids)
          copy_rows_by_id(p.a + first_k, p.a_stride, p.ids + begin, last - begin, depth, rows.data());
        product_chunk(p, begin, last, first_k, depth, p.ids ? rows.data() : nullptr, packed.data(),
                      panel_size, add);
        // The chunk's rows are still in the second-level cache.
        if (p.epilogue && first_k + depth >= p.depth)
          epilogue_rows<float>(*p.epilogue, p.width, begin, last, p.out, p.out_stride, p.out, p.out_stride);
      }
    });
  }
}

#include "dense/gram.inl"

}  // namespace gb::GB_VARIANT
