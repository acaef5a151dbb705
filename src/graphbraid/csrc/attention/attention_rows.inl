// What the attention kernels share: the coefficients of edges, and sums of rows weighted by them.
// Included in their texts.
//
//   the edges of some rows  --collect-->  nodes, keys, places  (edges,)
//                           ----------->  value, above, extra, mask  (edges, heads)
//                           --add_rows->  sums of value * x[node]  (rows, heads * channels)
//
// Functions that are only declared here are defined in attention_shared.inl. Only attention.cpp compiles it.

#include "variants/heads.inl"

constexpr int64_t kEdgesAhead = 48;  // how many edges ahead numbers are prefetched
constexpr int64_t kRowsAhead = 24;   // how many edges ahead rows are prefetched at most
// Rows that are read or written in order are prefetched this many ahead: between the rows that edges read,
// the hardware finds their order late. The address may be behind the last row, since a prefetch never fails.
constexpr int64_t kInOrderAhead = 8;

// Some edges of walked rows that follow each other: the node at the other end, the mask's key, and numbers
// per edge and head, element (i, h) at i * heads + h. Rows are taken together because most have few edges:
// what is computed edge by edge then fills vectors.
template <typename A>
struct EdgeRows {
  // Behind the last edge, each of these three has as many valid ids more as a vector has lanes.
  Buffer<int64_t> nodes;   // `count` nodes, then those of the next edges
  Buffer<int64_t> of;      // the walked row of each edge
  Buffer<int64_t> places;  // if edges have own numbers: where these stand, implicit self-loops' last
  Buffer<int64_t> ends;    // by row: edges up to its last
  Buffer<uint64_t> keys;
  Buffer<uint32_t> bits;
  Buffer<A> value, extra, other, mask;
  Buffer<A> above;               // of edges with z > 0, else 0
  int64_t first = 0, rows = 0;   // walked
  int64_t count = 0, known = 0;  // edges; nodes with those of the next edges

  void reserve(int64_t num_rows, int64_t edges, int64_t heads, bool drops) {
    ends.reserve(num_rows);
    of.reserve(edges + 1 + kLanes<A>);  // a stored loop is written before it is left out
    nodes.reserve(edges + 1 + kEdgesAhead);
    const int64_t size = edges * heads + kLanes<A>;  // vectors of them are read from any edge and head
    value.reserve(size);
    extra.reserve(size);
    other.reserve(size);
    above.reserve(size);
    if (!drops) return;
    keys.reserve(edges + 1);
    bits.reserve(edges);
    mask.reserve(size);
  }
};

// How many rows are taken together, so that the numbers of their edges stay in the first-level cache.
struct RowGroups {
  const int64_t* indptr;
  int64_t most_rows, most_edges;

  RowGroups(const int64_t* edges_of, int64_t row_bytes)
      : indptr(edges_of),
        most_rows(std::clamp<int64_t>((int64_t{1} << 14) / row_bytes, 1, 64)),
        most_edges(std::clamp<int64_t>((int64_t{1} << 16) / row_bytes, 16, 128)) {}

  // The end of the group that begins with row `first`. A row of more than most_edges edges is a group.
  GB_INLINE int64_t end(int64_t first, int64_t last) const {
    const int64_t most = std::min(last, first + most_rows);
    int64_t next = first + 1;
    while (next < most && indptr[next + 1] - indptr[first] <= most_edges) ++next;
    return next;
  }
};

// A vector's worth of columns.
template <typename T>
struct HeadSlot {
  int64_t to;    // first column
  int64_t head;  // of that column
  int count;
  Mask<T> lane_head;  // of each lane, counted from `head`
};

template <typename T>
struct HeadSlots {
  static constexpr int L = kLanes<T>;
  Buffer<HeadSlot<T>> slots;
  int64_t heads, count = 0;
  int64_t of_head;  // slots, unless heads are mixed
  bool mixed;       // vectors hold columns of several heads
  bool full;        // all vectors are full

  HeadSlots(int64_t number, int64_t channels)
      : heads(number), of_head((channels + L - 1) / L), mixed(channels % L != 0) {
    const int64_t part = mixed ? heads * channels : channels;  // what is cut into vectors
    full = part % L == 0;
    slots.reserve((part + L - 1) / L * (heads * channels / part));
    for (int64_t start = 0; start < heads * channels; start += part)
      for (int64_t c = 0; c < part; c += L) {
        const int64_t to = start + c, head = to / channels;
        HeadSlot<T> slot{to, head, static_cast<int>(std::min<int64_t>(L, part - c)), {}};
        for (int l = 0; l < slot.count; ++l) slot.lane_head[l] = (to + l) / channels - head;
        slots[count++] = slot;
      }
  }

  // Calls tile(mixed, full, nv, slots, is_first) for nv slots at a time: as many as the registers hold, at
  // most Most. The first three arguments are constants.
  template <int Most = 8, typename Tile>
  GB_INLINE void tiles(const Tile& tile) const {
    using Yes = std::true_type;
    using No = std::false_type;
    if constexpr (std::is_same_v<T, float> && GB_LANES_F32 > 4 && Most > 2) {
      // Where heads mix, a slot needs a register for its lanes' heads, too, so fewer slots fit.
      constexpr int most = std::min(Most, GB_LANES_F32 == 16 ? 8 : 4);
      if (!mixed && full) return by<most>([&](auto... with) GB_LAMBDA { tile(No{}, Yes{}, with...); });
      if (mixed && full) return by<4>([&](auto... with) GB_LAMBDA { tile(Yes{}, Yes{}, with...); });
      if (mixed) return by<4>([&](auto... with) GB_LAMBDA { tile(Yes{}, No{}, with...); });
      return by<2>([&](auto... with) GB_LAMBDA { tile(No{}, No{}, with...); });
    } else {  // code size
      if (mixed) return by<2>([&](auto... with) GB_LAMBDA { tile(Yes{}, No{}, with...); });
      return by<2>([&](auto... with) GB_LAMBDA { tile(No{}, No{}, with...); });
    }
  }

 private:
  template <int Most, typename Tile>
  GB_INLINE void by(const Tile& tile) const {
    for (int64_t s = 0; s < count;) {
      const auto run = [&](auto nv) GB_LAMBDA {
        tile(nv, slots.data() + s, s == 0);
        s += nv;
      };
      if (count - s >= Most)
        run(std::integral_constant<int, Most>{});
      else if (Most > 4 && count - s >= 4)
        run(std::integral_constant<int, std::min(Most, 4)>{});
      else if (Most > 2 && count - s >= 2)
        run(std::integral_constant<int, std::min(Most, 2)>{});
      else
        run(std::integral_constant<int, 1>{});
    }
  }
};

// Slot s of a tile. The constants Mixed and Full decide how its columns are read and written.
template <typename T, bool Mixed, bool Full>
struct Columns {
  const HeadSlot<T>* tile;
  int s;

  GB_INLINE int64_t to() const { return Full ? tile[0].to + s * kLanes<T> : tile[s].to; }
  // Reads the slot's columns of a row that is summed; below, writes those of a result.
  template <typename U>
  GB_INLINE Vec<T> read(const U* row) const {
    return Full ? load(row + to()) : load_n(row + to(), tile[s].count);
  }
  template <typename U>
  GB_INLINE void write(U* row, const Vec<T>& v) const {
    Full ? store(row + to(), v) : store_n(row + to(), v, tile[s].count);
  }
  template <typename U>
  GB_INLINE void prefetch(const U* row) const {
    __builtin_prefetch(row + to(), 0, 2);
  }
  template <typename U>
  GB_INLINE void add(U* row, const Vec<T>& v) const {
    write(row, read(row) + v);
  }
  // The numbers that `by_head` holds for the heads of the lanes.
  GB_INLINE Vec<T> numbers(const Acc<T>* by_head) const {
    if constexpr (Mixed) return by_index(by_head + tile[s].head, tile[s].lane_head);
    return splat<Vec<T>>(by_head[tile[s].head]);
  }
};

// The rows that are summed.
template <typename T>
struct SummedRows {
  const T* data;
  int64_t width;

  int64_t bytes() const { return width * static_cast<int64_t>(sizeof(T)); }
  // How many edges ahead rows are prefetched, so that about 96 cache lines are on their way.
  int64_t distance() const {
    return std::clamp<int64_t>(96 * 64 / std::max<int64_t>(bytes(), 64), 2, kRowsAhead);
  }
  GB_INLINE const T* operator[](int64_t node) const { return data + node * width; }
  GB_INLINE void prefetch(int64_t node) const { prefetch_far((*this)[node], bytes()); }
};

// Calls finish(row, columns, sum of value * x[node], sum of above * x[node]) for each walked row and all its
// columns. Rows of x are prefetched `distance` edges ahead; 0: not at all.
template <bool Both, typename T, typename Finish>
GB_INLINE void add_rows(const HeadSlots<T>& slots, const SummedRows<T>& x, int64_t distance,
                        const EdgeRows<Acc<T>>& rows, const Acc<T>* value, const Acc<T>* above,
                        const Finish& finish) {
  slots.tiles([&](auto mixed, auto full, auto nv, const HeadSlot<T>* tile, bool is_first) GB_LAMBDA {
    constexpr int NV = decltype(nv)::value;
    using At = Columns<T, mixed, full>;
    HeadSlot<T> slot[NV];
    unroll<NV>([&](auto s) GB_LAMBDA { slot[s] = tile[s]; });
    const int64_t known = is_first && distance > 0 ? rows.known : 0;
    const bool is_all = full && NV == slots.count;
    // Shared: how many slots have the same head, whose number is read once. A tile begins with such a group.
    const auto walk = [&](auto shared) GB_LAMBDA {
      constexpr int Shared = decltype(shared)::value;
      int64_t i = 0;
      const int64_t* nodes = rows.nodes.data();
      const T* columns = x.data + (full ? slot[0].to : 0);  // so that a slot's place is a constant
      const Acc<T>*by_head = value, *by_head_above = above;
      for (int64_t r = 0; r < rows.rows; ++r) {
        Vec<T> sum[NV] = {}, sum_above[NV] = {};
        for (const int64_t end = rows.ends[r]; i < end;
             ++i, by_head += slots.heads, by_head_above += slots.heads) {
          if (i + distance < known) {
            const T* next = x[nodes[i + distance]];
            if (is_all)
              unroll<NV>([&](auto s) GB_LAMBDA { __builtin_prefetch(next + s * kLanes<T>, 0, 2); });
            else
              prefetch_far(next, x.bytes());
          }
          const T* from = columns + nodes[i] * x.width;
          unroll<NV / Shared>([&](auto group) GB_LAMBDA {
            constexpr int begin = decltype(group)::value * Shared;
            const Vec<T> number = At{slot, begin}.numbers(by_head);
            const Vec<T> number_above = Both ? At{slot, begin}.numbers(by_head_above) : number;
            unroll<Shared>([&](auto of_group) GB_LAMBDA {
              constexpr int s = begin + decltype(of_group)::value;
              const Vec<T> part = full ? load(from + s * kLanes<T>) : At{slot, s}.read(from);
              sum[s] += part * number;
              if constexpr (Both) sum_above[s] += part * number_above;
            });
          });
        }
        unroll<NV>([&](auto s) GB_LAMBDA { finish(r, At{slot, s}, sum[s], sum_above[s]); });
      }
    };
    if constexpr (full && !mixed && NV >= 4 && GB_LANES_F32 > 4) {
      if (slots.of_head % 4 == 0) return walk(std::integral_constant<int, 4>{});
      if (slots.of_head % 2 == 0) return walk(std::integral_constant<int, 2>{});
    }
    walk(std::integral_constant<int, 1>{});
  });
}

// Writes <left(row of the edge), x[node]> per head of each edge into `to`. Rows of x are prefetched
// `distance` edges ahead; 0: not at all.
template <typename T, typename Left>
GB_INLINE void edge_dots(int64_t heads, int64_t channels, const SummedRows<T>& x, int64_t distance,
                         const EdgeRows<Acc<T>>& rows, const Left& left, Acc<T>* to) {
  sum_heads<T>(
      rows.count, heads, channels,
      [&](int64_t i) GB_LAMBDA {
        if (distance > 0 && i + distance < rows.known) x.prefetch(rows.nodes[i + distance]);
        const T *own = left(rows.of[i]), *other = x[rows.nodes[i]];
        return [own, other](int64_t c, auto n) GB_LAMBDA { return get(own + c, n) * get(other + c, n); };
      },
      to);
}

// Calls body(at) for all vectors of a number per edge and head. The last reaches into the array's padding.
template <typename A, typename Body>
GB_INLINE void each_vector(int64_t size, const Body& body) {
  for (int64_t at = 0; at < size; at += kLanes<A>) body(at);
}

// to[s][r, :] = the sum of from[s] over row r's edges, for N arrays. Rows have few edges, and the branch at
// a row's end is often mispredicted. So the arrays share one loop, and work on edges does not go by rows.
template <int N, typename A>
GB_INLINE void add_edges(int64_t heads, const EdgeRows<A>& rows, const A* const (&from)[N],
                         A* const (&to)[N]) {
  fixed_heads<A>(heads, [&](auto number) GB_LAMBDA {
    int64_t begin = 0;
    for (int64_t r = 0; r < rows.rows; ++r) {
      const int64_t end = rows.ends[r];
      each_head<A>(number, [&](int64_t h, auto n) GB_LAMBDA {
        decltype(get(from[0], n)) total[N]{};
        for (int64_t i = begin; i < end; ++i)
          unroll<N>([&](auto s) GB_LAMBDA { total[s] += get(from[s] + i * number + h, n); });
        unroll<N>([&](auto s) GB_LAMBDA { put(to[s] + r * number + h, total[s], n); });
      });
      begin = end;
    }
  });
}

// Logits become exp(logit - tops[row]). tops: the rows' largest logits.
template <typename A>
GB_INLINE void softmax_powers(int64_t heads, const EdgeRows<A>& rows, A* value, A* tops) {
  fixed_heads<A>(heads, [&](auto number) GB_LAMBDA {
    int64_t begin = 0;
    for (int64_t r = 0; r < rows.rows; ++r) {
      const int64_t end = rows.ends[r];
      each_head<A>(number, [&](int64_t h, auto n) GB_LAMBDA {
        decltype(get(value, n)) top{};
        top -= std::numeric_limits<A>::infinity();
        for (int64_t i = begin; i < end; ++i) top = Greater{}(get(value + i * number + h, n), top);
        put(tops + r * number + h, top, n);
      });
      begin = end;
    }
    for (int64_t i = 0; i < rows.count; ++i) {
      const A* top = tops + (rows.of[i] - rows.first) * number;
      each_head<A>(number, [&](int64_t h, auto n) GB_LAMBDA {
        A* at = value + i * number + h;
        put(at, get(at, n) - get(top + h, n), n);
      });
    }
  });
  each_vector<A>(rows.count * heads,
                 [&](int64_t at) GB_LAMBDA { store(value + at, exp_lanes(load(value + at))); });
}

// Sums over all rows are made in shares of rows. Their number depends on the edges alone, so that adding them
// up in order gives the same bits with any number of threads. Few rows are one share.
constexpr int64_t kShareRowCost = 4;
GB_INLINE int64_t num_shares(const int64_t* indptr, int64_t num_rows) {
  constexpr int64_t work_of_a_share = 64, most = 64;
  return std::clamp<int64_t>((indptr[num_rows] + num_rows * kShareRowCost) / work_of_a_share, 1, most);
}

// Calls body(share, first, last, own) for the rows [first, last) of each share that has some. The shares have
// about equal work. make() makes `own`, the memory that a thread needs. edge_work: see parallel_rows.
template <typename Make, typename Body>
void parallel_shares(const int64_t* indptr, int64_t num_rows, int64_t edge_work, const Make& make,
                     const Body& body) {
  constexpr int64_t row_cost = kShareRowCost, least_work = int64_t{1} << 16;  // two chunks of parallel_rows
  const int64_t work = indptr[num_rows] + num_rows * row_cost, shares = num_shares(indptr, num_rows);
  const auto begin = [&](int64_t share) {
    return share == shares ? num_rows : row_at_work(indptr, num_rows, row_cost, work * share / shares);
  };
  const auto run = [&](int64_t first, int64_t last) {
    auto own = make();
    for (int64_t share = first, row = begin(first), end = 0; share < last; ++share, row = end)
      if ((end = begin(share + 1)) > row) body(share, row, end, own);
  };
  if (work * edge_work < least_work) return run(int64_t{0}, shares);
  parallel_dynamic(shares, 1, run);
}

// to[d, c] = factor[c] * the sum of the shares' parts, in order.
template <typename A>
void sum_shares(const std::vector<A>& parts, const A* factor, int64_t rows, int64_t width, A* to) {
  const int64_t size = rows * width;
  std::fill(to, to + size, A{0});
  for (const A *part = parts.data(), *end = part + parts.size(); part < end; part += size)
    for (int64_t c = 0; c < size; ++c) to[c] += part[c];
  if (!factor) return;
  for (int64_t c = 0; c < size; ++c) to[c] *= factor[c % width];
}

// The arguments from which edges' coefficients are computed. Nothing here depends on the dtype of the rows,
// so that all rows that are summed in A share the code.
template <typename A>
struct Coefficients {
  const AttentionArgs& a;
  const A* src_logit = static_cast<const A*>(a.src_logit);
  const A* dst_logit = static_cast<const A*>(a.dst_logit);
  const A* edge_logit = static_cast<const A*>(a.edge_logit);
  const bool needs_places = a.edge_logit || a.edge_weight;
  const A slope = static_cast<A>(a.slope);
  const HeadLanes<A> lanes{a.heads};

  // The key of an edge's dropout mask. A row's keys count up; its implicit self-loop has the last. Without
  // first_keys, rows follow each other with one key more than edges, so row v begins at indptr[v] + v.
  GB_INLINE uint64_t key(int64_t v, int64_t edge) const {
    return static_cast<uint64_t>(edge + (a.first_keys ? a.first_keys[v] - a.indptr[v] : v));
  }

  // Collects the edges [begin, end) of the rows [first, last) of the graph, or of its transpose, where `ids`
  // leads to the graph's edges. A row's implicit self-loop comes after its last edge; that of the last row
  // only if `is_last`. The edges before prefetch_end follow, to be prefetched.
  void collect(int64_t first, int64_t last, const int64_t* indptr, int64_t begin, int64_t end, bool is_last,
               int64_t prefetch_end, const void* indices, const int64_t* ids, EdgeRows<A>& rows) const;
  // All edges of these rows.
  void collect_all(int64_t first, int64_t last, const int64_t* indptr, int64_t prefetch_end,
                   const void* indices, const int64_t* ids, EdgeRows<A>& rows) const {
    collect(first, last, indptr, indptr[first], indptr[last], true, prefetch_end, indices, ids, rows);
  }

  // rows.mask: factors of the coefficients under dropout, 0 or 1 / (1 - p).
  void draw_masks(EdgeRows<A>& rows) const;

  // Applies dropout to the coefficients in `value`, and to those in `above` if with_above.
  GB_INLINE void drop(EdgeRows<A>& rows, bool with_above) const {
    if (a.threshold != 0) drop_(rows, with_above);
  }

  GB_INLINE Vec<A> leaky(const Vec<A>& z) const { return z > 0 ? z : z * slope; }

 private:
  void drop_(EdgeRows<A>& rows, bool with_above) const;
  void prefetch_features(int64_t begin, int64_t end, int64_t prefetch_end, const int64_t* ids) const;
  template <typename I>
  void collect_(int64_t first, int64_t last, const int64_t* indptr, int64_t begin, int64_t end, bool is_last,
                int64_t prefetch_end, const I* indices, const int64_t* ids, EdgeRows<A>& rows) const;
};

template <typename T>
struct Attention : Coefficients<Acc<T>> {
  using A = Acc<T>;
  using Coefficients<A>::a;
  const int64_t width = a.heads * a.channels;
  const SummedRows<T> rows{static_cast<const T*>(a.src), width};
  const SummedRows<T> own{static_cast<const T*>(a.dst), width};
  const int64_t lines = (rows.bytes() + 63) / 64;
  const A* att = static_cast<const A*>(a.att);

  // GATv2: the part of an edge's logit that its columns add, between the rows `left` and `right`.
  GB_INLINE auto logit_part(const T* left, const A* right) const {
    return [this, left, right](int64_t c, auto n)
               GB_LAMBDA { return get(att + c, n) * this->leaky(get(left + c, n) + get(right + c, n)); };
  }
};

// Writes <grad[v, h, :], rows[v, h, :]> of the rows [first, last) into `to`, (last - first, heads).
template <typename T, typename U>
void grad_dot(const AttentionBackwardArgs& b, const U* rows, int64_t first, int64_t last, Acc<T>* to);

// The numbers of each destination that its edges need, side by side: three times `heads` numbers.
template <typename A>
struct DestinationRecords {
  int64_t heads;
  int64_t stride = 3 * heads <= 16 ? 4 * heads : 3 * heads;  // padded if few, to cross fewer cache lines
  Buffer<A> numbers;

  DestinationRecords(int64_t num_dst, int64_t number)
      : heads(number), numbers(num_dst * stride + kLanes<A>) {}
  GB_INLINE const A* operator[](int64_t v) const { return numbers.data() + v * stride; }
  GB_INLINE A* operator[](int64_t v) { return numbers.data() + v * stride; }
  GB_INLINE void prefetch(int64_t v) const { prefetch_far((*this)[v], 3 * heads * sizeof(A)); }
};
