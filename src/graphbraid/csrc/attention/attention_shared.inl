// What several of the attention kernels call, defined: attention.cpp alone compiles it, and the others link
// to it. Stands inside attention.inl, behind attention_rows.inl and gatv2_rows.inl, which declare it.

// Fetches the features of the edges that follow: by source they are read at random.
template <typename A>
void Coefficients<A>::prefetch_features(int64_t begin, int64_t end, int64_t prefetch_end,
                                        const int64_t* ids) const {
  const int64_t bytes = a.edge_channels * static_cast<int64_t>(sizeof(A));
  for (int64_t e = begin + kEdgesAhead; e < std::min(end + kEdgesAhead, prefetch_end); ++e)
    prefetch_far(static_cast<const A*>(a.edge_features.data) + ids[e] * a.edge_features.stride, bytes);
}

template <typename A>
template <typename I>
void Coefficients<A>::collect_(int64_t v, int64_t begin, int64_t end, int64_t prefetch_end, const I* indices,
                               const int64_t* ids, EdgeRow<A>& row) const {
  int64_t n = 0;
  for (int64_t e = begin; e < end; ++e) {
    const int64_t u = indices[e];
    row.nodes[n] = u;
    if (a.threshold) row.keys[n] = ids ? key(u, ids[e]) : key(v, e);
    if (needs_places) row.places[n] = ids ? ids[e] : e;
    n += a.num_loops == 0 || u != v;  // implicit loops stand for those that are stored
  }
  row.count = n;
  for (int64_t e = end; e < std::min(end + kEdgesAhead, prefetch_end); ++e) row.nodes[n++] = indices[e];
  row.known = n;
}

template <typename A>
void Coefficients<A>::collect(int64_t v, int64_t begin, int64_t end, bool is_last, int64_t prefetch_end,
                              const void* indices, const int64_t* ids, EdgeRow<A>& row) const {
  row.reserve(end - begin + 1, a.heads, a.threshold > 0);
  if (needs_places) row.places.reserve(end - begin + 1);
  a.wide_indices ? collect_(v, begin, end, prefetch_end, static_cast<const int64_t*>(indices), ids, row)
                 : collect_(v, begin, end, prefetch_end, static_cast<const int32_t*>(indices), ids, row);
  if (a.edge_weight && ids) prefetch_features(begin, end, prefetch_end, ids);
  if (!is_last || v >= a.num_loops) return;
  // The next edges' nodes move up by one.
  std::copy_backward(row.nodes.data() + row.count, row.nodes.data() + row.known,
                     row.nodes.data() + row.known + 1);
  if (a.threshold) row.keys[row.count] = key(v, a.indptr[v + 1]);
  if (needs_places) row.places[row.count] = a.num_edges + v;
  row.nodes[row.count++] = v;
  ++row.known;
}

template <typename A>
void Coefficients<A>::draw_masks(EdgeRow<A>& row) const {
  const A keep_scale = static_cast<A>(a.keep_scale);
  for (int64_t i = 0; i < row.count; ++i) row.bits[i] = dropout_row_key(a.seed, row.keys[i]);
  fixed_heads<A>(a.heads, [&](auto heads) GB_LAMBDA {
    for (int64_t i = 0; i < row.count; ++i)
      for (int64_t h = 0; h < heads; ++h)
        row.mask[i * heads + h] =
            dropout_bits(row.bits[i], static_cast<uint32_t>(h)) >= a.threshold ? keep_scale : A{0};
  });
}

template <typename A>
void Coefficients<A>::drop_(EdgeRow<A>& row, bool with_above) const {
  draw_masks(row);
  for (int64_t i = 0; i < row.count * a.heads; ++i) row.value[i] *= row.mask[i];
  if (with_above)
    for (int64_t i = 0; i < row.count * a.heads; ++i) row.above[i] *= row.mask[i];
}

template <typename T, typename U>
Buffer<Acc<T>> grad_dot(const AttentionBackwardArgs& b, const U* rows) {
  const AttentionArgs& a = b.forward;
  const int64_t heads = a.heads, channels = a.channels;
  const T* grad = static_cast<const T*>(b.grad);
  Buffer<Acc<T>> d(a.num_dst * heads);
  const auto product = [](const T* g, const U* row) GB_LAMBDA {
    return [g, row](int64_t c, auto n) GB_LAMBDA { return get(g + c, n) * get(row + c, n); };
  };
  parallel_static(a.num_dst, 1024, [&](int64_t first, int64_t last) {
    const U* from = rows + first * heads * channels;
    Acc<T>* to = d.data() + first * heads;
    if (b.narrow) {  // each head is a row of its own
      sum_heads<T, false>((last - first) * heads, 1, channels,
                          [&](int64_t i) GB_LAMBDA {
                            return product(grad + (first + i / heads) * channels, from + i * channels);
                          },
                          to);
      return;
    }
    const int64_t width = heads * channels;
    sum_heads<T>(
        last - first, heads, channels,
        [&](int64_t i) GB_LAMBDA { return product(grad + (first + i) * width, from + i * width); }, to);
  });
  return d;
}

template <bool EachOwn, typename T>
void gatv2_logits(const Attention<T>& k, const SummedRows<T>& x, const Acc<T>* own, int64_t first,
                  int64_t count, EdgeRow<Acc<T>>& row) {
  const int64_t distance = x.distance();
  sum_heads<T>(
      count, k.a.heads, k.a.channels,
      [&](int64_t i) GB_LAMBDA {
        const int64_t next = first + i + distance;
        if (next < row.known) x.prefetch(row.nodes[next]);
        return k.logit_part(x[row.nodes[first + i]], EachOwn ? own + i * k.width : own);
      },
      row.value.data() + first * k.a.heads);
}

template void Coefficients<float>::collect(int64_t, int64_t, int64_t, bool, int64_t, const void*,
                                           const int64_t*, EdgeRow<float>&) const;
template void Coefficients<float>::draw_masks(EdgeRow<float>&) const;
template void Coefficients<float>::drop_(EdgeRow<float>&, bool) const;

template void Coefficients<double>::collect(int64_t, int64_t, int64_t, bool, int64_t, const void*,
                                            const int64_t*, EdgeRow<double>&) const;
template void Coefficients<double>::draw_masks(EdgeRow<double>&) const;
template void Coefficients<double>::drop_(EdgeRow<double>&, bool) const;

template void gatv2_logits<false>(const Attention<float>&, const SummedRows<float>&, const float*, int64_t,
                                  int64_t, EdgeRow<float>&);
template void gatv2_logits<true>(const Attention<float>&, const SummedRows<float>&, const float*, int64_t,
                                 int64_t, EdgeRow<float>&);
template Buffer<float> grad_dot<float>(const AttentionBackwardArgs&, const float*);

template void gatv2_logits<false>(const Attention<double>&, const SummedRows<double>&, const double*, int64_t,
                                  int64_t, EdgeRow<double>&);
template void gatv2_logits<true>(const Attention<double>&, const SummedRows<double>&, const double*, int64_t,
                                 int64_t, EdgeRow<double>&);
template Buffer<double> grad_dot<double>(const AttentionBackwardArgs&, const double*);

template void gatv2_logits<false>(const Attention<Bf16>&, const SummedRows<Bf16>&, const float*, int64_t,
                                  int64_t, EdgeRow<float>&);
template void gatv2_logits<true>(const Attention<Bf16>&, const SummedRows<Bf16>&, const float*, int64_t,
                                 int64_t, EdgeRow<float>&);
template Buffer<float> grad_dot<Bf16>(const AttentionBackwardArgs&, const Bf16*);
template Buffer<float> grad_dot<Bf16>(const AttentionBackwardArgs&, const float*);

template void gatv2_logits<false>(const Attention<F16>&, const SummedRows<F16>&, const float*, int64_t,
                                  int64_t, EdgeRow<float>&);
template void gatv2_logits<true>(const Attention<F16>&, const SummedRows<F16>&, const float*, int64_t,
                                 int64_t, EdgeRow<float>&);
template Buffer<float> grad_dot<F16>(const AttentionBackwardArgs&, const F16*);
template Buffer<float> grad_dot<F16>(const AttentionBackwardArgs&, const float*);
