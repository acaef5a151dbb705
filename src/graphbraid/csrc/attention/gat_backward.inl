// GAT's gradient, in one walk over the rows of the transpose and without a number per edge:
//
//   grad        (num_dst, heads * channels),  or       grad_src         (num_src, heads * channels)
//               (num_dst, channels): `narrow`   --->   grad_src_logit   (num_src, heads)
//   src, src_logit, dst_logit and what the             grad_dst_logit   (num_dst, heads)
//   forward kept: out, lse, above, share               grad_edge_logit  (num_edges + num_loops, heads)
//
// the last where edges have numbers of their own. A logit's gradient passes the leaky ReLU, whose slope is 1
// where z > 0. Because a softmax's gradients add up to 0 over a row,
//
//   grad_dst_logit[v, h] = (1 - slope) * sum over v's edges with z > 0 of g[e, h]
//                        = (1 - slope) * (<grad[v, h, :], above[v, h, :]> - D[v, h] * share[v, h])
//
// with `above`, the part of out that came along those edges, and `share`, their part of the softmax, both
// kept by the forward. By source, with S and S_above the sums of mask * alpha * grad[v] over all out-edges
// and over those with z > 0,
//
//   grad_src[u, h, :] = S,  grad_src_logit[u, h] = slope * (<S, src[u, h, :]> - sum of alpha * D[v, h])
//                                        + (1 - slope) * (<S_above, src[u, h, :]> - sum above of alpha * D)
//
// Where edges add numbers of their own to z, these have the gradient g * leaky'(z), for which every edge's
// <grad[v, h, :], src[u, h, :]> is computed.
//
// The formulas stand in attention.inl. Bound by reading num_edges rows of grad.

namespace gb::GB_VARIANT {

#include "attention/attention_rows.inl"

// For each destination what its edges need of it, side by side: dst_logit, lse and D, `heads` numbers each.
template <typename A>
struct DestinationRecords {
  int64_t heads;
  int64_t stride = 3 * heads <= 16 ? 4 * heads : 3 * heads;  // few: none crosses a cache line
  Buffer<A> numbers;

  DestinationRecords(int64_t num_dst, int64_t number) : heads(number), numbers(num_dst * stride) {}
  GB_INLINE const A* operator[](int64_t v) const { return numbers.data() + v * stride; }
};

template <typename T>
DestinationRecords<Acc<T>> destination_records(const AttentionBackwardArgs& b) {
  using A = Acc<T>;
  const AttentionArgs& a = b.forward;
  const Buffer<A> d = grad_dot<T>(b, static_cast<const T*>(a.out));
  const Buffer<A> d_above = grad_dot<T>(b, static_cast<const A*>(a.above));
  DestinationRecords<A> records(a.num_dst, a.heads);
  const A* dst_logit = static_cast<const A*>(a.dst_logit);
  const A* lse = static_cast<const A*>(a.lse);
  const A* share = static_cast<const A*>(a.share);
  A* grad_dst_logit = static_cast<A*>(b.grad_dst_logit);
  const A rest = A{1} - static_cast<A>(a.slope);
  parallel_static(a.num_dst, 4096, [&](int64_t first, int64_t last) {
    for (int64_t v = first; v < last; ++v)
      for (int64_t h = 0; h < a.heads; ++h) {
        const int64_t i = v * a.heads + h;
        A* record = records.numbers.data() + v * records.stride + h;
        record[0] = dst_logit[i];
        record[a.heads] = lse[i];
        record[2 * a.heads] = d[i];
        grad_dst_logit[i] = rest * (d_above[i] - d[i] * share[i]);
      }
  });
  return records;
}

// Coefficients of u's out-edges, and into logit_grad what does not depend on rows.
template <typename A>
void out_edge_coefficients(const Coefficients<A>& k, int64_t u, const DestinationRecords<A>& records,
                           EdgeRow<A>& row, RowsOnTheWay& on_the_way, A* logit_grad) {
  A *value = row.value.data(), *above = row.above.data(), *d = row.extra.data();
  const int64_t record_bytes = 3 * k.a.heads * static_cast<int64_t>(sizeof(A));
  const A* left = k.src_logit + u * k.a.heads;
  fixed_heads<A>(k.a.heads, [&](auto heads) GB_LAMBDA {
    for (int64_t i = 0; i < row.count; ++i) {
      if (i + kEdgesAhead < row.known) prefetch_far(records[row.nodes[i + kEdgesAhead]], record_bytes);
      const A* record = records[row.nodes[i]];
      each_head<A>(heads, [&](int64_t h, auto n) GB_LAMBDA {
        put(above + i * heads + h, get(left + h, n) + get(record + h, n), n);
        put(value + i * heads + h, get(record + heads + h, n), n);
        put(d + i * heads + h, get(record + 2 * heads + h, n), n);
      });
    }
  });
  add_edge_logits(k, row);
  k.lanes.groups([&](int64_t first) GB_LAMBDA {
    Vec<A> total{};
    k.lanes.each(row.count * k.a.heads, first, [&](int64_t at, auto n) GB_LAMBDA {
      on_the_way.fetch((at + kLanes<A>) / k.a.heads + 1);
      const Vec<A> z = get(above + at, n);
      const Vec<A> alpha = exp_lanes(k.leaky(z) - get(value + at, n));
      const Vec<A> through = alpha * get(d + at, n);  // 0 behind the last
      const Vec<A> sloped = z > 0 ? through : through * k.slope;
      total -= sloped;
      put(d + at, sloped, n);  // what an edge's own number loses
      put(value + at, alpha, n);
      put(above + at, z > 0 ? alpha : Vec<A>{}, n);
    });
    k.lanes.keep(logit_grad, k.lanes.over_edges(total, Sum{}), first);
  });
  k.drop(row, true);
}

// The gradients of what u's out-edges add of their own.
template <typename T>
void store_edge_logit_gradients(const AttentionBackwardArgs& b, const Attention<T>& k, int64_t u,
                                const SummedRows<T>& grads, const EdgeRow<Acc<T>>& row) {
  using A = Acc<T>;
  const int64_t heads = k.a.heads, channels = k.a.channels;
  for (int64_t i = 0; i < row.count; ++i) {
    A* to = static_cast<A*>(b.grad_edge_logit) + row.places[i] * heads;
    for (int64_t h = 0; h < heads; ++h) {
      const A above = row.above[i * heads + h], below = row.value[i * heads + h] - above;
      const T* grad = grads[row.nodes[i]] + (b.narrow ? 0 : h * channels);
      const A reached = dot(grad, k.rows[u] + h * channels, channels);
      to[h] = reached * (above + k.slope * below) - row.extra[i * heads + h];
    }
  }
}

template <typename T>
void gat_backward_typed(const AttentionBackwardArgs& b) {
  using A = Acc<T>;
  const AttentionArgs& a = b.forward;
  const Attention<T> k{a};
  const DestinationRecords<A> records = destination_records<T>(b);
  const HeadSlots<T> slots(a.heads, a.channels, b.narrow);
  const SummedRows<T> grads{static_cast<const T*>(b.grad), b.narrow ? a.channels : k.width};
  const A rest = A{1} - k.slope;
  if (b.grad_edge_logit) {  // stored loops that implicit ones stand for are not walked
    A* to = static_cast<A*>(b.grad_edge_logit);
    std::fill(to, to + (a.num_edges + a.num_loops) * a.heads, A{0});
  }
  parallel_rows(b.t_indptr, a.num_src, 2 * k.lines + a.heads, [&](int64_t first, int64_t last) {
    EdgeRow<A> row;
    Buffer<A> scratch(k.width + a.heads);
    A *through = scratch.data(), *by_head = through + k.width;
    const int64_t prefetch_end = b.t_indptr[last];
    for (int64_t u = first; u < last; ++u) {
      k.collect(u, b.t_indptr[u], b.t_indptr[u + 1], true, prefetch_end, b.t_indices, b.perm, row);
      A* logit_grad = static_cast<A*>(b.grad_src_logit) + u * a.heads;
      RowsOnTheWay on_the_way(grads, row, a.heads);
      out_edge_coefficients<A>(k, u, records, row, on_the_way, logit_grad);
      const T* own = k.rows[u];
      T* grad_src = static_cast<T*>(b.grad_src) + u * k.width;
      add_rows<true>(slots, grads, grads.distance(), on_the_way.next, row,
                     [&](const HeadSlot<T>& s, const Vec<T>& sum, const Vec<T>& above) GB_LAMBDA {
                       store_n(through + s.to, sum * k.slope + above * rest, s.count);
                       store_n(grad_src + s.to, sum, s.count);
                     });
      sum_heads<T>(
          1, a.heads, a.channels,
          [&](int64_t) GB_LAMBDA {
            return [=](int64_t c, auto n) GB_LAMBDA { return get(through + c, n) * get(own + c, n); };
          },
          by_head);
      for (int64_t h = 0; h < a.heads; ++h) logit_grad[h] += by_head[h];
      if (b.grad_edge_logit) store_edge_logit_gradients(b, k, u, grads, row);
    }
  });
}

void gat_backward(const AttentionBackwardArgs& b) {
  switch (b.forward.dtype) {
    case DType::kFloat32:
      return gat_backward_typed<float>(b);
    case DType::kFloat64:
      return gat_backward_typed<double>(b);
    case DType::kBfloat16:
      return gat_backward_typed<Bf16>(b);
    case DType::kFloat16:
      return gat_backward_typed<F16>(b);
  }
}

}  // namespace gb::GB_VARIANT
