// What the attention kernels share: the coefficients of a row's edges, and sums of rows weighted by them.
// Stands inside their texts.
//
//   the edges of a row  --collect-->  nodes, keys, places  (edges,)
//                       ----------->  value, above, extra, mask  (edges, heads)
//                       --add_rows->  sum of value * x[node]  (heads * channels,)
//
// What is only declared here stands in attention_shared.inl, which attention.cpp alone compiles.

#include "variants/heads.inl"

constexpr int64_t kEdgesAhead = 48;  // whose numbers are fetched before they are read
constexpr int64_t kRowsAhead = 24;   // at most: whose rows are

// Some edges of one row: the node at the other end, the mask's key, and numbers per edge and head, element
// (i, h) at i * heads + h.
template <typename A>
struct EdgeRow {
  Buffer<int64_t> nodes;   // behind `count` nodes, those of the next edges
  Buffer<int64_t> places;  // with numbers of edges' own: where they stand, implicit self-loops' last
  Buffer<uint64_t> keys;
  Buffer<uint32_t> bits;
  Buffer<A> value, extra, other, mask;
  Buffer<A> above;               // of edges with z > 0, else 0
  int64_t count = 0, known = 0;  // edges, and nodes with those of the next

  void reserve(int64_t edges, int64_t heads, bool drops) {
    nodes.reserve(edges + kEdgesAhead);
    const int64_t size = edges * heads + kLanes<A>;  // vectors of them are read from any edge and head
    value.reserve(size);
    extra.reserve(size);
    other.reserve(size);
    above.reserve(size);
    if (!drops) return;
    keys.reserve(edges);
    bits.reserve(edges);
    mask.reserve(size);
  }
};

// A vector's worth of columns.
template <typename T>
struct HeadSlot {
  int64_t from, to;  // first column in the rows that are summed, and in the result
  int64_t head;      // of the first column
  int count;
  Mask<T> lane_head;  // of each lane, counted from `head`
};

// `narrow`: the rows that are summed hold one head's columns, which serve all heads.
template <typename T>
struct HeadSlots {
  static constexpr int L = kLanes<T>;
  Buffer<HeadSlot<T>> slots;
  int64_t heads, count = 0;
  bool mixed;  // vectors hold columns of several heads
  bool full;   // all vectors are full

  HeadSlots(int64_t number, int64_t channels, bool narrow)
      : heads(number), mixed(!narrow && channels % L != 0) {
    const int64_t part = mixed ? heads * channels : channels;  // what is cut into vectors
    full = part % L == 0;
    slots.reserve((part + L - 1) / L * (heads * channels / part));
    for (int64_t start = 0; start < heads * channels; start += part)
      for (int64_t c = 0; c < part; c += L) {
        const int64_t to = start + c, head = to / channels;
        HeadSlot<T> slot{narrow ? c : to, to, head, static_cast<int>(std::min<int64_t>(L, part - c)), {}};
        for (int l = 0; l < slot.count; ++l) slot.lane_head[l] = (to + l) / channels - head;
        slots[count++] = slot;
      }
  }

  // tile(mixed, full, nv, slots, is_first) for nv slots at a time, as many as the registers hold and at most
  // Most; the first three are constants.
  template <int Most = 8, typename Tile>
  GB_INLINE void tiles(const Tile& tile) const {
    using Yes = std::true_type;
    using No = std::false_type;
    if constexpr (std::is_same_v<T, float> && GB_LANES_F32 > 4 && Most > 2) {
      // Beside each slot's sums stands, where heads mix, its lanes' heads.
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

// The numbers that `of_edge` holds for the heads of a slot's lanes.
template <bool Mixed, typename T>
GB_INLINE Vec<T> lane_numbers(const HeadSlot<T>& slot, const Acc<T>* of_edge) {
  if constexpr (Mixed) return by_index(of_edge + slot.head, slot.lane_head);
  return splat<Vec<T>>(of_edge[slot.head]);
}
template <bool Full, typename T>
GB_INLINE Vec<T> slot_columns(const T* row, int count) {
  return Full ? load(row) : load_n(row, count);
}

// The rows that are summed.
template <typename T>
struct SummedRows {
  const T* data;
  int64_t width;

  int64_t bytes() const { return width * static_cast<int64_t>(sizeof(T)); }
  // How many edges ahead rows are fetched, so that about 96 lines are on their way.
  int64_t distance() const {
    return std::clamp<int64_t>(96 * 64 / std::max<int64_t>(bytes(), 64), 2, kRowsAhead);
  }
  GB_INLINE const T* operator[](int64_t node) const { return data + node * width; }
  GB_INLINE void prefetch(int64_t node) const { prefetch_far((*this)[node], bytes()); }
};

// Fetches the rows of a long row's edges while their coefficients are computed: arithmetic hides the memory.
struct RowsOnTheWay {
  const char* data;
  int64_t bytes;  // of a row
  const int64_t* nodes;
  int64_t end;  // 0: the row is short, there is little to compute, or the cache would not hold its rows
  int64_t next = 0;

  template <typename T>
  RowsOnTheWay(const SummedRows<T>& x, const EdgeRow<Acc<T>>& row, int64_t heads)
      : data(reinterpret_cast<const char*>(x.data)), bytes(x.bytes()), nodes(row.nodes.data()) {
    constexpr int64_t most_bytes = int64_t{1} << 18;
    const bool is_worth = heads >= 4 && row.count > kRowsAhead && row.count * bytes <= most_bytes;
    end = is_worth ? row.count : 0;
  }
  // Up to edge `stop`.
  GB_INLINE void fetch(int64_t stop) {
    for (stop = std::min(stop, end); next < stop; ++next) prefetch_far(data + nodes[next] * bytes, bytes);
  }
};

// finish(slot, sum of value * row, sum of above * row) for all slots. Rows are fetched `distance` edges
// ahead, but those of the first `fetched` edges; 0: not at all.
template <bool Both, typename T, typename Finish>
GB_INLINE void add_rows(const HeadSlots<T>& slots, const SummedRows<T>& x, int64_t distance, int64_t fetched,
                        const EdgeRow<Acc<T>>& row, const Finish& finish) {
  slots.tiles([&](auto mixed, auto full, auto nv, const HeadSlot<T>* tile, bool is_first) GB_LAMBDA {
    constexpr int NV = decltype(nv)::value;
    Vec<T> sum[NV] = {}, above[NV] = {};
    HeadSlot<T> slot[NV];
    unroll<NV>([&](auto s) GB_LAMBDA { slot[s] = tile[s]; });
    const int64_t known = is_first && distance > 0 ? row.known : 0;
    const bool is_all = NV == slots.count;
    for (int64_t i = 0; i < row.count; ++i) {
      if (i + distance < known && i + distance >= fetched) {
        const T* next = x[row.nodes[i + distance]];
        if (is_all)
          unroll<NV>([&](auto s) GB_LAMBDA { __builtin_prefetch(next + slot[s].from, 0, 2); });
        else
          prefetch_far(next, x.bytes());
      }
      const T* from = x[row.nodes[i]];
      const Acc<T>* value = row.value.data() + i * slots.heads;
      const Acc<T>* value_above = row.above.data() + i * slots.heads;
      unroll<NV>([&](auto s) GB_LAMBDA {
        const Vec<T> part = slot_columns<full>(from + slot[s].from, slot[s].count);
        sum[s] += part * lane_numbers<mixed>(slot[s], value);
        if constexpr (Both) above[s] += part * lane_numbers<mixed>(slot[s], value_above);
      });
    }
    unroll<NV>([&](auto s) GB_LAMBDA { finish(slot[s], sum[s], above[s]); });
  });
}

// What an edge's coefficients are found by. Knows nothing of how rows are stored: one code for all that are
// summed in A.
template <typename A>
struct Coefficients {
  const AttentionArgs& a;
  const A* src_logit = static_cast<const A*>(a.src_logit);
  const A* dst_logit = static_cast<const A*>(a.dst_logit);
  const A* edge_logit = static_cast<const A*>(a.edge_logit);
  const bool needs_places = a.edge_logit || a.edge_weight;
  const A slope = static_cast<A>(a.slope);
  const HeadLanes<A> lanes{a.heads};

  // Key of an edge's dropout mask: counts up from the row's first, the implicit self-loop's comes last. Where
  // rows have no first keys of their own they follow each other, each with a place for a loop at its end.
  GB_INLINE uint64_t key(int64_t v, int64_t edge) const {
    return static_cast<uint64_t>(edge + (a.first_keys ? a.first_keys[v] - a.indptr[v] : v));
  }

  // The edges [begin, end) of row v of the graph or of its transpose (then `ids` leads to their ids). Behind
  // the row's last, `is_last`, comes its implicit self-loop. Edges before prefetch_end follow.
  void collect(int64_t v, int64_t begin, int64_t end, bool is_last, int64_t prefetch_end, const void* indices,
               const int64_t* ids, EdgeRow<A>& row) const;

  // row.mask: factors of the coefficients under dropout, 0 or 1 / (1 - p).
  void draw_masks(EdgeRow<A>& row) const;

  // Coefficients under dropout; also those of `above`, if there are any.
  GB_INLINE void drop(EdgeRow<A>& row, bool with_above) const {
    if (a.threshold != 0) drop_(row, with_above);
  }

  GB_INLINE Vec<A> leaky(const Vec<A>& z) const { return z > 0 ? z : z * slope; }

 private:
  void drop_(EdgeRow<A>& row, bool with_above) const;
  void prefetch_features(int64_t begin, int64_t end, int64_t prefetch_end, const int64_t* ids) const;
  template <typename I>
  void collect_(int64_t v, int64_t begin, int64_t end, int64_t prefetch_end, const I* indices,
                const int64_t* ids, EdgeRow<A>& row) const;
};

// GAT: what edges of their own add to z, in `above`.
template <typename A>
void add_edge_logits(const Coefficients<A>& k, EdgeRow<A>& row) {
  if (!k.edge_logit) return;
  for (int64_t i = 0; i < row.count; ++i) {
    const A* own = k.edge_logit + row.places[i] * k.a.heads;
    for (int64_t h = 0; h < k.a.heads; ++h) row.above[i * k.a.heads + h] += own[h];
  }
}

template <typename T>
struct Attention : Coefficients<Acc<T>> {
  using A = Acc<T>;
  using Coefficients<A>::a;
  const int64_t width = a.heads * a.channels;
  const SummedRows<T> rows{static_cast<const T*>(a.src), width};
  const SummedRows<T> own{static_cast<const T*>(a.dst), width};
  const int64_t lines = (rows.bytes() + 63) / 64;
  const A* att = static_cast<const A*>(a.att);

  // GATv2: what columns of an edge between rows `left` and `right` add to its logit.
  GB_INLINE auto logit_part(const T* left, const A* right) const {
    return [this, left, right](int64_t c, auto n)
               GB_LAMBDA { return get(att + c, n) * this->leaky(get(left + c, n) + get(right + c, n)); };
  }
};

// (num_dst, heads): <grad[v, h, :], rows[v, h, :]>
template <typename T, typename U>
Buffer<Acc<T>> grad_dot(const AttentionBackwardArgs& b, const U* rows);
