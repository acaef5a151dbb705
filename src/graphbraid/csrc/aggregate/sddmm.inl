// Inner products along edges, per head:
//
//   dst (num_dst, heads * channels), src (num_src, heads * channels)  --->  out (num_edges, heads)
//                                    sum over a head's channels
//
//   out[e, h] = dst_scale[v] * src_scale[u] * <dst[v, h, :], src[u, h, :]>  for the edge e = u -> v
//
// Edges are independent. They are walked some at a time, across the ends of rows, since as many sums as a
// vector has lanes are computed together (heads.inl). Bound by reading num_edges rows of src; each row of dst
// stays in the cache while its edges are walked.

namespace gb::GB_VARIANT {

#include "variants/heads.inl"

constexpr int64_t kEdgesTogether = 256;

// Both ends of some edges. The sources of a few further edges follow: their rows are prefetched.
struct EdgeEnds {
  static constexpr int64_t kAhead = 32;
  int64_t dst[kEdgesTogether], src[kEdgesTogether + kAhead];

  // Fills in the edges [begin, end), and the sources up to `known`. v: the row of the first edge before, of
  // the last edge after.
  template <typename I>
  void fill(const int64_t* indptr, const I* indices, int64_t begin, int64_t end, int64_t known, int64_t& v) {
    for (int64_t e = begin; e < end;) {
      while (indptr[v + 1] <= e) ++v;
      const int64_t stop = std::min(end, indptr[v + 1]);
      for (; e < stop; ++e) dst[e - begin] = v;
    }
    for (int64_t e = begin; e < known; ++e) src[e - begin] = indices[e];
  }
};

template <typename T>
void sddmm_typed(const SddmmArgs& a) {
  using A = Acc<T>;
  const T* dst = static_cast<const T*>(a.dst.data);
  const T* src = static_cast<const T*>(a.src.data);
  const A* dst_scale = static_cast<const A*>(a.dst_scale);
  const A* src_scale = static_cast<const A*>(a.src_scale);
  const int64_t row_bytes = a.width * static_cast<int64_t>(sizeof(T));
  const int64_t lines = std::max<int64_t>((row_bytes + 63) / 64, 1);
  const int64_t ahead = std::clamp<int64_t>(96 / lines, 2, EdgeEnds::kAhead);
  parallel_dynamic(
      a.num_edges, std::max<int64_t>(kEdgesTogether, (1 << 16) / lines), [&](int64_t first, int64_t last) {
        EdgeEnds ends;
        // The row of edge `first`: the one before the first row that begins behind it.
        int64_t v = row_at_work(a.indptr, a.num_dst + 1, 0, first + 1) - 1;
        for (int64_t begin = first; begin < last; begin += kEdgesTogether) {
          const int64_t end = std::min(begin + kEdgesTogether, last), count = end - begin;
          const int64_t known = std::min(end + ahead, last);
          a.wide_indices ? ends.fill(a.indptr, static_cast<const int64_t*>(a.indices), begin, end, known, v)
                         : ends.fill(a.indptr, static_cast<const int32_t*>(a.indices), begin, end, known, v);
          A* out = static_cast<A*>(a.out) + begin * a.heads;
          sum_heads<T>(
              count, a.heads, a.width / a.heads,
              [&](int64_t i) GB_LAMBDA {
                if (i + ahead < known - begin)
                  prefetch_far(src + ends.src[i + ahead] * a.src.stride, row_bytes);
                const T* left = dst + ends.dst[i] * a.dst.stride;
                const T* right = src + ends.src[i] * a.src.stride;
                return [left, right](int64_t c, auto n)
                           GB_LAMBDA { return get(left + c, n) * get(right + c, n); };
              },
              out);
          if (!dst_scale && !src_scale) continue;
          for (int64_t i = 0; i < count; ++i) {
            const A c =
                (dst_scale ? dst_scale[ends.dst[i]] : A{1}) * (src_scale ? src_scale[ends.src[i]] : A{1});
            for (int64_t h = 0; h < a.heads; ++h) out[i * a.heads + h] *= c;
          }
        }
      });
}

void sddmm(const SddmmArgs& a) {
  for_dtype(a.dtype, [&](auto type) { sddmm_typed<decltype(type)>(a); });
}

}  // namespace gb::GB_VARIANT
