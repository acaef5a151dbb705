// Inner products along edges, per head:
//
//   out[e, h] = dst_scale[v] * src_scale[u] * <dst[v, h, :], src[u, h, :]>  for the edge e = u -> v
//
// Bound by reading num_edges rows of src; each row of dst stays in the cache while its edges are walked.

namespace gb::GB_VARIANT {

#include "simd.inl"

template <typename T, typename I>
void sddmm_typed(const SddmmArgs& a) {
  const I* indices = static_cast<const I*>(a.indices);
  const T* dst = static_cast<const T*>(a.dst.data);
  const T* src = static_cast<const T*>(a.src.data);
  const Acc<T>* dst_scale = static_cast<const Acc<T>*>(a.dst_scale);
  const Acc<T>* src_scale = static_cast<const Acc<T>*>(a.src_scale);
  Acc<T>* out = static_cast<Acc<T>*>(a.out);
  const int64_t channels = a.width / a.heads;
  const int64_t row_bytes = a.width * static_cast<int64_t>(sizeof(T));
  const int64_t lines = (row_bytes + 63) / 64;
  const int64_t distance = std::clamp<int64_t>(48 / lines, 2, 24);
  const auto edges = [&](int64_t v, int64_t begin, int64_t end) {
    const T* left = dst + v * a.dst.stride;
    for (int64_t e = begin; e < end; ++e) {
      const int64_t u = indices[e];
      if (e + distance < a.num_edges) prefetch_row(src + indices[e + distance] * a.src.stride, row_bytes);
      const T* right = src + u * a.src.stride;
      const Acc<T> c = (dst_scale ? dst_scale[v] : Acc<T>{1}) * (src_scale ? src_scale[u] : Acc<T>{1});
      for (int64_t h = 0; h < a.heads; ++h)
        out[e * a.heads + h] = c * dot(left + h * channels, right + h * channels, channels);
    }
  };
  // Edges are independent: hubs are simply shared out by segments.
  const std::vector<Segment> hubs = hub_segments(a.indptr, a.num_dst);
  parallel_dynamic(static_cast<int64_t>(hubs.size()), 1, [&](int64_t first, int64_t last) {
    for (int64_t s = first; s < last; ++s) edges(hubs[s].row, hubs[s].begin, hubs[s].end);
  });
  parallel_rows(a.indptr, a.num_dst, lines, [&](int64_t first, int64_t last) {
    for (int64_t v = first; v < last; ++v)
      if (a.indptr[v + 1] - a.indptr[v] <= kHubEdges) edges(v, a.indptr[v], a.indptr[v + 1]);
  });
}

template <typename T>
void sddmm_indexed(const SddmmArgs& a) {
  a.wide_indices ? sddmm_typed<T, int64_t>(a) : sddmm_typed<T, int32_t>(a);
}

void sddmm(const SddmmArgs& a) {
  switch (a.dtype) {
    case DType::kFloat32:
      return sddmm_indexed<float>(a);
    case DType::kFloat64:
      return sddmm_indexed<double>(a);
    case DType::kBfloat16:
      return sddmm_indexed<Bf16>(a);
    case DType::kFloat16:
      return sddmm_indexed<F16>(a);
  }
}

}  // namespace gb::GB_VARIANT
