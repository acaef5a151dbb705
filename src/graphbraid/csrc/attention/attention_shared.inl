// Functions that several attention kernels call. attention.cpp alone compiles them; the others link to them.
// Included in attention.inl, after attention_rows.inl and gatv2_rows.inl, which declare them.

// Prefetches the features of the next edges: by source they are read at random.
template <typename A>
void Coefficients<A>::prefetch_features(int64_t begin, int64_t end, int64_t prefetch_end,
                                        const int64_t* ids) const {
  const int64_t bytes = a.edge_channels * static_cast<int64_t>(sizeof(A));
  for (int64_t e = begin + kEdgesAhead; e < std::min(end + kEdgesAhead, prefetch_end); ++e)
    prefetch_far(static_cast<const A*>(a.edge_features.data) + ids[e] * a.edge_features.stride, bytes);
}

template <typename A>
template <typename I>
void Coefficients<A>::collect_(int64_t first, int64_t last, const int64_t* indptr, int64_t begin, int64_t end,
                               bool is_last, int64_t prefetch_end, const I* indices, const int64_t* ids,
                               EdgeRows<A>& rows) const {
  int64_t n = 0, e = begin;
  for (int64_t v = first; v < last; ++v) {
    for (const int64_t stop = v + 1 < last ? indptr[v + 1] : end; e < stop; ++e) {
      const int64_t u = indices[e];
      rows.nodes[n] = u;
      rows.of[n] = v;
      if (a.threshold) rows.keys[n] = ids ? key(u, ids[e]) : key(v, e);
      if (needs_places) rows.places[n] = ids ? ids[e] : e;
      n += a.num_loops == 0 || u != v;  // implicit loops replace stored ones: the next edge overwrites these
    }
    if (v < a.num_loops && (is_last || v + 1 < last)) {
      rows.nodes[n] = v;
      rows.of[n] = v;
      if (a.threshold) rows.keys[n] = key(v, a.indptr[v + 1]);
      if (needs_places) rows.places[n] = a.num_edges + v;
      ++n;
    }
    rows.ends[v - first] = n;
  }
  rows.count = n;
  for (; e < std::min(end + kEdgesAhead, prefetch_end); ++e) rows.nodes[n++] = indices[e];
  rows.known = n;
  for (int64_t i = rows.count; i < rows.count + kLanes<A>; ++i) {
    if (i >= rows.known) rows.nodes[i] = rows.nodes[0];
    rows.of[i] = first;
    if (needs_places) rows.places[i] = rows.places[0];
  }
}

template <typename A>
void Coefficients<A>::collect(int64_t first, int64_t last, const int64_t* indptr, int64_t begin, int64_t end,
                              bool is_last, int64_t prefetch_end, const void* indices, const int64_t* ids,
                              EdgeRows<A>& rows) const {
  const int64_t most = end - begin + (last - first);
  rows.reserve(last - first, most, a.heads, a.threshold > 0);
  if (needs_places) rows.places.reserve(most + 1 + kLanes<A>);
  rows.first = first;
  rows.rows = last - first;
  a.wide_indices ? collect_(first, last, indptr, begin, end, is_last, prefetch_end,
                            static_cast<const int64_t*>(indices), ids, rows)
                 : collect_(first, last, indptr, begin, end, is_last, prefetch_end,
                            static_cast<const int32_t*>(indices), ids, rows);
  if (a.edge_weight && ids) prefetch_features(begin, end, prefetch_end, ids);
}

template <typename A>
void Coefficients<A>::draw_masks(EdgeRows<A>& rows) const {
  const A keep_scale = static_cast<A>(a.keep_scale);
  for (int64_t i = 0; i < rows.count; ++i) rows.bits[i] = dropout_row_key(a.seed, rows.keys[i]);
  fixed_heads<A>(a.heads, [&](auto heads) GB_LAMBDA {
    for (int64_t i = 0; i < rows.count; ++i)
      for (int64_t h = 0; h < heads; ++h)
        rows.mask[i * heads + h] =
            dropout_bits(rows.bits[i], static_cast<uint32_t>(h)) >= a.threshold ? keep_scale : A{0};
  });
}

template <typename A>
void Coefficients<A>::drop_(EdgeRows<A>& rows, bool with_above) const {
  draw_masks(rows);
  for (int64_t i = 0; i < rows.count * a.heads; ++i) rows.value[i] *= rows.mask[i];
  if (with_above)
    for (int64_t i = 0; i < rows.count * a.heads; ++i) rows.above[i] *= rows.mask[i];
}

template <typename T, typename U>
void grad_dot(const AttentionBackwardArgs& b, const U* rows, int64_t first, int64_t last, Acc<T>* to) {
  const int64_t heads = b.forward.heads, channels = b.forward.channels;
  const int64_t width = b.narrow ? channels : heads * channels;
  const T* grad = static_cast<const T*>(b.grad) + first * width;
  const U* from = rows + first * heads * channels;
  const auto product = [](const T* g, const U* row) GB_LAMBDA {
    return [g, row](int64_t c, auto n) GB_LAMBDA { return get(g + c, n) * get(row + c, n); };
  };
  if (b.narrow)  // each head is a row of its own
    return sum_heads<T, false>(
        (last - first) * heads, 1, channels,
        [&](int64_t i) GB_LAMBDA { return product(grad + i / heads * channels, from + i * channels); }, to);
  sum_heads<T>(
      last - first, heads, channels,
      [&](int64_t i) GB_LAMBDA {
        prefetch_far(grad + (i + kInOrderAhead) * width, width * static_cast<int64_t>(sizeof(T)));
        prefetch_far(from + (i + kInOrderAhead) * width, width * static_cast<int64_t>(sizeof(U)));
        return product(grad + i * width, from + i * width);
      },
      to);
}

template <bool EachOwn, typename T>
void gatv2_logits(const Attention<T>& k, const SummedRows<T>& x, const Acc<T>* own, int64_t first,
                  int64_t count, EdgeRows<Acc<T>>& row) {
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

template void Coefficients<float>::collect(int64_t, int64_t, const int64_t*, int64_t, int64_t, bool, int64_t,
                                           const void*, const int64_t*, EdgeRows<float>&) const;
template void Coefficients<float>::draw_masks(EdgeRows<float>&) const;
template void Coefficients<float>::drop_(EdgeRows<float>&, bool) const;

template void Coefficients<double>::collect(int64_t, int64_t, const int64_t*, int64_t, int64_t, bool, int64_t,
                                            const void*, const int64_t*, EdgeRows<double>&) const;
template void Coefficients<double>::draw_masks(EdgeRows<double>&) const;
template void Coefficients<double>::drop_(EdgeRows<double>&, bool) const;

template void gatv2_logits<false>(const Attention<float>&, const SummedRows<float>&, const float*, int64_t,
                                  int64_t, EdgeRows<float>&);
template void gatv2_logits<true>(const Attention<float>&, const SummedRows<float>&, const float*, int64_t,
                                 int64_t, EdgeRows<float>&);
template void grad_dot<float>(const AttentionBackwardArgs&, const float*, int64_t, int64_t, float*);

template void gatv2_logits<false>(const Attention<double>&, const SummedRows<double>&, const double*, int64_t,
                                  int64_t, EdgeRows<double>&);
template void gatv2_logits<true>(const Attention<double>&, const SummedRows<double>&, const double*, int64_t,
                                 int64_t, EdgeRows<double>&);
template void grad_dot<double>(const AttentionBackwardArgs&, const double*, int64_t, int64_t, double*);

template void gatv2_logits<false>(const Attention<Bf16>&, const SummedRows<Bf16>&, const float*, int64_t,
                                  int64_t, EdgeRows<float>&);
template void gatv2_logits<true>(const Attention<Bf16>&, const SummedRows<Bf16>&, const float*, int64_t,
                                 int64_t, EdgeRows<float>&);
template void grad_dot<Bf16>(const AttentionBackwardArgs&, const Bf16*, int64_t, int64_t, float*);
template void grad_dot<Bf16>(const AttentionBackwardArgs&, const float*, int64_t, int64_t, float*);

template void gatv2_logits<false>(const Attention<F16>&, const SummedRows<F16>&, const float*, int64_t,
                                  int64_t, EdgeRows<float>&);
template void gatv2_logits<true>(const Attention<F16>&, const SummedRows<F16>&, const float*, int64_t,
                                 int64_t, EdgeRows<float>&);
template void grad_dot<F16>(const AttentionBackwardArgs&, const F16*, int64_t, int64_t, float*);
template void grad_dot<F16>(const AttentionBackwardArgs&, const float*, int64_t, int64_t, float*);
