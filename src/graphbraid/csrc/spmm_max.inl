// Largest message per destination and feature, and where it came from:
//
//   out[v, f] = max of weight[e] * x[u, f] over the edges e = u -> v;  winner[v, f] = first such edge,
//   counted in the row
//
// 0 and -1 in an empty row; a NaN wins. The gradient goes to winners only; spmm_max_backward collects it by
// source over the transposed graph, in order, so that no two threads write one row. Arguments: spmm.h.

namespace gb::GB_VARIANT {

#include "simd.inl"

constexpr int kMaxTileVectors = 4;

template <typename T, typename I, int NV>
GB_INLINE void max_tile(const SpmmMaxArgs& a, int64_t v, int64_t column, int last) {
  constexpr int L = kLanes<T>;
  const I* indices = static_cast<const I*>(a.indices);
  const T* x = static_cast<const T*>(a.x.data) + column;
  const Acc<T>* weight = static_cast<const Acc<T>*>(a.weight);
  const int64_t begin = a.indptr[v], end = a.indptr[v + 1], total = a.indptr[a.num_dst];
  Vec<T> best[NV] = {};
  Mask<T> winner[NV];
  unroll<NV>([&](auto i) GB_LAMBDA { winner[i] = Mask<T>{} - 1; });
  for (int64_t e = begin; e < end; ++e) {
    if (e + 8 < total)
      prefetch_row(x + indices[e + 8] * a.x.stride, NV * L * static_cast<int64_t>(sizeof(T)));
    const T* row = x + indices[e] * a.x.stride;
    const Acc<T> c = weight ? weight[e] : Acc<T>{1};
    unroll<NV>([&](auto i) GB_LAMBDA {
      const Vec<T> message = c * (i < NV - 1 ? load(row + i * L) : load_n(row + (NV - 1) * L, last));
      const Mask<T> position = splat<Mask<T>>(static_cast<std::decay_t<decltype(winner[0][0])>>(e - begin));
      const Mask<T> wins = (message > best[i]) | (message != message);
      best[i] = e == begin ? message : wins ? message : best[i];
      winner[i] = e == begin ? position : wins ? position : winner[i];
    });
  }
  T* out = static_cast<T*>(a.out) + v * a.width + column;
  int32_t* won = a.winner + v * a.width + column;
  for (int i = 0; i < NV; ++i) {
    const int n = i < NV - 1 ? L : last;
    store_n(out + i * L, best[i], n);
    for (int j = 0; j < n; ++j) won[i * L + j] = static_cast<int32_t>(winner[i][j]);
  }
}

template <typename T, typename I>
void max_typed(const SpmmMaxArgs& a) {
  constexpr int L = kLanes<T>;
  const int64_t lines = (a.width * static_cast<int64_t>(sizeof(T)) + 63) / 64;
  parallel_rows(a.indptr, a.num_dst, 2 * lines, [&](int64_t first, int64_t last_row) {
    for (int64_t v = first; v < last_row; ++v) {
      for (int64_t column = 0; column < a.width;) {
        const int64_t vectors = (a.width - column + L - 1) / L;
        const int nv = vectors >= kMaxTileVectors ? kMaxTileVectors : vectors >= 2 ? 2 : 1;
        const int64_t taken = std::min<int64_t>(nv * L, a.width - column);
        const int last = static_cast<int>(taken - (nv - 1) * L);
        if (nv == kMaxTileVectors)
          max_tile<T, I, kMaxTileVectors>(a, v, column, last);
        else if (nv == 2)
          max_tile<T, I, 2>(a, v, column, last);
        else
          max_tile<T, I, 1>(a, v, column, last);
        column += taken;
      }
    }
  });
}

template <typename T, typename I>
void max_backward_typed(const SpmmMaxBackwardArgs& a) {
  constexpr int L = kLanes<T>;
  const I* indices = static_cast<const I*>(a.indices);
  const T* grad = static_cast<const T*>(a.grad.data);
  const Acc<T>* weight = static_cast<const Acc<T>*>(a.weight);
  T* out = static_cast<T*>(a.out);
  const int64_t lines = (a.width * static_cast<int64_t>(sizeof(T) + sizeof(int32_t)) + 63) / 64;
  parallel_rows(a.indptr, a.num_src, lines, [&](int64_t first, int64_t last_row) {
    std::vector<Acc<T>> sum(static_cast<size_t>(a.width));
    for (int64_t u = first; u < last_row; ++u) {
      std::fill(sum.begin(), sum.end(), Acc<T>{0});
      for (int64_t e = a.indptr[u]; e < a.indptr[u + 1]; ++e) {
        const int64_t v = indices[e];
        if (e + 4 < a.indptr[last_row]) {
          prefetch_row(grad + indices[e + 4] * a.grad.stride, a.width * static_cast<int64_t>(sizeof(T)));
          prefetch_row(a.winner + indices[e + 4] * a.width, a.width * static_cast<int64_t>(sizeof(int32_t)));
        }
        const int32_t position = static_cast<int32_t>(a.perm[e] - a.forward_indptr[v]);
        const int32_t* winner = a.winner + v * a.width;
        const T* row = grad + v * a.grad.stride;
        const Acc<T> c = weight ? weight[e] : Acc<T>{1};
        for (int64_t f = 0; f < a.width; ++f)
          sum[f] += winner[f] == position ? c * to_acc(row[f]) : Acc<T>{0};
      }
      for (int64_t f = 0; f < a.width; f += L) {
        const int n = static_cast<int>(std::min<int64_t>(L, a.width - f));
        store_n(out + u * a.width + f, load_n(sum.data() + f, n), n);
      }
    }
  });
}

template <typename T>
void max_indexed(const SpmmMaxArgs& a) {
  a.wide_indices ? max_typed<T, int64_t>(a) : max_typed<T, int32_t>(a);
}

template <typename T>
void max_backward_indexed(const SpmmMaxBackwardArgs& a) {
  a.wide_indices ? max_backward_typed<T, int64_t>(a) : max_backward_typed<T, int32_t>(a);
}

void spmm_max(const SpmmMaxArgs& a) {
  switch (a.dtype) {
    case DType::kFloat32:
      return max_indexed<float>(a);
    case DType::kFloat64:
      return max_indexed<double>(a);
    case DType::kBfloat16:
      return max_indexed<Bf16>(a);
    case DType::kFloat16:
      return max_indexed<F16>(a);
  }
}

void spmm_max_backward(const SpmmMaxBackwardArgs& a) {
  switch (a.dtype) {
    case DType::kFloat32:
      return max_backward_indexed<float>(a);
    case DType::kFloat64:
      return max_backward_indexed<double>(a);
    case DType::kBfloat16:
      return max_backward_indexed<Bf16>(a);
    case DType::kFloat16:
      return max_backward_indexed<F16>(a);
  }
}

}  // namespace gb::GB_VARIANT
