// GATv2's gradient, without a number per edge:
//
//   grad  (num_dst, heads * channels)          grad_src          (num_src, heads * channels)
//   src, dst, att and what the forward  --->   grad_dst          (num_dst, heads * channels)
//   kept: out, lse                             grad_att          (heads, channels)
//                                              grad_edge_weight  (edge_channels, heads * channels)
//
// grad_edge_weight is written if edges have features and it is asked for. Two walks, by destination and by
// source, each compute the coefficients again. With z = src[u] + dst[v] and leaky' the slope there,
//
//   grad_dst[v, h, :] = att[h, :] * sum over v's edges of g[e, h] * leaky'(z[h, :])
//   grad_att[h, :]    = sum over all edges of g[e, h] * leaky(z[h, :])
//   grad_src[u, h, :] = sum over u's out-edges of mask * alpha * grad[v, h, :]
//                       + att[h, :] * sum of g[e, h] * leaky'(z[h, :])
//
// If edges have features, z also has their mapped row, and the map's gradient is computed by destination:
//
//   grad_edge_weight[d, h, :] = att[h, :] * sum over all edges of features[e, d] * g[e, h] * leaky'(z[h, :])
//
// A row's edges are taken some at a time, so that their rows stay in the cache from the logits to the sums.
// The formulas stand in attention.inl. Bound by reading num_edges rows of src, dst and grad each.

namespace gb::GB_VARIANT {

#include "attention/attention_rows.inl"
#include "attention/gatv2_rows.inl"

// Calls body(begin, end, is_last) for the edges of a row, some at a time; once if there are none.
template <typename Body>
GB_INLINE void edge_blocks(int64_t begin, int64_t end, int64_t row_bytes, const Body& body) {
  const int64_t most = std::clamp<int64_t>((int64_t{1} << 16) / row_bytes, 32, 512);
  bool is_last = false;
  for (; !is_last; begin += most) {  // one call: the body is inlined once
    is_last = end - begin <= most;
    body(begin, is_last ? end : begin + most, is_last);
  }
}

// `value` holds logits, and `extra` holds <grad, src>. They become the coefficients under dropout and the
// logits' gradients. lse(at, n, first) and d(at, n, first) are those of the numbers from `at` on.
template <typename A, typename Lse, typename D>
GB_INLINE void logit_gradients(const Coefficients<A>& k, EdgeRows<A>& row, const Lse& lse, const D& d) {
  A *value = row.value.data(), *extra = row.extra.data();
  const bool drops = k.a.threshold > 0;
  if (drops) k.draw_masks(row);
  k.lanes.groups([&](int64_t first) GB_LAMBDA {
    k.lanes.each(row.count * k.a.heads, first, [&](int64_t at, auto n) GB_LAMBDA {
      const Vec<A> alpha = exp_lanes(get(value + at, n) - lse(at, n, first));
      const Vec<A> mask = drops ? get(row.mask.data() + at, n) : splat<Vec<A>>(A{1});
      put(value + at, alpha * mask, n);
      put(extra + at, alpha * (mask * get(extra + at, n) - d(at, n, first)), n);
    });
  });
}

// The same for edges to one destination; lse and d: (heads,).
template <typename A>
void logit_gradients_in(const Coefficients<A>& k, const A* lse, const A* d, EdgeRows<A>& row) {
  logit_gradients(
      k, row, [&](int64_t, auto, int64_t first) GB_LAMBDA { return k.lanes.spread(lse, first); },
      [&](int64_t, auto, int64_t first) GB_LAMBDA { return k.lanes.spread(d, first); });
}

// The same for edges to the destinations row.nodes; lse and d: (num_dst, heads).
template <typename A>
void logit_gradients_out(const Coefficients<A>& k, const A* lse, const A* d, EdgeRows<A>& row) {
  A *row_lse = row.above.data(), *row_d = row.other.data();
  fixed_heads<A>(k.a.heads, [&](auto heads) GB_LAMBDA {
    for (int64_t i = 0; i < row.count; ++i)
      each_head<A>(heads, [&](int64_t h, auto n) GB_LAMBDA {
        put(row_lse + i * heads + h, get(lse + row.nodes[i] * heads + h, n), n);
        put(row_d + i * heads + h, get(d + row.nodes[i] * heads + h, n), n);
      });
  });
  logit_gradients(
      k, row, [&](int64_t at, auto n, int64_t) GB_LAMBDA { return get(row_lse + at, n); },
      [&](int64_t at, auto n, int64_t) GB_LAMBDA { return get(row_d + at, n); });
}

// Writes the logits of some edges of a row. Returns their z if edges have features, else null.
template <typename T>
Acc<T>* block_logits(const Attention<T>& k, EdgeOwnRows<T>& own_rows, const SummedRows<T>& x, const T* own,
                     EdgeRows<Acc<T>>& row) {
  if (!k.a.edge_weight) {
    gatv2_logits<false>(k, x, own_rows.wide(own, k.width), 0, row.count, row);
    return nullptr;
  }
  Acc<T>* z = own_rows.make(own, row, 0, row.count);
  gatv2_logits<true>(k, x, z, 0, row.count, row);
  for (int64_t i = 0; i < row.count; ++i) axpy<T>(z + i * k.width, Acc<T>{1}, x[row.nodes[i]], k.width);
  return z;
}

// Calls finish(columns, sum of g * leaky'(z), sum of g * leaky(z)) for all columns, with z = x[node] + own
// and g in `extra`.
template <typename T, typename Finish>
GB_INLINE void add_leaky(const Attention<T>& k, const HeadSlots<T>& slots, const SummedRows<T>& x,
                         const Acc<T>* own, const EdgeRows<Acc<T>>& row, const Finish& finish) {
  constexpr int most = 4;  // more do not fit the registers
  slots.template tiles<most>([&](auto mixed, auto full, auto nv, const HeadSlot<T>* tile, bool) GB_LAMBDA {
    constexpr int NV = decltype(nv)::value;
    using At = Columns<T, mixed, full>;
    Vec<T> steep[NV] = {}, whole[NV] = {}, right[NV];
    HeadSlot<T> slot[NV];
    unroll<NV>([&](auto s) GB_LAMBDA {
      slot[s] = tile[s];
      right[s] = At{slot, s}.read(own);
    });
    for (int64_t i = 0; i < row.count; ++i) {
      const T* from = x[row.nodes[i]];
      const Acc<T>* g = row.extra.data() + i * slots.heads;
      unroll<NV>([&](auto s) GB_LAMBDA {
        const At at{slot, s};
        const Vec<T> z = at.read(from) + right[s], c = at.numbers(g), sloped = c * k.slope;
        steep[s] += z > 0 ? c : sloped;
        whole[s] += z * (z > 0 ? c : sloped);
      });
    }
    unroll<NV>([&](auto s) GB_LAMBDA { finish(At{slot, s}, steep[s], whole[s]); });
  });
}

// The same for edges whose z is stored. steep[:] += the sum of g * leaky'(z), and whole[:] += the sum of g *
// leaky(z) unless it is null. `keeps`: z becomes g * leaky'(z).
template <typename A>
void add_leaky_of_sums(const Coefficients<A>& k, const HeadSlots<A>& slots, A* z, bool keeps,
                       const EdgeRows<A>& row, A* steep, A* whole) {
  const int64_t width = k.a.heads * k.a.channels;
  constexpr int most = 2;  // code size: the edges' map takes longer
  slots.template tiles<most>([&](auto mixed, auto full, auto nv, const HeadSlot<A>* tile, bool) GB_LAMBDA {
    constexpr int NV = decltype(nv)::value;
    using At = Columns<A, mixed, full>;
    Vec<A> sum[NV] = {}, sum_whole[NV] = {};
    HeadSlot<A> slot[NV];
    unroll<NV>([&](auto s) GB_LAMBDA { slot[s] = tile[s]; });
    for (int64_t i = 0; i < row.count; ++i) {
      const A* g = row.extra.data() + i * slots.heads;
      unroll<NV>([&](auto s) GB_LAMBDA {
        const At at{slot, s};
        const Vec<A> own = at.read(z + i * width), c = at.numbers(g), term = own > 0 ? c : c * k.slope;
        sum[s] += term;
        sum_whole[s] += own * term;
        if (keeps) at.write(z + i * width, term);
      });
    }
    unroll<NV>([&](auto s) GB_LAMBDA {
      const At at{slot, s};
      at.add(steep, sum[s]);
      if (whole) at.add(whole, sum_whole[s]);
    });
  });
}

// to = sum + att * steep
template <typename T>
GB_INLINE void store_through(const Attention<T>& k, const Acc<T>* sum, const Acc<T>* steep, T* to) {
  constexpr int L = kLanes<T>;
  for (int64_t c = 0; c < k.width; c += L) {
    const int n = static_cast<int>(std::min<int64_t>(L, k.width - c));
    store_n(to + c, load_n(sum + c, n) + load_n(k.att + c, n) * load_n(steep + c, n), n);
  }
}

// The gradients of dst rows, of att and of the edges' map.
template <typename T>
void gatv2_backward_by_destination(const AttentionBackwardArgs& b, const Attention<T>& k,
                                   const HeadSlots<T>& slots, const Acc<T>* d) {
  using A = Acc<T>;
  const AttentionArgs& a = b.forward;
  const SummedRows<T> grads{static_cast<const T*>(b.grad), k.width};
  const A* lse = static_cast<const A*>(a.lse);
  const HeadSlots<A> sum_slots(a.heads, a.channels);
  const int64_t map_size = b.grad_edge_weight ? a.edge_channels * k.width : 0;
  const int64_t shares = num_shares(a.indptr, a.num_dst);
  std::vector<A> att_parts(static_cast<size_t>(shares * k.width));
  std::vector<A> map_parts(static_cast<size_t>(shares * map_size));
  struct Own {
    EdgeRows<A> row;
    EdgeOwnRows<T> own_rows;
    std::vector<A> sums;  // the first half stays 0
  };
  const auto make = [&] {
    return Own{{}, EdgeOwnRows<T>(a), std::vector<A>(static_cast<size_t>(2 * k.width))};
  };
  const auto walk = [&](int64_t share, int64_t first, int64_t last, Own& own) {
    EdgeRows<A>& row = own.row;
    EdgeOwnRows<T>& own_rows = own.own_rows;
    A *none = own.sums.data(), *sum = none + k.width;
    A *att_sum = att_parts.data() + share * k.width, *map_sum = map_parts.data() + share * map_size;
    for (int64_t v = first; v < last; ++v) {
      std::fill(sum, sum + k.width, A{0});
      edge_blocks(
          a.indptr[v], a.indptr[v + 1], k.rows.bytes(), [&](int64_t begin, int64_t end, bool is_last) {
            k.collect(v, v + 1, a.indptr, begin, end, is_last, a.indptr[last], a.indices, nullptr, row);
            A* z = block_logits(k, own_rows, k.rows, k.own[v], row);
            edge_dots<T>(
                a.heads, a.channels, k.rows, 0, row, [&](int64_t) GB_LAMBDA { return grads[v]; },
                row.extra.data());
            logit_gradients_in<A>(k, lse + v * a.heads, d + v * a.heads, row);
            if (z)
              add_leaky_of_sums<A>(k, sum_slots, z, map_size > 0, row, sum, att_sum);
            else
              add_leaky(k, slots, k.rows, own_rows.wide(k.own[v], k.width), row,
                        [&](const auto& at, const Vec<T>& steep, const Vec<T>& whole) GB_LAMBDA {
                          at.add(sum, steep);
                          at.add(att_sum, whole);
                        });
            if (map_size) own_rows.add_gradients(row.count, false, map_sum);
          });
      store_through(k, none, sum, static_cast<T*>(b.grad_dst) + v * k.width);
    }
    if (map_size) own_rows.add_gradients(0, true, map_sum);
  };
  parallel_shares(a.indptr, a.num_dst, 4 * k.lines, make, walk);
  sum_shares<A>(att_parts, nullptr, 1, k.width, static_cast<A*>(b.grad_att));
  if (map_size)
    sum_shares<A>(map_parts, k.att, a.edge_channels, k.width, static_cast<A*>(b.grad_edge_weight));
}

// The gradient of src rows.
template <typename T>
void gatv2_backward_by_source(const AttentionBackwardArgs& b, const Attention<T>& k,
                              const HeadSlots<T>& slots, const Acc<T>* d) {
  using A = Acc<T>;
  const AttentionArgs& a = b.forward;
  const SummedRows<T> grads{static_cast<const T*>(b.grad), k.width};
  const A* lse = static_cast<const A*>(a.lse);
  const HeadSlots<A> sum_slots(a.heads, a.channels);
  parallel_rows(b.t_indptr, a.num_src, 4 * k.lines, [&](int64_t first, int64_t last) {
    EdgeRows<A> row;
    EdgeOwnRows<T> own_rows(a);
    std::vector<A> sums(static_cast<size_t>(2 * k.width));
    A *sum = sums.data(), *steep_sum = sum + k.width;
    for (int64_t u = first; u < last; ++u) {
      std::fill(sums.begin(), sums.end(), A{0});
      const T* own_row = k.rows[u];
      edge_blocks(b.t_indptr[u], b.t_indptr[u + 1], 2 * k.rows.bytes(),
                  [&](int64_t begin, int64_t end, bool is_last) {
                    k.collect(u, u + 1, b.t_indptr, begin, end, is_last, b.t_indptr[last], b.t_indices,
                              b.perm, row);
                    A* z = block_logits(k, own_rows, k.own, own_row, row);
                    edge_dots<T>(
                        a.heads, a.channels, grads, grads.distance(), row,
                        [&](int64_t) GB_LAMBDA { return own_row; }, row.extra.data());
                    logit_gradients_out<A>(k, lse, d, row);
                    add_rows<false>(slots, grads, 0, row, row.value.data(), row.above.data(),
                                    [&](int64_t, const auto& at, const Vec<T>& part, const Vec<T>&)
                                        GB_LAMBDA { at.add(sum, part); });
                    if (z)
                      add_leaky_of_sums<A>(k, sum_slots, z, false, row, steep_sum, nullptr);
                    else
                      add_leaky(k, slots, k.own, own_rows.wide(own_row, k.width), row,
                                [&](const auto& at, const Vec<T>& steep, const Vec<T>&)
                                    GB_LAMBDA { at.add(steep_sum, steep); });
                  });
      store_through(k, sum, steep_sum, static_cast<T*>(b.grad_src) + u * k.width);
    }
  });
}

template <typename T>
void gatv2_backward_typed(const AttentionBackwardArgs& b) {
  const Attention<T> k{b.forward};
  const HeadSlots<T> slots(b.forward.heads, b.forward.channels);
  Buffer<Acc<T>> d(b.forward.num_dst * b.forward.heads);
  parallel_static(b.forward.num_dst, 1024, [&](int64_t first, int64_t last) {
    grad_dot<T>(b, static_cast<const T*>(b.forward.out), first, last, d.data() + first * b.forward.heads);
  });
  gatv2_backward_by_destination(b, k, slots, d.data());
  gatv2_backward_by_source(b, k, slots, d.data());
}

void gatv2_backward(const AttentionBackwardArgs& b) {
  switch (b.forward.dtype) {
    case DType::kFloat32:
      return gatv2_backward_typed<float>(b);
    case DType::kFloat64:
      return gatv2_backward_typed<double>(b);
    case DType::kBfloat16:
      return gatv2_backward_typed<Bf16>(b);
    case DType::kFloat16:
      return gatv2_backward_typed<F16>(b);
  }
}

}  // namespace gb::GB_VARIANT
