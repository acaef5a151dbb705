// Fused attention over in-neighbours, GAT and GATv2:
//
//   src   (num_src, heads * channels)              out    (num_dst, heads * channels)
//   GAT   src_logit (num_src, heads),              lse    (num_dst, heads)
//         dst_logit (num_dst, heads)       --->    GAT, for its backward, or null:
//   GATv2 dst (num_dst, heads * channels),         above  (num_dst, heads * channels)
//         att (heads, channels)                    share  (num_dst, heads)
//
// Edges may have numbers of their own: for GAT edge_logit (num_edges + num_loops, heads), for GATv2
// edge_features (num_edges, edge_channels) and their map (edge_channels, heads * channels). src, dst and out
// have the dtype of the rows, all else that of the sums. Arguments: attention.h.
//
// With e = u -> v, per head h:
//
//   GAT    z[e, h] = src_logit[u, h] + dst_logit[v, h] (+ edge_logit[e, h]),  logit = leaky(z)
//   GATv2  logit[e, h] = sum over c of att[h, c] * leaky(z[e, h, c]),
//          z[e] = src[u] + dst[v] (+ edge_features[e] * edge_weight)
//   out[v, h, :] = sum of mask[e, h] * alpha[e, h] * src[u, h, :],  alpha: softmax over v's edges
//
// Given att (2, heads * channels), GAT's logits are made here: <att[0, h, :], src[u, h, :]> of sources, and
// <att[1, h, :], src[v, h, :]> of destinations, which are the first sources.
//
// Only the log-sum-exp of each row and head is kept; backward computes the coefficients again. With
// D[v, h] = <grad[v, h, :], out[v, h, :]> the gradient of a logit is
//
//   g[e, h] = alpha * (mask * <grad[v, h, :], src[u, h, :]> - D[v, h])
//
// Sums run in order, by destination or over the transpose by source.
//
// Bound by reading num_edges rows: forward one, GAT backward one, GATv2 backward three.

namespace gb::GB_VARIANT {

#include "attention/attention_rows.inl"
#include "attention/attention_shared.inl"
#include "attention/gatv2_rows.inl"

// GAT given att: writes the logits.
template <typename T>
void make_logits(const Attention<T>& k) {
  using A = Acc<T>;
  constexpr int64_t together = 64;  // rows that stay in the cache for both products
  parallel_static(k.a.num_src, 1024, [&](int64_t first, int64_t last) {
    for (; first < last; first += together)
      for (const bool own : {false, true}) {
        const int64_t end = std::min({first + together, last, own ? k.a.num_dst : last});
        const A* vector = k.att + own * k.width;
        A* to = const_cast<A*>(own ? k.dst_logit : k.src_logit) + first * k.a.heads;
        sum_heads<T>(
            end - first, k.a.heads, k.a.channels,
            [&](int64_t i) GB_LAMBDA {
              const T* row = k.rows[first + i];
              return [=](int64_t c, auto n) GB_LAMBDA { return get(row + c, n) * get(vector + c, n); };
            },
            to);
      }
  });
}

// GAT: z of each edge into `above`, the rows' largest logits into `tops`.
template <typename A>
void gat_logits(const Coefficients<A>& k, EdgeRows<A>& rows, A* tops) {
  A* z = rows.above.data();
  // Copies, since any of these might change with a store.
  const A *src_logit = k.src_logit, *edge_logit = k.edge_logit, slope = k.slope;
  const int64_t *nodes = rows.nodes.data(), *places = rows.places.data(), known = rows.known;
  fixed_heads<A>(k.a.heads, [&](auto heads) GB_LAMBDA {
    each_head<A>(heads, [&](int64_t h, auto n) GB_LAMBDA {
      int64_t i = 0;
      for (int64_t r = 0; r < rows.rows; ++r) {
        const auto right = get(k.dst_logit + (rows.first + r) * heads + h, n);
        decltype(get(tops, n)) top{};
        top -= std::numeric_limits<A>::infinity();
        for (const int64_t end = rows.ends[r]; i < end; ++i) {
          if (i + kEdgesAhead < known) __builtin_prefetch(src_logit + nodes[i + kEdgesAhead] * heads);
          auto sum = get(src_logit + nodes[i] * heads + h, n) + right;
          if (edge_logit) sum += get(edge_logit + places[i] * heads + h, n);
          put(z + i * heads + h, sum, n);
          top = Greater{}(sum > 0 ? sum : sum * slope, top);
        }
        put(tops + r * heads + h, top, n);
      }
    });
  });
}

// GAT: z of each edge, in `above`, becomes exp(logit - top of the row) in `value`. Only the powers of edges
// with z > 0 stay in `above`.
template <typename A>
void gat_powers(const Coefficients<A>& k, EdgeRows<A>& rows, const A* tops) {
  A *value = rows.value.data(), *above = rows.above.data();
  const A slope = k.slope;
  const int64_t *of = rows.of.data(), first = rows.first, number = k.a.heads;
  const auto power = [&](int64_t at, const Vec<A>& top) GB_LAMBDA {
    const Vec<A> z = load(above + at), p = exp_lanes((z > 0 ? z : z * slope) - top);
    store(value + at, p);
    store(above + at, z > 0 ? p : Vec<A>{});
  };
  const auto top_of = [&](int64_t i) GB_LAMBDA { return tops + (of[i] - first) * number; };
  fixed_heads<A>(number, [&](auto heads) GB_LAMBDA {
    if constexpr (!std::is_same_v<decltype(heads), int64_t>) {
      constexpr int N = decltype(heads)::value, together = kLanes<A> / N;
      for (int64_t i = 0, count = rows.count; i < count; i += together)
        power(i * N, side_by_side<A, N, together>([&](int64_t j) GB_LAMBDA { return top_of(i + j); }));
    } else {
      for (int64_t i = 0; i < rows.count; ++i)
        each_head<A>(heads, [&](int64_t h, auto n)
                                GB_LAMBDA { put(value + i * heads + h, get(top_of(i) + h, n), n); });
      each_vector<A>(rows.count * heads, [&](int64_t at) GB_LAMBDA { power(at, load(value + at)); });
    }
  });
}

// Numbers per walked row and head.
template <typename A>
struct RowNumbers {
  Buffer<A> tops, scales, above;

  void reserve(int64_t size) {
    tops.reserve(size + kLanes<A>);
    scales.reserve(size + kLanes<A>);
    above.reserve(size + kLanes<A>);
  }
};

// The softmax's coefficients without the row's factor go to `value`, the factor to `scales`; GATv2's logits
// are in `value`. GAT's `above` gets the coefficients of edges with z > 0. Keeps the log-sum-exp, and above's
// sum before dropout.
template <bool IsGat, typename A>
void attention_softmax(const Coefficients<A>& k, EdgeRows<A>& rows, RowNumbers<A>& of_rows) {
  constexpr int L = kLanes<A>;
  const int64_t heads = k.a.heads, size = rows.rows * heads, first = rows.first * heads;
  const bool keeps_above = IsGat && k.a.above;
  of_rows.reserve(size);
  A *value = rows.value.data(), *above = rows.above.data();
  A *tops = of_rows.tops.data(), *scales = of_rows.scales.data(), *sums_above = of_rows.above.data();
  if constexpr (IsGat) {
    gat_logits(k, rows, tops);
    gat_powers(k, rows, tops);
  } else {
    softmax_powers(heads, rows, value, tops);
  }
  keeps_above ? add_edges<2>(heads, rows, {value, above}, {scales, sums_above})
              : add_edges<1>(heads, rows, {value}, {scales});
  for (int64_t at = 0; at < size; at += L) {
    const int n = static_cast<int>(std::min<int64_t>(L, size - at));
    const Vec<A> total = load_n(scales + at, n), scale = total == 0 ? Vec<A>{} : A{1} / total;
    store_n(static_cast<A*>(k.a.lse) + first + at, total == 0 ? Vec<A>{} : load(tops + at) + log_lanes(total),
            n);
    store(scales + at, scale);
    if (keeps_above) store_n(static_cast<A*>(k.a.share) + first + at, load(sums_above + at) * scale, n);
  }
  k.drop(rows, keeps_above);
}

template <typename T>
void attention_forward_typed(const AttentionArgs& a) {
  using A = Acc<T>;
  const Attention<T> k{a};
  const HeadSlots<T> slots(a.heads, a.channels);
  const RowGroups groups(a.indptr, k.rows.bytes());
  if (a.src_logit && a.att) make_logits(k);
  constexpr int64_t second_level_bytes = int64_t{1} << 18;  // fewer bytes of rows stay in that cache
  parallel_rows(a.indptr, a.num_dst, 2 * k.lines + a.heads, [&](int64_t first, int64_t last) {
    EdgeRows<A> rows;
    RowNumbers<A> of_rows;
    EdgeOwnRows<T> own(a);
    for (int64_t next; first < last; first = next) {
      next = groups.end(first, last);
      k.collect_all(first, next, a.indptr, a.indptr[last], a.indices, nullptr, rows);
      int64_t distance = k.rows.distance();
      if (a.dst_logit) {  // GAT; without sources its src_logit is null
        attention_softmax<true, A>(k, rows, of_rows);
      } else {
        gatv2_rows_logits(k, own, rows);
        attention_softmax<false, A>(k, rows, of_rows);
        if (rows.count * k.rows.bytes() < second_level_bytes) distance = 0;  // logits have just read them
      }
      T* out = static_cast<T*>(a.out) + first * k.width;
      A* above = static_cast<A*>(a.above) + (a.above ? first * k.width : 0);
      const auto finish = [&](int64_t r, const auto& at, const Vec<T>& sum, const Vec<T>& sum_above)
                              GB_LAMBDA {
                                const Vec<T> scale = at.numbers(of_rows.scales.data() + r * a.heads);
                                at.write(out + r * k.width, sum * scale);
                                at.prefetch(out + (r + kInOrderAhead) * k.width);
                                if (!a.above) return;
                                at.write(above + r * k.width, sum_above * scale);
                                at.prefetch(above + (r + kInOrderAhead) * k.width);
                              };
      const A *value = rows.value.data(), *value_above = rows.above.data();
      a.above ? add_rows<true>(slots, k.rows, distance, rows, value, value_above, finish)
              : add_rows<false>(slots, k.rows, distance, rows, value, value_above, finish);
    }
  });
}

void attention_forward(const AttentionArgs& a) {
  switch (a.dtype) {
    case DType::kFloat32:
      return attention_forward_typed<float>(a);
    case DType::kFloat64:
      return attention_forward_typed<double>(a);
    case DType::kBfloat16:
      return attention_forward_typed<Bf16>(a);
    case DType::kFloat16:
      return attention_forward_typed<F16>(a);
  }
}

}  // namespace gb::GB_VARIANT
