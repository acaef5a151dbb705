// What follows a layer's matrix product, in one pass:  out = mask * act(x + bias), and its gradient
//
//   grad_x = grad * mask * act'(x + bias),  grad_bias = column sums of grad_x
//
//   x, out, grad, grad_x  (num_rows, width)
//   bias  (width,), added to each row      grad_bias  (width,), summed over the rows
//
// act' is computed from the output. The mask is drawn again; with ReLU, the output shows it. So nothing else
// is kept. May run in place. Bound by reading and writing each row once.

namespace gb::GB_VARIANT {

#include "rowwise/epilogue_rows.inl"

template <typename T>
void epilogue_typed(const EpilogueArgs& a) {
  parallel_static(a.num_rows, std::max<int64_t>(1, kFloatsWorth / a.width), [&](int64_t first, int64_t last) {
    epilogue_rows<T>(a.how, a.width, first, last, static_cast<const T*>(a.x.data), a.x.stride,
                     static_cast<T*>(a.out), a.out_stride);
  });
}

// Rows are divided into so many parts, or each is one, so that the bias's gradient has the same bits with any
// number of threads.
constexpr int64_t kMostParts = 64;

// Adds `count` columns from `grad` on, in kVectors vectors, of the rows [first, last) to `sum`.
template <int kVectors, typename T>
void add_columns(const T* grad, int64_t stride, int64_t first, int64_t last, int64_t count, Acc<T>* sum) {
  constexpr int L = kLanes<T>;
  const int rest = static_cast<int>(count - (kVectors - 1) * L);
  const auto lanes = [rest](int i) GB_LAMBDA { return i + 1 < kVectors ? L : rest; };
  Vec<T> total[kVectors];
  for (int i = 0; i < kVectors; ++i) total[i] = load_n(sum + i * L, lanes(i));
  for (int64_t v = first; v < last; ++v)
    for (int i = 0; i < kVectors; ++i) total[i] += load_n(grad + v * stride + i * L, lanes(i));
  for (int i = 0; i < kVectors; ++i) store_n(sum + i * L, total[i], lanes(i));
}

// Adds all columns to `sum`, a few vectors at a time: their sums stay in registers over all rows.
template <typename T>
void add_rows(const Rows& grad, int64_t width, int64_t first, int64_t last, Acc<T>* sum) {
  constexpr int64_t kBlock = 4 * kLanes<T>;
  for (int64_t c = 0; c < width; c += kBlock) {
    const T* from = static_cast<const T*>(grad.data) + c;
    const int64_t count = std::min(kBlock, width - c);
    with_count<4>(static_cast<int>((count + kLanes<T> - 1) / kLanes<T>), [&](auto vectors) {
      add_columns<vectors>(from, grad.stride, first, last, count, sum + c);
    });
  }
}

template <typename T>
void epilogue_backward_typed(const EpilogueArgs& a) {
  using A = Acc<T>;
  constexpr int L = kLanes<T>;
  const Epilogue& e = a.how;
  const A scale = static_cast<A>(e.keep_scale), slope = static_cast<A>(e.slope);
  // With a bias alone and in place, grad_x is grad: only the column sums are computed.
  const bool unchanged = e.act == Act::kNone && e.threshold == 0 && a.out == a.grad.data;
  const int64_t parts = std::clamp<int64_t>(a.num_rows, 1, kMostParts);
  std::vector<A> sums(static_cast<size_t>(a.grad_bias ? parts * a.width : 0));
  parallel_if_worth(a.num_rows * a.width, kFloatsWorth, parts, 1, [&](int64_t first_part, int64_t last_part) {
    for (int64_t part = first_part; part < last_part; ++part) {
      A* sum = a.grad_bias ? sums.data() + part * a.width : nullptr;
      const int64_t first = a.num_rows * part / parts, last = a.num_rows * (part + 1) / parts;
      if (unchanged) {
        if (sum) add_rows<T>(a.grad, a.width, first, last, sum);
        continue;
      }
      // Rows whose sums are added while the first-level cache has them: the sums then stay in registers.
      constexpr bool adds_rows = std::is_same_v<T, A>;  // others are rounded when they are written
      constexpr int64_t kRows = 32;
      for (int64_t v = first, added = first; v < last; ++v) {
        const T* grad = static_cast<const T*>(a.grad.data) + v * a.grad.stride;
        const T* out = static_cast<const T*>(a.x.data) + v * a.x.stride;
        T* grad_x = static_cast<T*>(a.out) + v * a.out_stride;
        const uint32_t key = mask_key(e, v);
        for (int64_t c = 0; c < a.width; c += L) {
          const int n = static_cast<int>(std::min<int64_t>(L, a.width - c));
          Vec<T> g = load_n(grad + c, n), y = load_n(out + c, n);
          if (e.act == Act::kRelu) {
            g = y <= 0 ? Vec<T>{} : g * scale;  // y > 0: kept by the mask. NaN passes, as in PyTorch
          } else {
            const Vec<T> mask = e.threshold ? mask_lanes(key, c, e.threshold, scale, y) : splat<Vec<T>>(A{1});
            g *= mask * slope_at(y / scale, e.act, slope);  // y / scale: act's output, or mask is 0
          }
          store_n(grad_x + c, g, n);
          if (!adds_rows && sum) store_n(sum + c, load_n(sum + c, n) + g, n);
        }
        if (adds_rows && sum && (v + 1 == last || v + 1 - added == kRows)) {
          add_rows<T>({a.out, a.out_stride}, a.width, added, v + 1, sum);
          added = v + 1;
        }
      }
    }
  });
  if (!a.grad_bias) return;
  A* total = static_cast<A*>(a.grad_bias);
  std::fill(total, total + a.width, A{0});
  for (int64_t part = 0; part < parts; ++part)
    for (int64_t c = 0; c < a.width; ++c) total[c] += sums[part * a.width + c];
}

void epilogue(const EpilogueArgs& a) {
  for_dtype(a.dtype, [&](auto type) { epilogue_typed<decltype(type)>(a); });
}

void epilogue_backward(const EpilogueArgs& a) {
  for_dtype(a.dtype, [&](auto type) { epilogue_backward_typed<decltype(type)>(a); });
}

}  // namespace gb::GB_VARIANT
