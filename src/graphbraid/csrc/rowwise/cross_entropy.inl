// Cross entropy of rows of logits, and the gradient of its weighted mean in the same pass:
//
//   logits, grad  (num_rows, num_classes)      labels  (num_rows,)      weights  (num_classes,)
//
//   loss[v]    = w[v] * (log(sum of exp(logits[v] - max)) + max - logits[v, label]),  w[v] = weights[label]
//   grad[v, c] = w[v] / mass * (softmax(logits[v])[c] - (c == label ? 1 : 0)),  0 in ignored rows
//
// If there are `rows`, the row of logits and grad is rows[v] instead of v.
//
// A row's exponentials are written to grad and scaled there while they are in the cache. Bound by reading
// logits and writing grad once. A vector of logarithms serves as many rows as it has lanes.

namespace gb::GB_VARIANT {

#include "variants/exp.inl"

// The most rows and numbers of a part. By rows alone, a few hundred wide rows were one part.
constexpr int64_t kEntropyRows = 512;
constexpr int64_t kEntropyFloats = 1 << 13;
constexpr int kEntropyLanes = GB_LANES_F32;

// Rows of a part, in whole vectors. The sum of a part does not depend on the number of threads.
inline int64_t entropy_rows(int64_t num_classes) {
  const int64_t rows = kEntropyFloats / std::max<int64_t>(num_classes, 1) / kEntropyLanes * kEntropyLanes;
  return std::clamp<int64_t>(rows, kEntropyLanes, kEntropyRows);
}

// The first n lanes of p, and `rest` in the others.
GB_INLINE VecF32 lanes_or(const float* p, int n, float rest) {
  const VecF32 x = load_n(p, n);
  return n == kEntropyLanes ? x : lane_index<VecI32>() < n ? x : splat<VecF32>(rest);
}

GB_INLINE int entropy_lanes(int64_t column, int64_t width) {
  return static_cast<int>(std::min<int64_t>(kEntropyLanes, width - column));
}

// The largest number of a row. NaN is skipped: no comparison with it is true.
GB_INLINE float row_max(const float* x, int64_t width) {
  constexpr float least = -std::numeric_limits<float>::infinity();
  VecF32 most = splat<VecF32>(least);
  for (int64_t c = 0; c < width; c += kEntropyLanes) {
    const VecF32 at = lanes_or(x + c, entropy_lanes(c, width), least);
    most = at > most ? at : most;
  }
  return max_lanes(most);
}

// The sum of exp(x - max). The terms are written to `terms` unless it is null.
GB_INLINE float row_exponentials(const float* x, int64_t width, float max, float* terms) {
  VecF32 sum{};
  for (int64_t c = 0; c < width; c += kEntropyLanes) {
    const int n = entropy_lanes(c, width);
    const VecF32 e = exp_lanes(lanes_or(x + c, n, -std::numeric_limits<float>::infinity()) - max);
    // Lanes past the row's end add exp(-inf) = 0. If all logits are -inf they add NaN, as the row's terms do.
    if (terms) store_n(terms + c, e, n);
    sum += e;
  }
  return sum_lanes(sum);
}

GB_INLINE void scale_row(float* terms, int64_t width, float factor) {
  for (int64_t c = 0; c < width; c += kEntropyLanes) {
    const int n = entropy_lanes(c, width);
    store_n(terms + c, load_n(terms + c, n) * factor, n);
  }
}

// The sum of the losses of at most as many rows as a vector has lanes.
GB_INLINE double loss_of_rows(const CrossEntropyArgs& a, int64_t first, int64_t last) {
  float sums[kEntropyLanes], beside[kEntropyLanes], weights[kEntropyLanes];
  const float even = static_cast<float>(1.0 / a.mass);  // without weights, each row's share
  int count = 0;
  for (int64_t v = first; v < last; ++v) {
    const int64_t row = a.rows ? a.rows[v] : v;
    const float* x = a.logits + row * a.logits_stride;
    float* grad = a.grad ? a.grad + row * a.grad_stride : nullptr;
    const int64_t label = a.labels[v];
    if (label == a.ignored) {
      if (grad) std::fill(grad, grad + a.num_classes, 0.0f);
      continue;
    }
    const float weight = a.weights ? a.weights[label] : 1.0f;
    const float share = a.weights ? static_cast<float>(weight / a.mass) : even;
    const float max = row_max(x, a.num_classes);
    sums[count] = row_exponentials(x, a.num_classes, max, grad);
    if (grad) {
      scale_row(grad, a.num_classes, share / sums[count]);
      grad[label] -= share;
    }
    beside[count] = max - x[label];
    weights[count++] = weight;
  }
  if (count == 0) return 0;
  const VecF32 loss =
      (log_lanes(lanes_or(sums, count, 1.0f)) + load_n(beside, count)) * load_n(weights, count);
  double total = 0;
  for (int l = 0; l < count; ++l) total += static_cast<double>(loss[l]);
  return total;
}

// The same of rows of few classes, a row in each lane: column by column, no lane waits for another, and few
// are idle. The numbers of row r stand at columns[c * kEntropyLanes + r].
GB_INLINE double loss_of_narrow_rows(const CrossEntropyArgs& a, int64_t first, int64_t last) {
  constexpr int L = kEntropyLanes;
  const int count = static_cast<int>(last - first), width = static_cast<int>(a.num_classes);
  const float even = static_cast<float>(1.0 / a.mass);  // without weights, each row's share
  float columns[L * L] = {}, at_label[L] = {}, weights[L] = {}, shares[L] = {};
  const auto row_of = [&](int r) GB_LAMBDA { return a.rows ? a.rows[first + r] : first + r; };
  for (int r = 0; r < count; ++r) {
    const float* x = a.logits + row_of(r) * a.logits_stride;
    for (int c = 0; c < width; ++c) columns[c * L + r] = x[c];
    const int64_t label = a.labels[first + r];
    if (label == a.ignored) continue;
    at_label[r] = x[label];
    weights[r] = a.weights ? a.weights[label] : 1.0f;
    shares[r] = a.weights ? static_cast<float>(weights[r] / a.mass) : even;
  }
  VecF32 most = splat<VecF32>(-std::numeric_limits<float>::infinity()), sum{};
  for (int c = 0; c < width; ++c) {
    const VecF32 x = load(columns + c * L);
    most = x > most ? x : most;
  }
  for (int c = 0; c < width; ++c) {
    const VecF32 e = exp_lanes(load(columns + c * L) - most);
    store(columns + c * L, e);
    sum += e;
  }
  const VecF32 loss = (log_lanes(sum) + (most - load(at_label))) * load(weights), factor = load(shares) / sum;
  for (int c = 0; a.grad && c < width; ++c) store(columns + c * L, load(columns + c * L) * factor);
  double total = 0;
  for (int r = 0; r < count; ++r) {
    const int64_t label = a.labels[first + r];
    const bool counts = label != a.ignored;
    if (counts) total += static_cast<double>(loss[r]);
    if (!a.grad) continue;
    float* grad = a.grad + row_of(r) * a.grad_stride;
    for (int c = 0; c < width; ++c) grad[c] = counts ? columns[c * L + r] : 0.0f;
    if (counts) grad[label] -= shares[r];
  }
  return total;
}

double cross_entropy(const CrossEntropyArgs& a) {
  const int64_t rows = entropy_rows(a.num_classes), parts = (a.num_rows + rows - 1) / rows;
  std::vector<double> losses(static_cast<size_t>(parts));
  parallel_if_worth(a.num_rows * a.num_classes * 8, kFloatsWorth, parts, 1, [&](int64_t from, int64_t to) {
    for (int64_t part = from; part < to; ++part) {
      const int64_t last = std::min(a.num_rows, (part + 1) * rows);
      double sum = 0;
      for (int64_t v = part * rows; v < last; v += kEntropyLanes) {
        const int64_t end = std::min<int64_t>(last, v + kEntropyLanes);
        sum += a.num_classes <= kEntropyLanes ? loss_of_narrow_rows(a, v, end) : loss_of_rows(a, v, end);
      }
      losses[static_cast<size_t>(part)] = sum;
    }
  });
  double sum = 0;
  for (const double loss : losses) sum += loss;
  return sum;
}

}  // namespace gb::GB_VARIANT
