// Softmax over each destination's edges, and its gradient. Stands inside attention.inl.

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
