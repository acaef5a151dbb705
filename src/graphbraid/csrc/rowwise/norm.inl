// Layer normalisation of each row and batch normalisation of each column:
//
//   out = (x - mean) * rstd * weight + bias,  rstd = 1 / sqrt(variance + eps)
//
//   layer:  mean, rstd  (num_rows,)  sums along a row          x, out, grad  (num_rows, width)
//   batch:  mean, rstd  (width,)     sums down a column        weight, bias  (width,)
//
// with mean and variance of the row, or of the column (column_moments, or running statistics). The gradients,
// with y = (x - mean) * rstd and averages over the same row or column:
//
//   grad_weight = column sums of grad * y,  grad_bias = column sums of grad
//   grad_x = rstd * (h - average(h) - y * average(h * y)),  h = grad * weight
//
// Backward reads x, mean and rstd. Variances are sums of squared differences from the mean, never differences
// of squares, which would cancel. The rounded mean is off by the average of those differences, by which both
// are corrected. Bound by reading and writing each row once (batch normalisation: twice).

namespace gb::GB_VARIANT {

#include "variants/simd.inl"

// The rows that are worth their own task; and the bytes of a block of rows whose strips stay in the
// first-level cache.
inline int64_t rows_per_task(int64_t width) { return std::max<int64_t>(1, 8192 / width); }
constexpr int64_t kNormBlockBytes = 65536;

// The number of parts of the rows is fixed, so that column sums have the same bits on any number of threads.
constexpr int64_t kNormParts = 64;

template <typename T>
GB_INLINE int lanes_left(int64_t column, int64_t width) {
  return static_cast<int>(std::min<int64_t>(kLanes<T>, width - column));
}

// x - mean in the first n lanes, zero in the others.
template <typename T>
GB_INLINE Vec<T> centred(const T* x, Vec<T> mean, int n) {
  const Vec<T> difference = load_n(x, n) - mean;
  if (n == kLanes<T>) return difference;
  Mask<T> lane;
  for (int i = 0; i < kLanes<T>; ++i) lane[i] = i;
  return lane < n ? difference : Vec<T>{};
}

// weight[column ...], or ones.
template <typename A>
GB_INLINE Vec<A> weight_lanes(const A* weight, int64_t column, int n) {
  return weight ? load_n(weight + column, n) : splat<Vec<A>>(A{1});
}

template <typename T>
GB_INLINE void row_moments(const T* x, int64_t width, Acc<T>& mean, Acc<T>& variance) {
  using A = Acc<T>;
  constexpr int L = kLanes<T>;
  const A count = static_cast<A>(width);
  Vec<T> sum{};
  for (int64_t c = 0; c < width; c += L) sum += load_n(x + c, lanes_left<T>(c, width));
  mean = sum_lanes(sum) / count;
  Vec<T> first{}, second{};
  for (int64_t c = 0; c < width; c += L) {
    const Vec<T> d = centred(x + c, splat<Vec<T>>(mean), lanes_left<T>(c, width));
    first += d;
    second += d * d;
  }
  const A rest = sum_lanes(first) / count;
  mean += rest;
  variance = sum_lanes(second) / count - rest * rest;
  if (variance < 0) variance = 0;  // NaN is not below 0, so it stays
}

template <typename T>
void layer_norm_typed(const NormArgs& a) {
  using A = Acc<T>;
  constexpr int L = kLanes<T>;
  const A *weight = static_cast<const A*>(a.weight), *bias = static_cast<const A*>(a.bias);
  A *means = static_cast<A*>(a.new_mean), *rstds = static_cast<A*>(a.new_rstd);
  parallel_static(a.num_rows, rows_per_task(a.width), [&](int64_t first, int64_t last) {
    for (int64_t v = first; v < last; ++v) {
      const T* x = static_cast<const T*>(a.x) + v * a.width;
      T* out = static_cast<T*>(a.out) + v * a.width;
      A mean, variance;
      row_moments(x, a.width, mean, variance);
      const A rstd = A{1} / std::sqrt(variance + static_cast<A>(a.eps));
      for (int64_t c = 0; c < a.width; c += L) {
        const int n = lanes_left<T>(c, a.width);
        Vec<T> y = (load_n(x + c, n) - mean) * rstd * weight_lanes(weight, c, n);
        if (bias) y += load_n(bias + c, n);
        store_n(out + c, y, n);
      }
      if (means) means[v] = mean;
      if (rstds) rstds[v] = rstd;
    }
  });
}

// Calls body(row, weight_sum, bias_sum) for each row, with the (width,) sums of the row's part. Then adds up
// the parts in order into grad_weight and grad_bias.
template <typename A, typename Body>
void with_column_sums(const NormArgs& a, const Body& body) {
  const int64_t width = a.width;
  std::vector<A> sums(static_cast<size_t>(kNormParts * 2 * width));
  parallel_dynamic(kNormParts, 1, [&](int64_t first_part, int64_t last_part) {
    for (int64_t part = first_part; part < last_part; ++part) {
      A* sum = sums.data() + part * 2 * width;
      const int64_t last = a.num_rows * (part + 1) / kNormParts;
      for (int64_t v = a.num_rows * part / kNormParts; v < last; ++v) body(v, sum, sum + width);
    }
  });
  A *grad_weight = static_cast<A*>(a.grad_weight), *grad_bias = static_cast<A*>(a.grad_bias);
  for (int64_t c = 0; c < width; ++c) {
    A weight_sum{}, bias_sum{};
    for (int64_t part = 0; part < kNormParts; ++part) {
      weight_sum += sums[static_cast<size_t>(part * 2 * width + c)];
      bias_sum += sums[static_cast<size_t>(part * 2 * width + width + c)];
    }
    if (grad_weight) grad_weight[c] = weight_sum;
    if (grad_bias) grad_bias[c] = bias_sum;
  }
}

template <typename T>
void layer_norm_backward_typed(const NormArgs& a) {
  using A = Acc<T>;
  constexpr int L = kLanes<T>;
  const A* weight = static_cast<const A*>(a.weight);
  const A count = static_cast<A>(a.width);
  const auto row = [&](int64_t v, A* weight_sum, A* bias_sum) {
    const T* x = static_cast<const T*>(a.x) + v * a.width;
    const T* grad = static_cast<const T*>(a.grad) + v * a.width;
    const A mean = static_cast<const A*>(a.mean)[v], rstd = static_cast<const A*>(a.rstd)[v];
    Vec<T> sum{}, product{};
    for (int64_t c = 0; c < a.width; c += L) {
      const int n = lanes_left<T>(c, a.width);
      const Vec<T> g = load_n(grad + c, n), y = centred(x + c, splat<Vec<T>>(mean), n) * rstd;
      const Vec<T> h = g * weight_lanes(weight, c, n);
      sum += h;
      product += h * y;
      store_n(weight_sum + c, load_n(weight_sum + c, n) + g * y, n);
      store_n(bias_sum + c, load_n(bias_sum + c, n) + g, n);
    }
    if (!a.out) return;
    T* grad_x = static_cast<T*>(a.out) + v * a.width;
    const A average = sum_lanes(sum) / count, along = sum_lanes(product) / count;
    for (int64_t c = 0; c < a.width; c += L) {
      const int n = lanes_left<T>(c, a.width);
      const Vec<T> y = (load_n(x + c, n) - mean) * rstd;
      const Vec<T> h = load_n(grad + c, n) * weight_lanes(weight, c, n);
      store_n(grad_x + c, rstd * (h - average - y * along), n);
    }
  };
  with_column_sums<A>(a, row);
}

// The moments of some rows: their count, and each column's mean and sum of squared differences from it.
struct Moments {
  explicit Moments(int64_t width) : mean(static_cast<size_t>(width)), squares(mean.size()) {}

  // Adds other rows by the formula of Chan, Golub and LeVeque, which loses no digits if the means are far
  // apart. Not inlined, as below: it runs once per block, and each dtype would get a copy.
  __attribute__((noinline)) void add(const Moments& other) {
    if (other.count == 0) return;
    const double total = count + other.count, share = other.count / total, weight = count * share;
    for (size_t c = 0; c < mean.size(); ++c) {
      const double difference = other.mean[c] - mean[c];
      squares[c] += other.squares[c] + difference * difference * weight;
      mean[c] += difference * share;
    }
    count = total;
  }

  double count = 0;
  std::vector<double> mean, squares;
};

// Writes the moments of `count` columns from `column` on. `rest` and `squares` are sums of the differences
// from the rounded means and of their squares, by which both are corrected.
template <typename A>
__attribute__((noinline)) void keep_moments(const A* mean, const A* rest, const A* squares, int count,
                                            int64_t column, Moments& out) {
  for (int i = 0; i < count; ++i) {
    const size_t c = static_cast<size_t>(column + i);
    const double left = static_cast<double>(rest[i]), correction = left / out.count;
    out.mean[c] = static_cast<double>(mean[i]) + correction;
    out.squares[c] = static_cast<double>(squares[i]) - correction * left;
  }
}

// Computes the moments of S vectors of columns, the last of n lanes, over a few rows that stay in the cache.
template <typename T, int S>
GB_INLINE void strip_moments(const NormArgs& a, int64_t first, int64_t last, int64_t column, int n,
                             Moments& out) {
  using A = Acc<T>;
  constexpr int L = kLanes<T>;
  const T* x = static_cast<const T*>(a.x) + column;
  const A count = static_cast<A>(last - first);
  const auto lanes = [n](int s) { return s + 1 < S ? L : n; };
  Vec<T> mean[S]{}, rest[S]{}, squares[S]{};
  for (int64_t v = first; v < last; ++v)
    for (int s = 0; s < S; ++s) mean[s] += load_n(x + v * a.width + s * L, lanes(s));
  for (int s = 0; s < S; ++s) mean[s] /= count;
  for (int64_t v = first; v < last; ++v)
    for (int s = 0; s < S; ++s) {
      const Vec<T> d = load_n(x + v * a.width + s * L, lanes(s)) - mean[s];
      rest[s] += d;
      squares[s] += d * d;
    }
  A kept[3][S * L];
  for (int s = 0; s < S; ++s) {
    store(kept[0] + s * L, mean[s]);
    store(kept[1] + s * L, rest[s]);
    store(kept[2] + s * L, squares[s]);
  }
  keep_moments(kept[0], kept[1], kept[2], (S - 1) * L + n, column, out);
}

template <typename T>
void block_moments(const NormArgs& a, int64_t first, int64_t last, Moments& out) {
  constexpr int L = kLanes<T>;
  out.count = static_cast<double>(last - first);
  int64_t c = 0;
  for (; c + 4 * L <= a.width; c += 4 * L) strip_moments<T, 4>(a, first, last, c, L, out);
  for (; c + 2 * L <= a.width; c += 2 * L) strip_moments<T, 2>(a, first, last, c, L, out);
  for (; c < a.width; c += L) strip_moments<T, 1>(a, first, last, c, lanes_left<T>(c, a.width), out);
}

template <typename T>
void column_moments_typed(const NormArgs& a) {
  using A = Acc<T>;
  const int64_t width = a.width;
  // A block has so few rows that the second pass over a strip of them reads the first-level cache.
  const int64_t block =
      std::clamp<int64_t>(kNormBlockBytes / (width * static_cast<int64_t>(sizeof(T))), 8, 256);
  std::vector<Moments> moments(static_cast<size_t>(kNormParts), Moments(width));
  parallel_dynamic(kNormParts, 1, [&](int64_t first_part, int64_t last_part) {
    Moments of_block(width);
    for (int64_t part = first_part; part < last_part; ++part) {
      const int64_t last = a.num_rows * (part + 1) / kNormParts;
      for (int64_t v = a.num_rows * part / kNormParts; v < last; v += block) {
        block_moments<T>(a, v, std::min(v + block, last), of_block);
        moments[static_cast<size_t>(part)].add(of_block);
      }
    }
  });
  Moments all(width);
  for (const Moments& part : moments) all.add(part);
  A *mean = static_cast<A*>(a.new_mean), *variance = static_cast<A*>(a.new_variance);
  for (int64_t c = 0; c < width; ++c) {
    const double squares = all.squares[static_cast<size_t>(c)];
    mean[c] = static_cast<A>(all.mean[static_cast<size_t>(c)]);
    variance[c] = static_cast<A>(all.count > 0 && !(squares < 0) ? squares / all.count : 0);
  }
}

template <typename T>
void batch_norm_typed(const NormArgs& a) {
  using A = Acc<T>;
  constexpr int L = kLanes<T>;
  const A *mean = static_cast<const A*>(a.mean), *rstd = static_cast<const A*>(a.rstd);
  const A *weight = static_cast<const A*>(a.weight), *bias = static_cast<const A*>(a.bias);
  parallel_static(a.num_rows, rows_per_task(a.width), [&](int64_t first, int64_t last) {
    for (int64_t v = first; v < last; ++v) {
      const T* x = static_cast<const T*>(a.x) + v * a.width;
      T* out = static_cast<T*>(a.out) + v * a.width;
      for (int64_t c = 0; c < a.width; c += L) {
        const int n = lanes_left<T>(c, a.width);
        Vec<T> y = (load_n(x + c, n) - load_n(mean + c, n)) * load_n(rstd + c, n);
        y *= weight_lanes(weight, c, n);
        if (bias) y += load_n(bias + c, n);
        store_n(out + c, y, n);
      }
    }
  });
}

template <typename T>
void batch_norm_backward_typed(const NormArgs& a) {
  using A = Acc<T>;
  constexpr int L = kLanes<T>;
  const A *mean = static_cast<const A*>(a.mean), *rstd = static_cast<const A*>(a.rstd);
  const A* weight = static_cast<const A*>(a.weight);
  const auto row = [&](int64_t v, A* weight_sum, A* bias_sum) {
    const T* x = static_cast<const T*>(a.x) + v * a.width;
    const T* grad = static_cast<const T*>(a.grad) + v * a.width;
    for (int64_t c = 0; c < a.width; c += L) {
      const int n = lanes_left<T>(c, a.width);
      const Vec<T> g = load_n(grad + c, n);
      const Vec<T> y = (load_n(x + c, n) - load_n(mean + c, n)) * load_n(rstd + c, n);
      store_n(weight_sum + c, load_n(weight_sum + c, n) + g * y, n);
      store_n(bias_sum + c, load_n(bias_sum + c, n) + g, n);
    }
  };
  with_column_sums<A>(a, row);
  if (!a.out) return;
  // grad_x = scale * (grad - average - (x - mean) * along); average and along are 0 for running statistics.
  std::vector<A> scale(static_cast<size_t>(a.width)), average(scale.size()), along(scale.size());
  for (size_t c = 0; c < scale.size(); ++c) {
    scale[c] = rstd[c] * (weight ? weight[c] : A{1});
    if (!a.from_rows || a.num_rows == 0) continue;
    average[c] = static_cast<const A*>(a.grad_bias)[c] / static_cast<A>(a.num_rows);
    along[c] = static_cast<const A*>(a.grad_weight)[c] / static_cast<A>(a.num_rows) * rstd[c];
  }
  parallel_static(a.num_rows, rows_per_task(a.width), [&](int64_t first, int64_t last) {
    for (int64_t v = first; v < last; ++v) {
      const T* x = static_cast<const T*>(a.x) + v * a.width;
      const T* grad = static_cast<const T*>(a.grad) + v * a.width;
      T* grad_x = static_cast<T*>(a.out) + v * a.width;
      for (int64_t c = 0; c < a.width; c += L) {
        const int n = lanes_left<T>(c, a.width);
        Vec<T> g = load_n(grad + c, n);
        if (a.from_rows) {
          const Vec<T> d = load_n(x + c, n) - load_n(mean + c, n);
          g -= load_n(average.data() + c, n) + d * load_n(along.data() + c, n);
        }
        store_n(grad_x + c, g * load_n(scale.data() + c, n), n);
      }
    }
  });
}

void layer_norm(const NormArgs& a) {
  for_dtype(a.dtype, [&](auto type) { layer_norm_typed<decltype(type)>(a); });
}

void layer_norm_backward(const NormArgs& a) {
  for_dtype(a.dtype, [&](auto type) { layer_norm_backward_typed<decltype(type)>(a); });
}

void column_moments(const NormArgs& a) {
  for_dtype(a.dtype, [&](auto type) { column_moments_typed<decltype(type)>(a); });
}

void batch_norm(const NormArgs& a) {
  for_dtype(a.dtype, [&](auto type) { batch_norm_typed<decltype(type)>(a); });
}

void batch_norm_backward(const NormArgs& a) {
  for_dtype(a.dtype, [&](auto type) { batch_norm_backward_typed<decltype(type)>(a); });
}

}  // namespace gb::GB_VARIANT
