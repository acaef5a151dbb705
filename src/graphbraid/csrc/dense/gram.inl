// The gram of dense.inl, which includes this, by parts of the rows that are summed in order:
//
//   a (num_rows, height), b (num_rows, width)
//     --- each part's rows, kGramDepth at a time, b's packed in panels --->  sums (parts, height, stride)
//     --- added part by part --->  out = aᵀ * b  (height, width)
//
// `stride` is the width, rounded up to whole vectors. If the transposed product fills vectors better, a and b
// change places: then sums are (parts, width, stride), and `stride` is the rounded height (gram_shape).
//
// No sum is split by the number of threads, nor by the rounds in which rows come (GramRoundArgs). So the
// result's bits depend on neither.

#if GB_LANES_F32 == 16
constexpr int kGramRows = 6;  // rows of a tile: 24 sums, 4 vectors of a row, 1 broadcast
constexpr int kGramVectors = 4;
#else
constexpr int kGramRows = 4;  // 12 sums, 3 vectors of a row, 1 broadcast
constexpr int kGramVectors = 3;
#endif
constexpr int64_t kGramColumns = kGramVectors * GB_LANES_F32;
constexpr int64_t kGramGroup = 16 * kGramColumns;  // columns of b whose sums stay in the second-level cache
constexpr int64_t kGramDepth = 48;                 // rows of a panel that the first-level cache holds

// Rows of a matrix: row i, or row ids[i] if there are ids.
struct GramRows {
  const float* data;
  int64_t stride;
  const int64_t* ids;
  int64_t count;

  GB_INLINE const float* row(int64_t i) const { return data + (ids ? ids[i] : i) * stride; }
  // Like row(i), for an i that may be too large: such an address is only prefetched, which never faults.
  GB_INLINE const float* row_ahead(int64_t i) const {
    return ids ? data + ids[std::min(i, count - 1)] * stride : data + i * stride;
  }
};

// The part of b that is packed after this block: the next columns of the same rows, or the next rows. Its
// lines are prefetched while the block is multiplied.
struct GramAhead {
  const GramRows* rows;
  int64_t begin, column;
};

// sums[r][...] += sum over k below depth of a[k][r] * panel[k][...], for R columns of a and NV vectors of b's
// columns. It prefetches the lines of a that lie `a_ahead` elements ahead: pieces of rows are short, and the
// hardware prefetches them too late.
template <int R, int NV, bool Fetch>
void gram_tile(const float* a, int64_t a_stride, int64_t a_ahead, const float* panel, int64_t depth,
               const GramAhead& ahead, float* sums, int64_t sums_stride) {
  VecF32 acc[R][NV];
  unroll<R>([&](auto r) GB_LAMBDA {
    unroll<NV>([&](auto i) GB_LAMBDA { acc[r][i] = load(sums + r * sums_stride + i * GB_LANES_F32); });
  });
  for (int64_t k = 0; k < depth; ++k, a += a_stride, panel += kGramColumns) {
    if constexpr (Fetch) {
      const float* next = ahead.rows->row_ahead(ahead.begin + k) + ahead.column;
      constexpr int line = 16;  // elements; rows may begin inside a line
      unroll<kGramColumns / line + 1>(
          [&](auto i) GB_LAMBDA { __builtin_prefetch(next + line * i, 0, kSecondLevel); });
    }
    __builtin_prefetch(a + a_ahead, 0, kSecondLevel);
    VecF32 row[NV];
    unroll<NV>([&](auto i) GB_LAMBDA { row[i] = load(panel + i * GB_LANES_F32); });
    unroll<R>([&](auto r) GB_LAMBDA {
      const VecF32 factor = splat<VecF32>(a[r]);
      unroll<NV>([&](auto i) GB_LAMBDA { acc[r][i] += factor * row[i]; });
    });
  }
  unroll<R>([&](auto r) GB_LAMBDA {
    unroll<NV>([&](auto i) GB_LAMBDA { store(sums + r * sums_stride + i * GB_LANES_F32, acc[r][i]); });
  });
}

// Multiplies all columns of a by one panel of b that is `vectors` wide.
inline void gram_panel(const TallGramArgs& g, int64_t a_ahead, const float* panel, int vectors, int64_t depth,
                       const GramAhead& ahead, float* sums, int64_t sums_stride) {
  for (int64_t row = 0; row < g.height; row += kGramRows) {
    const int count = static_cast<int>(std::min<int64_t>(kGramRows, g.height - row));
    with_count<kGramVectors>(vectors, [&](auto nv) {
      with_count<kGramRows>(count, [&](auto r) {
        row == 0 ? gram_tile<r, nv, true>(g.a + row, g.a_stride, a_ahead, panel, depth, ahead,
                                          sums + row * sums_stride, sums_stride)
                 : gram_tile<r, nv, false>(g.a + row, g.a_stride, a_ahead, panel, depth, ahead,
                                           sums + row * sums_stride, sums_stride);
      });
    });
  }
}

// Packs `width` columns of the rows [begin, begin + depth) of b, one row after the other: every tile reads
// them, in whole cache lines.
inline void pack_gram(const GramRows& b, int64_t begin, int64_t column, int width, int64_t depth,
                      float* panel) {
  for (int64_t k = 0; k < depth; ++k, panel += kGramColumns) {
    const float* row = b.row(begin + k) + column;
    if (width == kGramColumns)
      unroll<kGramVectors>([&](auto i)
                               GB_LAMBDA { store(panel + i * GB_LANES_F32, load(row + i * GB_LANES_F32)); });
    else
      copy_floats(row, width, panel);
  }
}

// Adds the products of the rows [first_row, last_row), for the columns [column, last_column) of b, to sums,
// which have one row per column of a.
inline void gram_share(const TallGramArgs& g, int64_t first_row, int64_t last_row, int64_t column,
                       int64_t last_column, float* sums, int64_t sums_stride) {
  const GramRows b{g.b, g.b_stride, g.b_ids, g.num_rows};
  Buffer<float> panel(kGramDepth * kGramColumns), named(g.a_ids ? kGramDepth * g.height : 0);
  std::fill_n(panel.data(), kGramDepth * kGramColumns, 0.0f);  // lanes past the last column must be finite
  for (int64_t begin = first_row; begin < last_row; begin += kGramDepth) {
    const int64_t depth = std::min(kGramDepth, last_row - begin);
    TallGramArgs block = g;
    block.a = g.a + begin * g.a_stride;
    if (g.a_ids) {
      copy_rows_by_id(g.a, g.a_stride, g.a_ids + begin, depth, g.height, named.data());
      block.a = named.data();
      block.a_stride = g.height;
    }
    for (int64_t j = column; j < last_column; j += kGramColumns) {
      const int width = static_cast<int>(std::min(kGramColumns, last_column - j));
      const bool is_last = j + kGramColumns >= last_column;
      const GramAhead ahead{&b, is_last ? begin + kGramDepth : begin, is_last ? column : j + kGramColumns};
      pack_gram(b, begin, j, width, depth, panel.data());
      // The first panel prefetches a's next rows.
      const int64_t a_ahead = j == column && !g.a_ids ? kGramDepth * g.a_stride : 0;
      gram_panel(block, a_ahead, panel.data(), (width + GB_LANES_F32 - 1) / GB_LANES_F32, depth, ahead,
                 sums + j, sums_stride);
    }
  }
}

// The cost of a gram of this shape: 36 times its multiplications, with padding. With fewer vectors than
// kGramVectors, sums are too few to keep the multipliers busy: 0.75 and 0.9 of the rate, measured.
inline int64_t gram_cost(int64_t height, int64_t width) {
  const int64_t vectors = (width + GB_LANES_F32 - 1) / GB_LANES_F32;
  return height * vectors * GB_LANES_F32 * (vectors == 1 ? 48 : vectors == 2 ? 40 : 36);
}

// The way a gram is summed: by parts of the rows and groups of columns, each part into its own matrix.
struct GramShape {
  bool is_turned;  // out is summed transposed
  int64_t stride, groups, parts, part_size;
};

// The transposed product may fill vectors better. If both cost the same, that with fewer panels is faster.
inline GramShape gram_shape(const TallGramArgs& g) {
  const int64_t straight = gram_cost(g.height, g.width), turned = gram_cost(g.width, g.height);
  const bool turns = turned < straight || (turned == straight && g.height < g.width);
  const int64_t width = turns ? g.height : g.width;
  const int64_t stride = (width + GB_LANES_F32 - 1) / GB_LANES_F32 * GB_LANES_F32;
  const int64_t groups = (width + kGramGroup - 1) / kGramGroup;
  return {turns, stride, groups, gram_parts(g.num_rows), (turns ? g.width : g.height) * stride};
}

inline TallGramArgs turned_gram(TallGramArgs g) {
  std::swap(g.a, g.b);
  std::swap(g.a_stride, g.b_stride);
  std::swap(g.a_ids, g.b_ids);
  std::swap(g.height, g.width);
  return g;
}

// Adds up the parts in order. `g` is turned if the shape is.
inline void end_gram(const TallGramArgs& g, const GramShape& shape, const float* sums) {
  parallel_static(g.height, std::max<int64_t>(1, 16384 / g.width), [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row)
      for (int64_t j = 0; j < g.width; ++j) {
        const float* sum = sums + row * shape.stride + j;
        float total = *sum;
        for (int64_t part = 1; part < shape.parts; ++part) total += sum[part * shape.part_size];
        g.out[shape.is_turned ? j * g.height + row : row * g.width + j] = total;
      }
  });
}

// Runs one task of a gram: the rows [first_row, last_row) of a part, for one group of columns.
inline void gram_task(const TallGramArgs& g, const GramShape& shape, int64_t task, int64_t first_row,
                      int64_t last_row, bool begins, float* sums) {
  const int64_t part = task / shape.groups, column = task % shape.groups * kGramGroup;
  float* sum = sums + part * shape.part_size;
  if (begins)
    for (int64_t row = 0; row < g.height; ++row)
      std::fill_n(sum + row * shape.stride + column, std::min(kGramGroup, shape.stride - column), 0.0f);
  gram_share(g, first_row, last_row, column, std::min(column + kGramGroup, g.width), sum, shape.stride);
}

void tall_gram(const TallGramArgs& asked) {
  const GramShape shape = gram_shape(asked);
  const TallGramArgs g = shape.is_turned ? turned_gram(asked) : asked;
  Buffer<float> sums(shape.parts * shape.part_size);
  const int64_t products = g.num_rows * g.height * shape.stride, tasks = shape.parts * shape.groups;
  parallel_if_worth(products, kProductsWorth, tasks, 1, [&](int64_t first, int64_t last) {
    for (int64_t task = first; task < last; ++task) {
      const int64_t part = task / shape.groups;
      gram_task(g, shape, task, gram_part_begin(g.num_rows, part), gram_part_begin(g.num_rows, part + 1),
                true, sums.data());
    }
  });
  end_gram(g, shape, sums.data());
}

void tall_gram_round(const GramRoundArgs& round) {
  const TallGramArgs& all = round.gram;
  const GramShape shape = gram_shape(all);
  const int64_t products = shape.parts * (round.last - round.first) * shape.part_size;
  parallel_if_worth(products, kProductsWorth, shape.parts * shape.groups, 1, [&](int64_t begin, int64_t end) {
    for (int64_t task = begin; task < end; ++task) {
      const int64_t part = task / shape.groups;
      int64_t at = 0;  // the round's row where those of this part begin
      for (int64_t other = 0; other < part; ++other)
        at += gram_round_rows(all.num_rows, other, round.first, round.last);
      TallGramArgs g = all;
      g.a += (gram_part_begin(all.num_rows, part) + round.first) * g.a_stride;
      g.b += at * g.b_stride;
      g.num_rows = gram_round_rows(all.num_rows, part, round.first, round.last);
      gram_task(shape.is_turned ? turned_gram(g) : g, shape, task, 0, g.num_rows, round.first == 0,
                round.sums);
    }
  });
  if (round.ends) end_gram(shape.is_turned ? turned_gram(all) : all, shape, round.sums);
}
