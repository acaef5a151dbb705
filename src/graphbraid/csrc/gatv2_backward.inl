// GATv2's gradient. An edge's part of it needs the rows of both ends, so three walks over the edges' rows,
// and one number per edge and head twice. Stands inside attention.inl.

// to[i] += c * att[i] * leaky'(left[i] + right[i]) over n elements.
template <typename T>
GB_INLINE void add_leaky_grad(Acc<T>* to, Acc<T> c, const Acc<T>* att, const T* left, const T* right,
                              Acc<T> slope, int64_t n) {
  constexpr int L = kLanes<T>;
  for (int64_t i = 0; i < n; i += L) {
    const int m = static_cast<int>(std::min<int64_t>(L, n - i));
    const Vec<T> z = load_n(left + i, m) + load_n(right + i, m);
    const Vec<T> factor = c * load_n(att + i, m);
    store_n(to + i, load_n(to + i, m) + (z > 0 ? factor : factor * slope), m);
  }
}

// to[i] += c * leaky(left[i] + right[i]) over n elements.
template <typename T>
GB_INLINE void add_leaky(Acc<T>* to, Acc<T> c, const T* left, const T* right, Acc<T> slope, int64_t n) {
  constexpr int L = kLanes<T>;
  for (int64_t i = 0; i < n; i += L) {
    const int m = static_cast<int>(std::min<int64_t>(L, n - i));
    const Vec<T> z = load_n(left + i, m) + load_n(right + i, m);
    store_n(to + i, load_n(to + i, m) + c * (z > 0 ? z : z * slope), m);
  }
}

// Shares of rows for sums over all rows: fixed, so that adding them up in order gives the same bits with any
// threads.
constexpr int64_t kShares = 64;

// GATv2 by destination: each edge's coefficient and logit gradient, the gradients of dst rows and of att.
template <typename T, typename I>
void gatv2_backward_by_destination(const AttentionBackwardArgs& b, const Attention<T, I>& k,
                                   Acc<T>* edge_grad, Acc<T>* edge_alpha) {
  using A = Acc<T>;
  const AttentionArgs& a = b.forward;
  const Buffer<A> d = grad_dot<T>(b, static_cast<const T*>(a.out));
  const T* grad = static_cast<const T*>(b.grad);
  const A* lse = static_cast<const A*>(a.lse);
  std::vector<A> att_parts(static_cast<size_t>(kShares * k.width));
  parallel_dynamic(kShares, 1, [&](int64_t first_share, int64_t last_share) {
    std::vector<A> scratch(static_cast<size_t>(2 * a.heads + k.width));
    A *alpha = scratch.data(), *mask = alpha + a.heads, *sum = mask + a.heads;
    for (int64_t share = first_share; share < last_share; ++share) {
      const int64_t work = a.num_edges + a.num_dst * 4;
      const int64_t first = row_at_work(a.indptr, a.num_dst, 4, work * share / kShares);
      const int64_t last = share + 1 == kShares
                               ? a.num_dst
                               : row_at_work(a.indptr, a.num_dst, 4, work * (share + 1) / kShares);
      A* att_sum = att_parts.data() + share * k.width;
      for (int64_t v = first; v < last; ++v) {
        std::fill(sum, sum + k.width, A{0});
        k.in_edges(v, a.indptr[last], [&](int64_t u, int64_t e) GB_LAMBDA {
          k.gatv2_logits(u, v, alpha, 1);
          for (int64_t h = 0; h < a.heads; ++h) alpha[h] -= lse[v * a.heads + h];
          exp_array(alpha, a.heads);
          k.masks(e, mask);
          for (int64_t h = 0; h < a.heads; ++h) {
            const int64_t c = h * a.channels;
            const T* left = k.src + u * k.width + c;
            const T* right = k.dst + v * k.width + c;
            const A reached = dot(grad + v * k.width + c, left, a.channels);
            const A part = alpha[h] * (mask[h] * reached - d[v * a.heads + h]);
            edge_grad[e * a.heads + h] = part;
            edge_alpha[e * a.heads + h] = alpha[h] * mask[h];
            add_leaky_grad(sum + c, part, k.att + c, left, right, k.slope, a.channels);
            add_leaky(att_sum + c, part, left, right, k.slope, a.channels);
          }
        });
        k.store_row(static_cast<T*>(b.grad_dst) + v * k.width, sum);
      }
    }
  });
  A* grad_att = static_cast<A*>(b.grad_att);
  std::fill(grad_att, grad_att + k.width, A{0});
  for (int64_t share = 0; share < kShares; ++share)
    for (int64_t c = 0; c < k.width; ++c) grad_att[c] += att_parts[share * k.width + c];
}

template <typename T, typename I>
void gatv2_backward_typed(const AttentionBackwardArgs& b) {
  using A = Acc<T>;
  const AttentionArgs& a = b.forward;
  const Attention<T, I> k{a};
  Buffer<A> edge_grad((a.num_edges + a.num_loops) * a.heads),
      edge_alpha((a.num_edges + a.num_loops) * a.heads);
  gatv2_backward_by_destination(b, k, edge_grad.data(), edge_alpha.data());
  const I* targets = static_cast<const I*>(b.t_indices);
  const T* grad = static_cast<const T*>(b.grad);
  parallel_rows(b.t_indptr, a.num_src, 4 * k.lines, [&](int64_t first, int64_t last) {
    std::vector<A> sum(static_cast<size_t>(k.width));
    const int64_t prefetch_end = b.t_indptr[last];
    for (int64_t u = first; u < last; ++u) {
      std::fill(sum.begin(), sum.end(), A{0});
      const auto edge = [&](int64_t v, int64_t e) GB_LAMBDA {
        for (int64_t h = 0; h < a.heads; ++h) {
          const int64_t c = h * a.channels;
          axpy(sum.data() + c, edge_alpha[e * a.heads + h], grad + v * k.width + c, a.channels);
          add_leaky_grad(sum.data() + c, edge_grad[e * a.heads + h], k.att + c, k.src + u * k.width + c,
                         k.dst + v * k.width + c, k.slope, a.channels);
        }
      };
      for (int64_t t = b.t_indptr[u]; t < b.t_indptr[u + 1]; ++t) {
        if (t + k.distance < prefetch_end) {
          prefetch_row(grad + targets[t + k.distance] * k.width, k.row_bytes);
          prefetch_row(k.dst + targets[t + k.distance] * k.width, k.row_bytes);
        }
        const int64_t v = targets[t];
        if (!(a.num_loops && u == v)) edge(v, b.perm[t]);
      }
      if (u < a.num_loops) edge(u, a.num_edges + u);
      k.store_row(static_cast<T*>(b.grad_src) + u * k.width, sum.data());
    }
  });
}
