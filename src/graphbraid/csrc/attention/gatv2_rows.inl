// What GATv2's kernels share: logits from the rows of both ends, and the part of edges' features in them.
// Included in their texts, behind attention_rows.inl.
//
//   x            (num_nodes, heads * channels)      logits  (edges, heads)
//   own          (heads * channels,)          --->  z       (edges, heads * channels), with features
//   features     (edges, edge_channels)
//   edge_weight  (edge_channels, heads * channels)
//
// An edge's z is the row at its other end plus its row at this end: the node's own row, plus features[e] *
// edge_weight if edges have features. Rows with features are computed for some edges at a time, in a scratch
// matrix that stays in the cache, and are computed again where they are needed again.

// The same row in the dtype of the sums.
template <typename T>
struct WideRow {
  Buffer<Acc<T>> numbers;

  GB_INLINE const Acc<T>* operator()(const T* row, int64_t width) {
    if constexpr (std::is_same_v<T, Acc<T>>) {
      return row;
    } else {
      constexpr int L = kLanes<T>;
      numbers.reserve(width);
      for (int64_t c = 0; c < width; c += L) {
        const int n = static_cast<int>(std::min<int64_t>(L, width - c));
        store_n(numbers.data() + c, load_n(row + c, n), n);
      }
      return numbers.data();
    }
  }
};

// Writes the logits of `count` edges, from the row's edge `first` on, into `value`. x: rows at the other end.
// own: the row at this end, which stays in registers; or, if EachOwn, the rows of the edges side by side.
template <bool EachOwn, typename T>
void gatv2_logits(const Attention<T>& k, const SummedRows<T>& x, const Acc<T>* own, int64_t first,
                  int64_t count, EdgeRows<Acc<T>>& row);

// Calls body(column, number of vectors, elements of each) for two vectors of columns at a time, with
// constants; then for one vector, which may have fewer elements.
template <typename A, typename Body>
GB_INLINE void column_tiles(int64_t width, const Body& body) {
  constexpr int L = kLanes<A>;
  using std::integral_constant;
  int64_t c = 0;
  for (; c + 2 * L <= width; c += 2 * L) body(c, integral_constant<int, 2>{}, integral_constant<int, L>{});
  for (; c < width; c += L)
    body(c, integral_constant<int, 1>{}, static_cast<int>(std::min<int64_t>(L, width - c)));
}

// The edges' features and their map.
template <typename A>
struct EdgeMap {
  static constexpr int L = kLanes<A>;
  static constexpr int kTogether = 4;  // edges, or features, whose sums the registers hold at once
  const AttentionArgs& a;
  const int64_t width = a.heads * a.channels, channels = a.edge_channels;
  const A* weight = static_cast<const A*>(a.edge_weight);

  GB_INLINE const A* operator[](int64_t place) const {
    const bool is_loop = place >= a.num_edges;
    const Rows& rows = is_loop ? a.loop_features : a.edge_features;
    return static_cast<const A*>(rows.data) + (is_loop ? place - a.num_edges : place) * rows.stride;
  }

  // to[i, :] = own + from[i] * weight
  void multiply(const A* const* from, int64_t count, const A* own, A* to) const {
    for (int64_t i = 0; i < count; i += kTogether) {
      const int live = static_cast<int>(std::min<int64_t>(kTogether, count - i));
      const A* edge[kTogether];  // the last edge fills the tile up; its extra sums are not stored
      for (int j = 0; j < kTogether; ++j) edge[j] = from[i + std::min(j, live - 1)];
      column_tiles<A>(width, [&](int64_t c, auto nv, auto n) GB_LAMBDA {
        constexpr int NV = decltype(nv)::value;
        Vec<A> sum[kTogether][NV];
        unroll<NV>([&](auto s) GB_LAMBDA {
          const Vec<A> start = get(own + c + s * L, n);
          unroll<kTogether>([&](auto j) GB_LAMBDA { sum[j][s] = start; });
        });
        for (int64_t d = 0; d < channels; ++d)
          unroll<NV>([&](auto s) GB_LAMBDA {
            const Vec<A> part = get(weight + d * width + c + s * L, n);
            unroll<kTogether>([&](auto j) GB_LAMBDA { sum[j][s] += edge[j][d] * part; });
          });
        unroll<kTogether>([&](auto j) GB_LAMBDA {
          if (j < live)
            unroll<NV>([&](auto s) GB_LAMBDA { put(to + (i + j) * width + c + s * L, sum[j][s], n); });
        });
      });
    }
  }

  // sums[d, :] += the sum over i of from[i][d] * rows[i, :]
  void add_products(const A* const* from, const A* rows, int64_t count, A* sums) const {
    for (int64_t d = 0; d < channels; d += kTogether) {
      const int live = static_cast<int>(std::min<int64_t>(kTogether, channels - d));
      int64_t feature[kTogether];  // the last feature fills the tile up, as above
      for (int j = 0; j < kTogether; ++j) feature[j] = d + std::min(j, live - 1);
      column_tiles<A>(width, [&](int64_t c, auto nv, auto n) GB_LAMBDA {
        constexpr int NV = decltype(nv)::value;
        Vec<A> sum[kTogether][NV] = {};
        for (int64_t i = 0; i < count; ++i)
          unroll<NV>([&](auto s) GB_LAMBDA {
            const Vec<A> part = get(rows + i * width + c + s * L, n);
            unroll<kTogether>([&](auto j) GB_LAMBDA { sum[j][s] += from[i][feature[j]] * part; });
          });
        unroll<kTogether>([&](auto j) GB_LAMBDA {
          A* to = sums + feature[j] * width + c;
          if (j < live)
            unroll<NV>([&](auto s) GB_LAMBDA { put(to + s * L, get(to + s * L, n) + sum[j][s], n); });
        });
      });
    }
  }
};

// The rows at this end of some edges with features. They become z, and then the gradients of z.
template <typename T>
struct EdgeOwnRows {
  using A = Acc<T>;
  static constexpr int64_t kMostWaiting = 128;
  const EdgeMap<A> map;
  WideRow<T> wide;
  Buffer<const A*> features;
  Buffer<A> rows;
  int64_t waiting = 0;  // edges whose gradients wait at the beginning of the rows

  explicit EdgeOwnRows(const AttentionArgs& a) : map{a} {}

  // How many edges' rows stay in the first-level cache.
  int64_t most() const {
    return std::clamp<int64_t>((int64_t{1} << 14) / (map.width * static_cast<int64_t>(sizeof(A))), 16, 256);
  }

  // Makes the rows at this end of `count` edges, from the row's edge `first` on; `own`: the node's row.
  A* make(const T* own, const EdgeRows<A>& row, int64_t first, int64_t count) {
    features.reserve(waiting + count, waiting);
    rows.reserve((waiting + count) * map.width, waiting * map.width);
    const A** from = features.data() + waiting;
    for (int64_t i = 0; i < count; ++i) from[i] = map[row.places[first + i]];
    A* to = rows.data() + waiting * map.width;
    map.multiply(from, count, wide(own, map.width), to);
    return to;
  }

  // The rows of `count` more edges have become gradients. Adds their products with the features to `sums`
  // when enough edges wait, or if `all`.
  void add_gradients(int64_t count, bool all, A* sums) {
    waiting += count;
    if (!all && waiting < kMostWaiting) return;
    map.add_products(features.data(), rows.data(), waiting, sums);
    waiting = 0;
  }
};

// GATv2's logits of whole rows.
template <typename T>
void gatv2_rows_logits(const Attention<T>& k, EdgeOwnRows<T>& own_rows, EdgeRows<Acc<T>>& rows) {
  int64_t first = 0;
  for (int64_t r = 0; r < rows.rows; ++r) {
    const T* own = k.own[rows.first + r];
    const int64_t end = rows.ends[r], most = k.a.edge_weight ? own_rows.most() : end - first;
    for (int64_t count; first < end; first += count) {
      count = std::min(most, end - first);
      if (k.a.edge_weight)
        gatv2_logits<true>(k, k.rows, own_rows.make(own, rows, first, count), first, count, rows);
      else
        gatv2_logits<false>(k, k.rows, own_rows.wide(own, k.width), first, count, rows);
    }
  }
}
