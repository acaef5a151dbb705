// What the attention kernels share: the coefficients of a row's edges, and sums of rows weighted by them.
// Stands inside attention.inl.

#include "exp.inl"

constexpr int64_t kEdgesAhead = 24;  // at most: whose rows are fetched before they are read

// The edges of one row: the node at the other end, the edge's id, and numbers per head and edge. Each head's
// numbers are a plane of whole vectors: element (h, i) at h * stride + i.
template <typename A>
struct EdgeCoefficients {
  Buffer<int64_t> nodes, edges;  // behind `count` nodes, those of the next rows
  Buffer<A> value, above;        // above: of edges with z > 0, else 0
  Buffer<A> extra;
  int64_t count = 0, known = 0;  // nodes of this row, and with those of the next
  int64_t stride = 0;

  void reserve(int64_t edges_at_most, int64_t heads) {
    nodes.reserve(edges_at_most + kEdgesAhead);
    edges.reserve(edges_at_most);
    const int64_t plane = (edges_at_most + kLanes<A> - 1) / kLanes<A> * kLanes<A>;
    value.reserve(plane * heads);
    above.reserve(plane * heads);
    extra.reserve(plane * heads);
  }
  void set_count(int64_t edges_found) {
    count = edges_found;
    stride = (count + kLanes<A> - 1) / kLanes<A> * kLanes<A>;
  }
  // Fills a plane's lanes behind the last edge.
  GB_INLINE void pad(A* plane, A with) const { std::fill(plane + count, plane + stride, with); }
};

// A vector's worth of one head's columns.
struct HeadSlot {
  int64_t from, to;  // first column in the rows that are summed, and in the result
  int64_t head;
  int count;
};

// `narrow`: the rows that are summed hold one head's columns, which serve all heads.
template <typename T>
std::vector<HeadSlot> head_slots(int64_t heads, int64_t channels, bool narrow) {
  std::vector<HeadSlot> slots;
  for (int64_t h = 0; h < heads; ++h)
    for (int64_t c = 0; c < channels; c += kLanes<T>)
      slots.push_back({narrow ? c : h * channels + c, h * channels + c, h,
                       static_cast<int>(std::min<int64_t>(kLanes<T>, channels - c))});
  return slots;
}

// The rows that are summed.
template <typename T>
struct SummedRows {
  const T* data;
  int64_t width;

  int64_t bytes() const { return width * static_cast<int64_t>(sizeof(T)); }
  // How many edges ahead rows are fetched, so that about 96 lines are on their way.
  int64_t distance() const {
    return std::clamp<int64_t>(96 * 64 / std::max<int64_t>(bytes(), 64), 2, kEdgesAhead);
  }

  GB_INLINE void prefetch(int64_t node) const {
    constexpr int second_level = 2;
    const char* row = reinterpret_cast<const char*>(data + node * width);
    for (int64_t i = 0; i < bytes(); i += 64) __builtin_prefetch(row + i, 0, second_level);
  }
};

// NV slots at once: finish(slot, sum of value * row, sum of above * row). Rows are fetched `distance` edges
// ahead; 0: not at all. Full: the slots hold whole vectors.
template <typename T, bool Both, bool Full, int NV, typename Finish>
GB_INLINE void add_slots(const HeadSlot* slots, const SummedRows<T>& x, int64_t distance,
                         const EdgeCoefficients<Acc<T>>& row, const Finish& finish) {
  Vec<T> sum[NV] = {}, above[NV] = {};
  int64_t plane[NV];
  unroll<NV>([&](auto s) GB_LAMBDA { plane[s] = slots[s].head * row.stride; });
  for (int64_t i = 0; i < row.count; ++i) {
    if (distance > 0 && i + distance < row.known) x.prefetch(row.nodes[i + distance]);
    const T* from = x.data + row.nodes[i] * x.width;
    const Acc<T>* c = row.value.data() + i;
    const Acc<T>* c_above = row.above.data() + i;
    unroll<NV>([&](auto s) GB_LAMBDA {
      const Vec<T> part = Full ? load(from + slots[s].from) : load_n(from + slots[s].from, slots[s].count);
      sum[s] += part * c[plane[s]];
      if constexpr (Both) above[s] += part * c_above[plane[s]];
    });
  }
  unroll<NV>([&](auto s) GB_LAMBDA { finish(slots[s], sum[s], above[s]); });
}

// All slots of a row, as many at once as the registers hold.
template <typename T, bool Both, bool Full, typename Finish>
GB_INLINE void add_all_slots(const std::vector<HeadSlot>& slots, const SummedRows<T>& x, int64_t distance,
                             const EdgeCoefficients<Acc<T>>& row, const Finish& finish) {
  // Code size: only float32 rows are summed in wide tiles.
  constexpr int wide = sizeof(T) != 4 ? 2 : GB_LANES_F32 == 16 ? 8 : 4;
  const int64_t total = static_cast<int64_t>(slots.size());
  for (int64_t s = 0; s < total; distance = 0) {
    const auto add = [&](auto nv) GB_LAMBDA {
      add_slots<T, Both, Full, nv>(slots.data() + s, x, distance, row, finish);
      s += nv;
    };
    if (total - s >= wide)
      add(std::integral_constant<int, wide>{});
    else if (wide > 2 && total - s >= 2)
      add(std::integral_constant<int, 2>{});
    else
      add(std::integral_constant<int, 1>{});
  }
}

template <typename T, bool Both, typename Finish>
GB_INLINE void add_rows(const std::vector<HeadSlot>& slots, int64_t channels, const SummedRows<T>& x,
                        int64_t distance, const EdgeCoefficients<Acc<T>>& row, const Finish& finish) {
  if constexpr (sizeof(T) == 4) {
    if (channels % kLanes<T> == 0) return add_all_slots<T, Both, true>(slots, x, distance, row, finish);
  }
  add_all_slots<T, Both, false>(slots, x, distance, row, finish);
}

template <typename T, typename I>
struct Attention {
  using A = Acc<T>;
  const AttentionArgs& a;
  const int64_t width = a.heads * a.channels;
  const T* src = static_cast<const T*>(a.src);
  const SummedRows<T> rows{src, width};
  const int64_t row_bytes = rows.bytes(), lines = (row_bytes + 63) / 64, distance = rows.distance();
  const T* dst = static_cast<const T*>(a.dst);
  const A* src_logit = static_cast<const A*>(a.src_logit);
  const A* dst_logit = static_cast<const A*>(a.dst_logit);
  const A* att = static_cast<const A*>(a.att);
  const A slope = static_cast<A>(a.slope);
  const A keep_scale = static_cast<A>(a.keep_scale);

  // Calls f(u, edge) for each in-edge of v, in order, the implicit self-loop last. Its edge id is num_edges +
  // v.
  template <typename F>
  GB_INLINE void in_edges(int64_t v, int64_t prefetch_end, F&& f) const {
    const I* indices = static_cast<const I*>(a.indices);
    for (int64_t e = a.indptr[v]; e < a.indptr[v + 1]; ++e) {
      if (e + distance < prefetch_end) rows.prefetch(indices[e + distance]);
      const int64_t u = indices[e];
      if (a.num_loops && u == v) continue;
      f(u, e);
    }
    if (v < a.num_loops) f(v, a.num_edges + v);
  }

  // The edges [begin, end) at one end of node v, of the graph or of its transpose (then `ids` leads to their
  // ids), with the implicit self-loop. Edges before prefetch_end follow.
  GB_INLINE void collect(int64_t v, int64_t begin, int64_t end, int64_t prefetch_end, const I* indices,
                         const int64_t* ids, EdgeCoefficients<A>& row) const {
    row.reserve(end - begin + 1, a.heads);
    int64_t n = 0;
    for (int64_t e = begin; e < end; ++e) {
      const int64_t u = indices[e];
      if (a.num_loops && u == v) continue;
      row.nodes[n] = u;
      row.edges[n++] = ids ? ids[e] : e;
    }
    if (v < a.num_loops) {
      row.nodes[n] = v;
      row.edges[n++] = a.num_edges + v;
    }
    row.set_count(n);
    for (int64_t e = end; e < std::min(end + kEdgesAhead, prefetch_end); ++e) row.nodes[n++] = indices[e];
    row.known = n;
  }

  // Factor of a coefficient under dropout: 0 or 1 / (1 - p).
  GB_INLINE void masks(int64_t edge, A* mask) const {
    if (a.threshold == 0) {
      for (int64_t h = 0; h < a.heads; ++h) mask[h] = 1;
      return;
    }
    const uint32_t key = dropout_row_key(a.seed, static_cast<uint64_t>(edge));
    for (int64_t h = 0; h < a.heads; ++h)
      mask[h] = dropout_bits(key, static_cast<uint32_t>(h)) >= a.threshold ? keep_scale : A{0};
  }

  // value: logits; above: z.
  GB_INLINE void gat_row_logits(int64_t v, EdgeCoefficients<A>& row) const {
    const A* right = dst_logit + v * a.heads;
    for (int64_t i = 0; i < row.count; ++i) {
      if (i + kEdgesAhead < row.known) __builtin_prefetch(src_logit + row.nodes[i + kEdgesAhead] * a.heads);
      const A* left = src_logit + row.nodes[i] * a.heads;
      for (int64_t h = 0; h < a.heads; ++h) row.above[h * row.stride + i] = left[h] + right[h];
    }
    for (int64_t h = 0; h < a.heads; ++h) {
      A* z = row.above.data() + h * row.stride;
      A* logit = row.value.data() + h * row.stride;
      row.pad(z, A{0});
      for (int64_t i = 0; i < row.count; i += kLanes<A>) store(logit + i, leaky_lanes(load(z + i)));
    }
  }

  GB_INLINE Vec<A> leaky_lanes(Vec<A> z) const { return z > 0 ? z : z * slope; }

  GB_INLINE void gatv2_row_logits(int64_t v, EdgeCoefficients<A>& row) const {
    for (int64_t i = 0; i < row.count; ++i) {
      if (i + distance < row.known) rows.prefetch(row.nodes[i + distance]);
      gatv2_logits(row.nodes[i], v, row.value.data() + i, row.stride);
    }
  }

  // logit[h * step]
  GB_INLINE void gatv2_logits(int64_t u, int64_t v, A* logit, int64_t step) const {
    constexpr int L = kLanes<T>;
    const T* left = src + u * width;
    const T* right = dst + v * width;
    for (int64_t h = 0; h < a.heads; ++h) {
      Vec<T> sum{};
      for (int64_t c = h * a.channels; c < (h + 1) * a.channels; c += L) {
        const int n = static_cast<int>(std::min<int64_t>(L, (h + 1) * a.channels - c));
        const Vec<T> z = load_n(left + c, n) + load_n(right + c, n);
        sum += load_n(att + c, n) * (z > 0 ? z : z * slope);
      }
      logit[h * step] = sum_lanes(sum);
    }
  }

  // From logits to coefficients under dropout; keeps the log-sum-exp and, of GAT, what `above` adds up to
  // before dropout.
  GB_INLINE void softmax(int64_t v, EdgeCoefficients<A>& row) const {
    for (int64_t h = 0; h < a.heads; ++h) softmax_head(v * a.heads + h, row, h * row.stride);
    if (a.threshold) drop(row);
  }

  GB_INLINE void softmax_head(int64_t at, EdgeCoefficients<A>& row, int64_t plane) const {
    constexpr int L = kLanes<A>;
    const A lowest = -std::numeric_limits<A>::infinity();
    A *value = row.value.data() + plane, *above = row.above.data() + plane;
    row.pad(value, lowest);
    Vec<A> tops = splat<Vec<A>>(lowest), totals{}, totals_above{};
    for (int64_t i = 0; i < row.count; i += L) tops = load(value + i) > tops ? load(value + i) : tops;
    const A top = row.count ? max_lanes(tops) : A{0};
    for (int64_t i = 0; i < row.count; i += L) {
      const Vec<A> power = exp_lanes(load(value + i) - top);
      store(value + i, power);
      totals += power;
    }
    const A total = sum_lanes(totals), inverse = total > 0 ? A{1} / total : total;  // NaN stays NaN
    static_cast<A*>(a.lse)[at] = total == 0 ? A{0} : top + std::log(total);
    for (int64_t i = 0; i < row.count; i += L) {
      const Vec<A> alpha = load(value + i) * inverse;
      store(value + i, alpha);
      if (!a.above) continue;
      const Vec<A> part = load(above + i) > 0 ? alpha : Vec<A>{};
      store(above + i, part);
      totals_above += part;
    }
    if (a.above) static_cast<A*>(a.share)[at] = sum_lanes(totals_above);
  }

  void drop(EdgeCoefficients<A>& row) const {
    for (int64_t i = 0; i < row.count; ++i) {
      const uint32_t key = dropout_row_key(a.seed, static_cast<uint64_t>(row.edges[i]));
      for (int64_t h = 0; h < a.heads; ++h) {
        const A factor = dropout_bits(key, static_cast<uint32_t>(h)) >= a.threshold ? keep_scale : A{0};
        row.value[h * row.stride + i] *= factor;
        if (a.above) row.above[h * row.stride + i] *= factor;
      }
    }
  }

  GB_INLINE void store_row(T* to, const A* from) const {
    constexpr int L = kLanes<T>;
    for (int64_t c = 0; c < width; c += L) {
      const int n = static_cast<int>(std::min<int64_t>(L, width - c));
      store_n(to + c, load_n(from + c, n), n);
    }
  }
};

// (num_dst, heads): <grad[v, h, :], rows[v, h, :]>
template <typename T, typename U>
Buffer<Acc<T>> grad_dot(const AttentionBackwardArgs& b, const U* rows) {
  const AttentionArgs& a = b.forward;
  const T* grad = static_cast<const T*>(b.grad);
  Buffer<Acc<T>> d(a.num_dst * a.heads);
  parallel_static(a.num_dst, 1024, [&](int64_t first, int64_t last) {
    for (int64_t v = first; v < last; ++v)
      for (int64_t h = 0; h < a.heads; ++h) {
        const T* g = grad + (b.narrow ? v : v * a.heads + h) * a.channels;
        d[v * a.heads + h] = dot(g, rows + (v * a.heads + h) * a.channels, a.channels);
      }
  });
  return d;
}
