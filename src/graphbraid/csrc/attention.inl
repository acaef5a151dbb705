// Fused attention over in-neighbours, GAT and GATv2. With e = u -> v, per head h:
//
//   GAT    z[e, h] = src_logit[u, h] + dst_logit[v, h],  logit = leaky(z)
//   GATv2  logit[e, h] = sum over c of att[h, c] * leaky(src[u, h, c] + dst[v, h, c])
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

#include "attention_rows.inl"

template <typename T, typename I>
void attention_forward_typed(const AttentionArgs& a) {
  using A = Acc<T>;
  const Attention<T, I> k{a};
  const std::vector<HeadSlot> slots = head_slots<T>(a.heads, a.channels, false);
  parallel_rows(a.indptr, a.num_dst, 2 * k.lines + a.heads, [&](int64_t first, int64_t last) {
    EdgeCoefficients<A> row;
    const int64_t prefetch_end = a.indptr[last];
    for (int64_t v = first; v < last; ++v) {
      const I* indices = static_cast<const I*>(a.indices);
      k.collect(v, a.indptr[v], a.indptr[v + 1], prefetch_end, indices, nullptr, row);
      a.src_logit ? k.gat_row_logits(v, row) : k.gatv2_row_logits(v, row);
      k.softmax(v, row);
      T* out = static_cast<T*>(a.out) + v * k.width;
      A* above = static_cast<A*>(a.above) + (a.above ? v * k.width : 0);
      const auto finish = [&](const HeadSlot& s, const Vec<T>& sum, const Vec<T>& sum_above) GB_LAMBDA {
        store_n(out + s.to, sum, s.count);
        if (a.above) store_n(above + s.to, sum_above, s.count);
      };
      const int64_t distance = a.src_logit ? k.distance : 0;  // GATv2's logits have read the rows
      a.above ? add_rows<T, true>(slots, a.channels, k.rows, distance, row, finish)
              : add_rows<T, false>(slots, a.channels, k.rows, distance, row, finish);
    }
  });
}

#include "gat_backward.inl"
#include "gatv2_backward.inl"

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

#include "edge_softmax.inl"

}  // namespace gb::GB_VARIANT
