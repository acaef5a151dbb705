// Fused attention over in-neighbours, GAT and GATv2. With e = u -> v, per head h:
//
//   GAT    logit[e, h] = leaky(src_logit[u, h] + dst_logit[v, h])
//   GATv2  logit[e, h] = sum over c of att[h, c] * leaky(src[u, h, c] + dst[v, h, c])
//   out[v, h, :] = sum of mask[e, h] * softmax over v's edges(logit)[e, h] * src[u, h, :]
//
// Forward walks each row once (GATv2 with a running maximum) and keeps only the log-sum-exp of each row and
// head. Backward computes the coefficients again from it. With D[v, h] = <grad[v, h, :], out[v, h, :]> the
// softmax's gradient is
//
//   g[e, h] = alpha * (mask * <grad[v, h, :], src[u, h, :]> - D[v, h])
//
// Largest temporary: (num_edges, heads). Sums run in order, by destination or over the transpose by source.
//
// Bound by reading num_edges rows: forward one, GAT backward one, GATv2 backward three.

namespace gb::GB_VARIANT {

#include "exp.inl"

template <typename T, typename I>
struct Attention {
  using A = Acc<T>;
  const AttentionArgs& a;
  const int64_t width = a.heads * a.channels;
  const int64_t row_bytes = width * static_cast<int64_t>(sizeof(T));
  const int64_t lines = (row_bytes + 63) / 64;
  const int64_t distance = std::clamp<int64_t>(48 / lines, 2, 24);
  const T* src = static_cast<const T*>(a.src);
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
      if (e + distance < prefetch_end) prefetch_row(src + indices[e + distance] * width, row_bytes);
      const int64_t u = indices[e];
      if (a.num_loops && u == v) continue;
      f(u, e);
    }
    if (v < a.num_loops) f(v, a.num_edges + v);
  }

  GB_INLINE A leaky(A z) const { return z > 0 ? z : z * slope; }

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

  GB_INLINE void gat_logits(int64_t u, int64_t v, A* logit) const {
    for (int64_t h = 0; h < a.heads; ++h)
      logit[h] = leaky(src_logit[u * a.heads + h] + dst_logit[v * a.heads + h]);
  }

  GB_INLINE void gatv2_logits(int64_t u, int64_t v, A* logit) const {
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
      logit[h] = sum_lanes(sum);
    }
  }

  GB_INLINE void logits(int64_t u, int64_t v, A* logit) const {
    a.src_logit ? gat_logits(u, v, logit) : gatv2_logits(u, v, logit);
  }

  // Rows [first, last) of the forward. scratch: 5 * heads + width.
  void forward_rows(int64_t first, int64_t last, A* scratch) const {
    A *logit = scratch, *top = logit + a.heads, *total = top + a.heads, *mask = total + a.heads,
      *shrink = mask + a.heads, *sum = shrink + a.heads;
    T* out = static_cast<T*>(a.out);
    A* lse = static_cast<A*>(a.lse);
    const int64_t prefetch_end = a.indptr[last];
    for (int64_t v = first; v < last; ++v) {
      std::fill(top, top + a.heads, -std::numeric_limits<A>::infinity());
      std::fill(total, total + a.heads, A{0});
      std::fill(sum, sum + width, A{0});
      in_edges(v, prefetch_end, [&](int64_t u, int64_t e) GB_LAMBDA {
        logits(u, v, logit);
        bool grew = false;
        for (int64_t h = 0; h < a.heads; ++h) grew |= logit[h] > top[h];
        if (grew) raise_maximum(logit, top, total, shrink, sum);
        for (int64_t h = 0; h < a.heads; ++h) logit[h] -= top[h];
        exp_array(logit, a.heads);
        masks(e, mask);
        for (int64_t h = 0; h < a.heads; ++h) {
          total[h] += logit[h];
          axpy(sum + h * a.channels, logit[h] * mask[h], src + u * width + h * a.channels, a.channels);
        }
      });
      for (int64_t h = 0; h < a.heads; ++h) {
        const A inverse =
            total[h] > 0 ? A{1} / total[h] : total[h];  // a row without edges stays 0; NaN stays NaN
        lse[v * a.heads + h] = total[h] == 0 ? A{0} : top[h] + std::log(total[h]);
        for (int64_t c = h * a.channels; c < (h + 1) * a.channels; ++c) sum[c] *= inverse;
      }
      store_row(out + v * width, sum);
    }
  }

  // A larger logit has come: scales what has been summed to the new maximum.
  void raise_maximum(const A* logit, A* top, A* total, A* shrink, A* sum) const {
    for (int64_t h = 0; h < a.heads; ++h) {
      const A raised = std::max(top[h], logit[h]);
      shrink[h] = top[h] - raised;
      top[h] = raised;
    }
    exp_array(shrink, a.heads);
    for (int64_t h = 0; h < a.heads; ++h) {
      if (shrink[h] == A{1}) continue;
      total[h] *= shrink[h];
      for (int64_t c = h * a.channels; c < (h + 1) * a.channels; ++c) sum[c] *= shrink[h];
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

template <typename T, typename I>
void attention_forward_typed(const AttentionArgs& a) {
  const Attention<T, I> k{a};
  parallel_rows(a.indptr, a.num_dst, 2 * k.lines + a.heads, [&](int64_t first, int64_t last) {
    std::vector<Acc<T>> scratch(static_cast<size_t>(5 * a.heads + k.width));
    k.forward_rows(first, last, scratch.data());
  });
}

// D[v, h] = <grad[v, h, :], out[v, h, :]>
template <typename T>
std::vector<Acc<T>> grad_dot_out(const AttentionBackwardArgs& b) {
  const AttentionArgs& a = b.forward;
  std::vector<Acc<T>> d(static_cast<size_t>(a.num_dst * a.heads));
  parallel_static(a.num_dst * a.heads, 1024, [&](int64_t first, int64_t last) {
    const T* grad = static_cast<const T*>(b.grad);
    const T* out = static_cast<const T*>(a.out);
    for (int64_t i = first; i < last; ++i)
      d[i] = dot(grad + i * a.channels, out + i * a.channels, a.channels);
  });
  return d;
}

// GAT: one walk by source gives the gradient of rows and source logits and each edge's part of the
// destinations' logits.
template <typename T, typename I>
void gat_backward_typed(const AttentionBackwardArgs& b) {
  using A = Acc<T>;
  const AttentionArgs& a = b.forward;
  const Attention<T, I> k{a};
  const std::vector<A> d = grad_dot_out<T>(b);
  std::vector<A> edge_grad(static_cast<size_t>((a.num_edges + a.num_loops) * a.heads));
  const I* targets = static_cast<const I*>(b.t_indices);
  const T* grad = static_cast<const T*>(b.grad);
  const A* lse = static_cast<const A*>(a.lse);
  parallel_rows(b.t_indptr, a.num_src, 2 * k.lines + a.heads, [&](int64_t first, int64_t last) {
    std::vector<A> scratch(static_cast<size_t>(3 * a.heads + k.width));
    A *alpha = scratch.data(), *mask = alpha + a.heads, *logit_sum = mask + a.heads,
      *sum = logit_sum + a.heads;
    const int64_t prefetch_end = b.t_indptr[last];
    for (int64_t u = first; u < last; ++u) {
      std::fill(logit_sum, logit_sum + a.heads, A{0});
      std::fill(sum, sum + k.width, A{0});
      const auto edge = [&](int64_t v, int64_t e) GB_LAMBDA {
        k.gat_logits(u, v, alpha);
        for (int64_t h = 0; h < a.heads; ++h) alpha[h] -= lse[v * a.heads + h];
        exp_array(alpha, a.heads);
        k.masks(e, mask);
        for (int64_t h = 0; h < a.heads; ++h) {
          const T* g = grad + v * k.width + h * a.channels;
          const A reached = dot(g, k.src + u * k.width + h * a.channels, a.channels);
          A part = alpha[h] * (mask[h] * reached - d[v * a.heads + h]);
          if (k.src_logit[u * a.heads + h] + k.dst_logit[v * a.heads + h] <= 0) part *= k.slope;
          edge_grad[e * a.heads + h] = part;
          logit_sum[h] += part;
          axpy(sum + h * a.channels, alpha[h] * mask[h], g, a.channels);
        }
      };
      for (int64_t t = b.t_indptr[u]; t < b.t_indptr[u + 1]; ++t) {
        if (t + k.distance < prefetch_end)
          prefetch_row(grad + targets[t + k.distance] * k.width, k.row_bytes);
        const int64_t v = targets[t];
        if (!(a.num_loops && u == v)) edge(v, b.perm[t]);
      }
      if (u < a.num_loops) edge(u, a.num_edges + u);
      k.store_row(static_cast<T*>(b.grad_src) + u * k.width, sum);
      std::copy(logit_sum, logit_sum + a.heads, static_cast<A*>(b.grad_src_logit) + u * a.heads);
    }
  });
  parallel_rows(a.indptr, a.num_dst, 1, [&](int64_t first, int64_t last) {
    for (int64_t v = first; v < last; ++v) {
      A* sum = static_cast<A*>(b.grad_dst_logit) + v * a.heads;
      std::fill(sum, sum + a.heads, A{0});
      k.in_edges(v, 0, [&](int64_t, int64_t e) GB_LAMBDA {
        for (int64_t h = 0; h < a.heads; ++h) sum[h] += edge_grad[e * a.heads + h];
      });
    }
  });
}

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
  const std::vector<A> d = grad_dot_out<T>(b);
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
          k.gatv2_logits(u, v, alpha);
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
  std::vector<A> edge_grad(static_cast<size_t>((a.num_edges + a.num_loops) * a.heads)),
      edge_alpha(edge_grad.size());
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

template <typename T>
void attention_forward_indexed(const AttentionArgs& a) {
  a.wide_indices ? attention_forward_typed<T, int64_t>(a) : attention_forward_typed<T, int32_t>(a);
}
template <typename T>
void gat_backward_indexed(const AttentionBackwardArgs& b) {
  b.forward.wide_indices ? gat_backward_typed<T, int64_t>(b) : gat_backward_typed<T, int32_t>(b);
}
template <typename T>
void gatv2_backward_indexed(const AttentionBackwardArgs& b) {
  b.forward.wide_indices ? gatv2_backward_typed<T, int64_t>(b) : gatv2_backward_typed<T, int32_t>(b);
}

void attention_forward(const AttentionArgs& a) {
  switch (a.dtype) {
    case DType::kFloat32:
      return attention_forward_indexed<float>(a);
    case DType::kFloat64:
      return attention_forward_indexed<double>(a);
    case DType::kBfloat16:
      return attention_forward_indexed<Bf16>(a);
    case DType::kFloat16:
      return attention_forward_indexed<F16>(a);
  }
}
void gat_backward(const AttentionBackwardArgs& b) {
  switch (b.forward.dtype) {
    case DType::kFloat32:
      return gat_backward_indexed<float>(b);
    case DType::kFloat64:
      return gat_backward_indexed<double>(b);
    case DType::kBfloat16:
      return gat_backward_indexed<Bf16>(b);
    case DType::kFloat16:
      return gat_backward_indexed<F16>(b);
  }
}
void gatv2_backward(const AttentionBackwardArgs& b) {
  switch (b.forward.dtype) {
    case DType::kFloat32:
      return gatv2_backward_indexed<float>(b);
    case DType::kFloat64:
      return gatv2_backward_indexed<double>(b);
    case DType::kBfloat16:
      return gatv2_backward_indexed<Bf16>(b);
    case DType::kFloat16:
      return gatv2_backward_indexed<F16>(b);
  }
}

// Softmax over each row's edges, per head.
template <typename A>
void edge_softmax_typed(const EdgeSoftmaxArgs& a) {
  const A* logits = static_cast<const A*>(a.logits);
  A* out = static_cast<A*>(a.out);
  parallel_rows(a.indptr, a.num_dst, a.heads, [&](int64_t first, int64_t last) {
    std::vector<A> top(static_cast<size_t>(a.heads)), total(static_cast<size_t>(a.heads));
    for (int64_t v = first; v < last; ++v) {
      const int64_t begin = a.indptr[v], end = a.indptr[v + 1];
      std::fill(top.begin(), top.end(), -std::numeric_limits<A>::infinity());
      std::fill(total.begin(), total.end(), A{0});
      for (int64_t e = begin; e < end; ++e)
        for (int64_t h = 0; h < a.heads; ++h) top[h] = std::max(top[h], logits[e * a.heads + h]);
      for (int64_t e = begin; e < end; ++e)
        for (int64_t h = 0; h < a.heads; ++h) out[e * a.heads + h] = logits[e * a.heads + h] - top[h];
      exp_array(out + begin * a.heads, (end - begin) * a.heads);
      for (int64_t e = begin; e < end; ++e)
        for (int64_t h = 0; h < a.heads; ++h) total[h] += out[e * a.heads + h];
      for (int64_t e = begin; e < end; ++e)
        for (int64_t h = 0; h < a.heads; ++h) out[e * a.heads + h] /= total[h];
    }
  });
}

// out = alpha * (grad - sum over the row's edges of alpha * grad)
template <typename A>
void edge_softmax_backward_typed(const EdgeSoftmaxArgs& a) {
  const A* alpha = static_cast<const A*>(a.logits);
  const A* grad = static_cast<const A*>(a.grad);
  A* out = static_cast<A*>(a.out);
  parallel_rows(a.indptr, a.num_dst, a.heads, [&](int64_t first, int64_t last) {
    std::vector<A> total(static_cast<size_t>(a.heads));
    for (int64_t v = first; v < last; ++v) {
      std::fill(total.begin(), total.end(), A{0});
      const int64_t begin = a.indptr[v], end = a.indptr[v + 1];
      for (int64_t e = begin; e < end; ++e)
        for (int64_t h = 0; h < a.heads; ++h) total[h] += alpha[e * a.heads + h] * grad[e * a.heads + h];
      for (int64_t e = begin; e < end; ++e)
        for (int64_t h = 0; h < a.heads; ++h)
          out[e * a.heads + h] = alpha[e * a.heads + h] * (grad[e * a.heads + h] - total[h]);
    }
  });
}

void edge_softmax(const EdgeSoftmaxArgs& a) {
  a.is_double ? edge_softmax_typed<double>(a) : edge_softmax_typed<float>(a);
}
void edge_softmax_backward(const EdgeSoftmaxArgs& a) {
  a.is_double ? edge_softmax_backward_typed<double>(a) : edge_softmax_backward_typed<float>(a);
}

}  // namespace gb::GB_VARIANT
