// GAT's gradient, in one walk over the rows of the transpose and without a number per edge. A logit's
// gradient passes the leaky ReLU, whose slope is 1 where z > 0. Because a softmax's gradients add up to 0
// over a row,
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
// Stands inside attention.inl.

// What an edge needs of its destination, side by side: dst_logit, lse and D, heads numbers each.
template <typename T>
Buffer<Acc<T>> destination_records(const AttentionBackwardArgs& b) {
  using A = Acc<T>;
  const AttentionArgs& a = b.forward;
  const Buffer<A> d = grad_dot<T>(b, static_cast<const T*>(a.out));
  const Buffer<A> d_above = grad_dot<T>(b, static_cast<const A*>(a.above));
  Buffer<A> records(a.num_dst * 3 * a.heads);
  const A* dst_logit = static_cast<const A*>(a.dst_logit);
  const A* lse = static_cast<const A*>(a.lse);
  const A* share = static_cast<const A*>(a.share);
  A* grad_dst_logit = static_cast<A*>(b.grad_dst_logit);
  const A rest = A{1} - static_cast<A>(a.slope);
  parallel_static(a.num_dst, 4096, [&](int64_t first, int64_t last) {
    for (int64_t v = first; v < last; ++v)
      for (int64_t h = 0; h < a.heads; ++h) {
        const int64_t i = v * a.heads + h;
        A* record = records.data() + v * 3 * a.heads + h;
        record[0] = dst_logit[i];
        record[a.heads] = lse[i];
        record[2 * a.heads] = d[i];
        grad_dst_logit[i] = rest * (d_above[i] - d[i] * share[i]);
      }
  });
  return records;
}

// Coefficients of u's out-edges, and into logit_grad what does not depend on rows.
template <typename T, typename I>
GB_INLINE void out_edge_coefficients(const Attention<T, I>& k, int64_t u, const Acc<T>* records,
                                     EdgeCoefficients<Acc<T>>& row, Acc<T>* logit_grad) {
  using A = Acc<T>;
  constexpr int L = kLanes<A>;
  const int64_t heads = k.a.heads;
  const int64_t record_bytes = 3 * heads * static_cast<int64_t>(sizeof(A));
  const A* left = k.src_logit + u * heads;
  for (int64_t i = 0; i < row.count; ++i) {
    if (i + kEdgesAhead < row.known)
      prefetch_row(records + row.nodes[i + kEdgesAhead] * 3 * heads, record_bytes);
    const A* record = records + row.nodes[i] * 3 * heads;
    for (int64_t h = 0; h < heads; ++h) {
      row.above[h * row.stride + i] = left[h] + record[h];
      row.value[h * row.stride + i] = record[heads + h];
      row.extra[h * row.stride + i] = record[2 * heads + h];
    }
  }
  for (int64_t h = 0; h < heads; ++h) {
    A *value = row.value.data() + h * row.stride, *above = row.above.data() + h * row.stride;
    A* d = row.extra.data() + h * row.stride;
    row.pad(above, A{0});
    row.pad(value, std::numeric_limits<A>::infinity());  // a coefficient of 0
    row.pad(d, A{0});
    Vec<A> total{};
    for (int64_t i = 0; i < row.count; i += L) {
      const Vec<A> z = load(above + i);
      const Vec<A> alpha = exp_lanes(k.leaky_lanes(z) - load(value + i));
      const Vec<A> through = alpha * load(d + i);
      total -= z > 0 ? through : through * k.slope;
      store(value + i, alpha);
      store(above + i, z > 0 ? alpha : Vec<A>{});
    }
    logit_grad[h] = sum_lanes(total);
  }
  if (k.a.threshold) k.drop(row);
}

template <typename T, typename I>
void gat_backward_typed(const AttentionBackwardArgs& b) {
  using A = Acc<T>;
  const AttentionArgs& a = b.forward;
  const Attention<T, I> k{a};
  const Buffer<A> records = destination_records<T>(b);
  const std::vector<HeadSlot> slots = head_slots<T>(a.heads, a.channels, b.narrow);
  const SummedRows<T> grads{static_cast<const T*>(b.grad), b.narrow ? a.channels : k.width};
  const A rest = A{1} - k.slope;
  parallel_rows(b.t_indptr, a.num_src, 2 * k.lines + a.heads, [&](int64_t first, int64_t last) {
    EdgeCoefficients<A> row;
    const int64_t prefetch_end = b.t_indptr[last];
    for (int64_t u = first; u < last; ++u) {
      k.collect(u, b.t_indptr[u], b.t_indptr[u + 1], prefetch_end, static_cast<const I*>(b.t_indices),
                a.threshold ? b.perm : nullptr, row);
      A* logit_grad = static_cast<A*>(b.grad_src_logit) + u * a.heads;
      out_edge_coefficients(k, u, records.data(), row, logit_grad);
      const T* own = k.src + u * k.width;
      T* grad_src = static_cast<T*>(b.grad_src) + u * k.width;
      const auto finish = [&](const HeadSlot& s, const Vec<T>& sum, const Vec<T>& above) GB_LAMBDA {
        const Vec<T> through = (sum * k.slope + above * rest) * load_n(own + s.to, s.count);
        logit_grad[s.head] += sum_lanes(through);
        store_n(grad_src + s.to, sum, s.count);
      };
      add_rows<T, true>(slots, a.channels, grads, grads.distance(), row, finish);
    }
  });
}
