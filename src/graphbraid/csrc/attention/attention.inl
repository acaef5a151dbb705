// Fused attention over in-neighbours, GAT and GATv2:
//
//   src   (num_src, heads * channels)              out    (num_dst, heads * channels)
//   GAT   src_logit (num_src, heads),              lse    (num_dst, heads)
//         dst_logit (num_dst, heads)       --->    GAT, for its backward, or null:
//   GATv2 dst (num_dst, heads * channels),         above  (num_dst, heads * channels)
//         att (heads, channels)                    share  (num_dst, heads)
//
// and where edges have something of their own: for GAT edge_logit (num_edges + num_loops, heads), for GATv2
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

// GAT: z of each edge into `above`.
template <typename A>
void gat_sums(const Coefficients<A>& k, int64_t v, EdgeRow<A>& row) {
  const A* right = k.dst_logit + v * k.a.heads;
  A* z = row.above.data();
  fixed_heads<A>(k.a.heads, [&](auto heads) GB_LAMBDA {
    for (int64_t i = 0; i < row.count; ++i) {
      if (i + kEdgesAhead < row.known) __builtin_prefetch(k.src_logit + row.nodes[i + kEdgesAhead] * heads);
      const A* left = k.src_logit + row.nodes[i] * heads;
      each_head<A>(heads, [&](int64_t h, auto n)
                              GB_LAMBDA { put(z + i * heads + h, get(left + h, n) + get(right + h, n), n); });
    }
  });
  add_edge_logits(k, row);
}

// The row's coefficients into `value`, of GAT those with z > 0 into `above` too; keeps the log-sum-exp and
// what `above` adds up to before dropout.
template <bool IsGat, typename A>
void attention_softmax(const Coefficients<A>& k, int64_t v, EdgeRow<A>& row, RowsOnTheWay& on_the_way) {
  A *value = row.value.data(), *above = row.above.data();
  A* lse = static_cast<A*>(k.a.lse) + v * k.a.heads;
  A* share = static_cast<A*>(k.a.share) + (k.a.share ? v * k.a.heads : 0);
  const bool keeps_above = k.a.above;
  k.lanes.groups([&](int64_t first) GB_LAMBDA {
    Vec<A> total_above{};
    softmax_row(
        k.lanes, first, row.count * k.a.heads, value,
        [&](int64_t at, auto n)
            GB_LAMBDA { return IsGat ? k.leaky(get(above + at, n)) : get(value + at, n); },
        [&](int64_t at) GB_LAMBDA {
          if (IsGat) on_the_way.fetch((at + kLanes<A>) / k.a.heads + 1);
        },
        [&](const Vec<A>& top, const Vec<A>& total)
            GB_LAMBDA { k.lanes.keep(lse, total == 0 ? Vec<A>{} : top + log_lanes(total), first); },
        [&](int64_t at, auto n, const Vec<A>& alpha) GB_LAMBDA {
          put(value + at, alpha, n);
          if (!IsGat || !keeps_above) return;
          const Vec<A> part = get(above + at, n) > 0 ? alpha : Vec<A>{};
          put(above + at, part, n);
          total_above += part;
        });
    if (keeps_above) k.lanes.keep(share, k.lanes.over_edges(total_above, Sum{}), first);
  });
  k.drop(row, keeps_above);
}

template <typename T>
void attention_forward_typed(const AttentionArgs& a) {
  using A = Acc<T>;
  const Attention<T> k{a};
  const HeadSlots<T> slots(a.heads, a.channels, false);
  constexpr int64_t second_level_bytes = int64_t{1} << 18;  // of rows that stay there
  parallel_rows(a.indptr, a.num_dst, 2 * k.lines + a.heads, [&](int64_t first, int64_t last) {
    EdgeRow<A> row;
    EdgeOwnRows<T> own(a);
    const int64_t prefetch_end = a.indptr[last];
    for (int64_t v = first; v < last; ++v) {
      k.collect(v, a.indptr[v], a.indptr[v + 1], true, prefetch_end, a.indices, nullptr, row);
      int64_t distance = k.rows.distance();
      RowsOnTheWay on_the_way(k.rows, row, a.heads);
      if (a.src_logit) {
        gat_sums<A>(k, v, row);
        attention_softmax<true, A>(k, v, row, on_the_way);
      } else {
        gatv2_row_logits(k, own, k.own[v], row);
        attention_softmax<false, A>(k, v, row, on_the_way);
        if (row.count * k.rows.bytes() < second_level_bytes) distance = 0;  // read for the logits
      }
      T* out = static_cast<T*>(a.out) + v * k.width;
      A* above = static_cast<A*>(a.above) + (a.above ? v * k.width : 0);
      const auto finish = [&](const HeadSlot<T>& s, const Vec<T>& sum, const Vec<T>& sum_above) GB_LAMBDA {
        store_n(out + s.to, sum, s.count);
        if (a.above) store_n(above + s.to, sum_above, s.count);
      };
      a.above ? add_rows<true>(slots, k.rows, distance, on_the_way.next, row, finish)
              : add_rows<false>(slots, k.rows, distance, on_the_way.next, row, finish);
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
