// Products with rows of zeros and ones kept as bits: bags of words times a weight, and its gradient.
//
//   bit_product  x (num_rows, depth) as bits, b (depth, width)  --->  out = x * b  (num_rows, width)
//   bit_gram     a (num_rows, height), x (num_rows, width) as bits  --->  out = aᵀ * x  (height, width)
//
// Bits stand in words of 32 along the summed dimension: (ceil(depth / 32), num_rows) words of the product,
// (ceil(num_rows / 32), width) of the gram. Factors of x's rows are optional. Arguments: bit_product.h.
//
// Both sum rows of a matrix by the bits of a word. For every four of those rows the sums of all 16 subsets
// are made once (the method of the Four Russians: Arlazarov, Dinic, Kronrod and Faradzhev, 1970). Then four
// bits cost one addition and one read of a table, which the first-level cache holds, instead of four
// multiplications. Bound by those reads. No sum is split by the number of threads, so the result's bits do
// not depend on it.

namespace gb::GB_VARIANT {

#include "rowwise/epilogue_call.inl"
#include "variants/simd.inl"

constexpr int kPanelColumns = 32;  // columns that are summed together: the tables of a word take 16 KiB
constexpr int kPanelVectors = kPanelColumns / GB_LANES_F32;
constexpr int kTableBits = 4;
constexpr int kTableEntries = 1 << kTableBits;
constexpr int kTables = static_cast<int>(kWordBits) / kTableBits;
constexpr int64_t kTableFloats = int64_t{kTables} * kTableEntries * kPanelColumns;
constexpr int64_t kSumRows = 512;   // rows that share tables; their sums stay in the second-level cache
constexpr int64_t kGramTasks = 32;  // tasks of a gram: more if it has many columns, fewer if it has few rows
constexpr int64_t kGramWords = 32;  // words that a share has at least

// The rows that are summed: columns [column, column + columns) of `count` rows, each row times its factor.
struct SummedRows {
  const float* data;
  int64_t stride, count;
  const float* factors;  // null: ones
  int64_t column;
  int columns;
};

// Vector i of NV of row k; zeros behind the last row.
template <int NV>
GB_INLINE VecF32 load_summed(const SummedRows& rows, int64_t k, int i) {
  if (k >= rows.count) return VecF32{};
  const int last = rows.columns - (NV - 1) * GB_LANES_F32;
  const float* from = rows.data + k * rows.stride + rows.column + i * GB_LANES_F32;
  const VecF32 row = load_n(from, i == NV - 1 ? last : GB_LANES_F32);
  return rows.factors ? row * splat<VecF32>(rows.factors[k]) : row;
}

// Entry s of table t: the sum of the rows first + 4 t + j whose bit j is in s.
template <int NV>
GB_INLINE void fill_tables(const SummedRows& rows, int64_t first, float* tables) {
  constexpr int entry = NV * GB_LANES_F32;
  for (int t = 0; t < kTables; ++t, first += kTableBits, tables += kTableEntries * entry) {
    unroll<NV>([&](auto i) GB_LAMBDA {
      VecF32 sums[kTableEntries] = {};
      unroll<kTableBits>([&](auto j) GB_LAMBDA {
        const VecF32 row = load_summed<NV>(rows, first + j, i);
        // Subsets with bit j and none above it are all subsets of the bits below, each plus row j.
        unroll<(1 << j)>([&](auto s) GB_LAMBDA { sums[(1 << j) + s] = sums[s] + row; });
      });
      unroll<kTableEntries>([&](auto s) GB_LAMBDA { store(tables + s * entry + i * GB_LANES_F32, sums[s]); });
    });
  }
}

// sums[i] += what the bits of words[i] ask for.
template <int NV>
void add_words(const float* tables, const uint32_t* words, int64_t count, float* sums) {
  constexpr int entry = NV * GB_LANES_F32;
  for (int64_t i = 0; i < count; ++i, sums += entry) {
    const uint32_t word = words[i];
    VecF32 acc[NV];
    unroll<NV>([&](auto v) GB_LAMBDA { acc[v] = load(sums + v * GB_LANES_F32); });
    unroll<kTables>([&](auto t) GB_LAMBDA {
      const uint32_t subset = (word >> (t * kTableBits)) & (kTableEntries - 1);
      const float* from = tables + (t * kTableEntries + subset) * entry;
      unroll<NV>([&](auto v) GB_LAMBDA { acc[v] += load(from + v * GB_LANES_F32); });
    });
    unroll<NV>([&](auto v) GB_LAMBDA { store(sums + v * GB_LANES_F32, acc[v]); });
  }
}

// Sums over the words [first, last) of `count` rows; words of one row stand `words_stride` apart.
template <int NV>
void sum_words(const SummedRows& rows, const uint32_t* bits, int64_t bits_stride, int64_t first, int64_t last,
               int64_t count, float* tables, float* sums) {
  std::fill_n(sums, count * NV * GB_LANES_F32, 0.0f);
  for (int64_t w = first; w < last; ++w) {
    fill_tables<NV>(rows, w * kWordBits, tables);
    add_words<NV>(tables, bits + w * bits_stride, count, sums);
  }
}

inline int panel_vectors(int columns) { return (columns + GB_LANES_F32 - 1) / GB_LANES_F32; }

inline int64_t words_of(int64_t bits) { return (bits + kWordBits - 1) / kWordBits; }

// b with contiguous rows, copied if they are not, as in a weight's transpose: every chunk reads all of b.
inline SummedRows contiguous_rows(const Strided& b, int64_t depth, int64_t width, Buffer<float>& copy) {
  if (b.column_stride == 1) return {b.data, b.row_stride, depth, nullptr, 0, 0};
  copy.reserve(std::max<int64_t>(depth * width, 1));
  parallel_static(depth, std::max<int64_t>(1, 16384 / width), [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k)
      for (int64_t j = 0; j < width; ++j)
        copy[k * width + j] = b.data[k * b.row_stride + j * b.column_stride];
  });
  return {copy.data(), width, depth, nullptr, 0, 0};
}

// Writes one panel's columns of the rows [begin, end) of out from their sums.
template <int NV>
void store_product(const BitProductArgs& p, int64_t begin, int64_t end, int64_t column, int columns,
                   const float* sums) {
  const int last = columns - (NV - 1) * GB_LANES_F32;
  for (int64_t row = begin; row < end; ++row, sums += NV * GB_LANES_F32) {
    float* out = p.out + row * p.out_stride + column;
    const VecF32 factor = splat<VecF32>(p.factors ? p.factors[row] : 1.0f);
    unroll<NV>([&](auto i) GB_LAMBDA {
      const int n = i == NV - 1 ? last : GB_LANES_F32;
      VecF32 sum = factor * load(sums + i * GB_LANES_F32);
      if (p.add) sum += load_n(out + i * GB_LANES_F32, n);
      store_n(out + i * GB_LANES_F32, sum, n);
    });
  }
}

void bit_product(const BitProductArgs& p) {
  Buffer<float> copy;
  const SummedRows all = contiguous_rows(p.b, p.depth, p.width, copy);
  const int64_t lookups = p.num_rows * p.depth * p.width / (4 * GB_LANES_F32);
  parallel_if_worth(lookups, kLookupsWorth, p.num_rows, kSumRows, [&](int64_t first, int64_t last) {
    Buffer<float> tables(kTableFloats), sums(kSumRows * kPanelColumns);
    for (int64_t begin = first; begin < last; begin += kSumRows) {
      const int64_t end = std::min(last, begin + kSumRows);
      for (int64_t column = 0; column < p.width; column += kPanelColumns) {
        SummedRows rows = all;
        rows.column = column;
        rows.columns = static_cast<int>(std::min<int64_t>(p.width - column, kPanelColumns));
        with_count<kPanelVectors>(panel_vectors(rows.columns), [&](auto nv) {
          sum_words<nv>(rows, p.bits + begin, p.num_rows, 0, words_of(p.depth), end - begin, tables.data(),
                        sums.data());
          store_product<nv>(p, begin, end, column, rows.columns, sums.data());
        });
      }
      // The chunk's rows are still in the second-level cache.
      if (p.epilogue)
        epilogue_rows<float>(*p.epilogue, p.width, begin, end, p.out, p.out_stride, p.out, p.out_stride);
    }
  });
}

// A share of a gram: up to kSumRows columns of x from `column` on, times a panel of a's columns, summed over
// the words [first, last).
struct GramShare {
  int64_t column, panel, first, last;
};

// Writes a share's sums, a row for each column of x.
inline void gram_share(const BitGramArgs& g, const GramShare& share, float* tables, float* sums) {
  const int64_t height = share.panel * kPanelColumns;
  const int columns = static_cast<int>(std::min<int64_t>(g.height - height, kPanelColumns));
  const SummedRows rows{g.a, g.a_stride, g.num_rows, g.factors, height, columns};
  with_count<kPanelVectors>(panel_vectors(columns), [&](auto nv) {
    sum_words<nv>(rows, g.bits + share.column, g.width, share.first, share.last,
                  std::min(kSumRows, g.width - share.column), tables,
                  sums + share.column * nv * GB_LANES_F32);
  });
}

void bit_gram(const BitGramArgs& g) {
  const int64_t chunks = (g.width + kSumRows - 1) / kSumRows;
  const int64_t panels = (g.height + kPanelColumns - 1) / kPanelColumns;
  const int64_t words = words_of(g.num_rows);
  const int64_t parts =
      std::clamp<int64_t>(std::min(words / kGramWords, kGramTasks / (chunks * panels)), 1, kGramTasks);
  const int64_t panel_size = g.width * kPanelColumns, part_size = panels * panel_size;
  Buffer<float> sums(parts * part_size);
  const int64_t lookups = g.num_rows * g.width * g.height / (4 * GB_LANES_F32);
  parallel_if_worth(lookups, kLookupsWorth, parts * panels * chunks, 1, [&](int64_t begin, int64_t end) {
    Buffer<float> tables(kTableFloats);
    for (int64_t task = begin; task < end; ++task) {
      const int64_t part = task / (panels * chunks), panel = task / chunks % panels;
      const GramShare share{task % chunks * kSumRows, panel, words * part / parts,
                            words * (part + 1) / parts};
      gram_share(g, share, tables.data(), sums.data() + part * part_size + panel * panel_size);
    }
  });
  parallel_static(g.height, std::max<int64_t>(1, 16384 / g.width), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t panel = row / kPanelColumns, left = g.height - panel * kPanelColumns;
      const int64_t entry =
          panel_vectors(static_cast<int>(std::min<int64_t>(left, kPanelColumns))) * GB_LANES_F32;
      const float* from = sums.data() + panel * panel_size + row % kPanelColumns;
      for (int64_t c = 0; c < g.width; ++c) {
        float total = from[c * entry];
        for (int64_t part = 1; part < parts; ++part) total += from[part * part_size + c * entry];
        g.out[row * g.width + c] = total;
      }
    }
  });
}

}  // namespace gb::GB_VARIANT
