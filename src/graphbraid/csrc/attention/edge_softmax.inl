// Softmax over each destination's edges, and its gradient:
//
//   logits (num_edges, heads)  --- total per head over v's edges, which are a flat run of numbers --->
//                                                                              out (num_edges, heads)
//
// Bound by the exponentials and by memory in sequence.

namespace gb::GB_VARIANT {

#include "variants/heads.inl"

// Softmax over each row's edges, per head.
template <typename A>
void edge_softmax_typed(const EdgeSoftmaxArgs& a) {
  const HeadLanes<A> lanes(a.heads);
  parallel_rows(a.indptr, a.num_dst, a.heads, [&](int64_t first_row, int64_t last_row) {
    for (int64_t v = first_row; v < last_row; ++v) {
      const int64_t size = (a.indptr[v + 1] - a.indptr[v]) * a.heads;
      if (size == 0) continue;
      const A* logits = static_cast<const A*>(a.logits) + a.indptr[v] * a.heads;
      A* out = static_cast<A*>(a.out) + a.indptr[v] * a.heads;
      const auto logit = [&](int64_t at, auto n) GB_LAMBDA { return get(logits + at, n); };
      const auto start = [](int64_t) GB_LAMBDA {};
      const auto keep = [](const Vec<A>&, const Vec<A>&) GB_LAMBDA {};
      const auto finish = [&](int64_t at, auto n, const Vec<A>& alpha) GB_LAMBDA { put(out + at, alpha, n); };
      lanes.groups([&](int64_t first)
                       GB_LAMBDA { softmax_row(lanes, first, size, out, logit, start, keep, finish); });
    }
  });
}

// out = alpha * (grad - sum over the row's edges of alpha * grad)
template <typename A>
void edge_softmax_backward_typed(const EdgeSoftmaxArgs& a) {
  const HeadLanes<A> lanes(a.heads);
  parallel_rows(a.indptr, a.num_dst, a.heads, [&](int64_t first_row, int64_t last_row) {
    for (int64_t v = first_row; v < last_row; ++v) {
      const int64_t begin = a.indptr[v] * a.heads, size = a.indptr[v + 1] * a.heads - begin;
      const A* alpha = static_cast<const A*>(a.logits) + begin;
      const A* grad = static_cast<const A*>(a.grad) + begin;
      A* out = static_cast<A*>(a.out) + begin;
      lanes.groups([&](int64_t first) GB_LAMBDA {
        Vec<A> total{};
        lanes.each(size, first,
                   [&](int64_t at, auto n) GB_LAMBDA { total += get(alpha + at, n) * get(grad + at, n); });
        total = lanes.over_edges(total, Sum{});
        lanes.each(size, first, [&](int64_t at, auto n) GB_LAMBDA {
          put(out + at, get(alpha + at, n) * (get(grad + at, n) - total), n);
        });
      });
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
