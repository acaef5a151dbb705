// What follows a layer's matrix product, in one pass:  out = mask * act(x + bias), and its gradient
//
//   grad_x = grad * mask * act'(x + bias),  grad_bias = column sums of grad_x
//
//   x, out, grad, grad_x  (num_rows, width)      bias, grad_bias  (width,): every row adds it, all rows sum
//   to it
//
// act' is found from the output, the mask from the output (ReLU) or drawn again, so nothing more is kept. May
// run in place. Bound by reading and writing each row once.

namespace gb::GB_VARIANT {

#include "epilogue_rows.inl"

template <typename T>
void epilogue_typed(const EpilogueArgs& a) {
  parallel_static(a.num_rows, std::max<int64_t>(1, kFloatsWorth / a.width), [&](int64_t first, int64_t last) {
    epilogue_rows<T>(a.how, a.width, first, last, static_cast<const T*>(a.x.data), a.x.stride,
                     static_cast<T*>(a.out), a.out_stride);
  });
}

// Rows are shared out in fixed parts, so that the bias's gradient has the same bits with any number of
// threads.
constexpr int64_t kParts = 64;

template <typename T>
void epilogue_backward_typed(const EpilogueArgs& a) {
  using A = Acc<T>;
  constexpr int L = kLanes<T>;
  const Epilogue& e = a.how;
  const A scale = static_cast<A>(e.keep_scale), slope = static_cast<A>(e.slope);
  // A bias alone, in place: only its sums are asked for.
  const bool unchanged = e.act == Act::kNone && e.threshold == 0 && a.out == a.grad.data;
  std::vector<A> sums(static_cast<size_t>(a.grad_bias ? kParts * a.width : 0));
  parallel_if_worth(
      a.num_rows * a.width, kFloatsWorth, kParts, 1, [&](int64_t first_part, int64_t last_part) {
        for (int64_t part = first_part; part < last_part; ++part) {
          A* sum = a.grad_bias ? sums.data() + part * a.width : nullptr;
          const int64_t last = a.num_rows * (part + 1) / kParts;
          for (int64_t v = a.num_rows * part / kParts; v < last; ++v) {
            const T* grad = static_cast<const T*>(a.grad.data) + v * a.grad.stride;
            const T* out = static_cast<const T*>(a.x.data) + v * a.x.stride;
            T* grad_x = static_cast<T*>(a.out) + v * a.out_stride;
            const uint32_t key = mask_key(e, v);
            for (int64_t c = 0; c < a.width; c += L) {
              const int n = static_cast<int>(std::min<int64_t>(L, a.width - c));
              Vec<T> g = load_n(grad + c, n), y = load_n(out + c, n);
              if (e.act == Act::kRelu) {
                g = y > 0 ? g * scale : Vec<T>{};  // an output above 0 was kept
              } else {
                const Vec<T> mask =
                    e.threshold ? mask_lanes(key, c, e.threshold, scale, y) : splat<Vec<T>>(A{1});
                g *= mask * slope_at(y / scale, e.act, slope);
              }
              if (!unchanged) store_n(grad_x + c, g, n);
              if (sum) store_n(sum + c, load_n(sum + c, n) + g, n);
            }
          }
        }
      });
  if (!a.grad_bias) return;
  A* total = static_cast<A*>(a.grad_bias);
  std::fill(total, total + a.width, A{0});
  for (int64_t part = 0; part < kParts; ++part)
    for (int64_t c = 0; c < a.width; ++c) total[c] += sums[part * a.width + c];
}

void epilogue(const EpilogueArgs& a) {
  switch (a.dtype) {
    case DType::kFloat32:
      return epilogue_typed<float>(a);
    case DType::kFloat64:
      return epilogue_typed<double>(a);
    case DType::kBfloat16:
      return epilogue_typed<Bf16>(a);
    case DType::kFloat16:
      return epilogue_typed<F16>(a);
  }
}

void epilogue_backward(const EpilogueArgs& a) {
  switch (a.dtype) {
    case DType::kFloat32:
      return epilogue_backward_typed<float>(a);
    case DType::kFloat64:
      return epilogue_backward_typed<double>(a);
    case DType::kBfloat16:
      return epilogue_backward_typed<Bf16>(a);
    case DType::kFloat16:
      return epilogue_backward_typed<F16>(a);
  }
}

}  // namespace gb::GB_VARIANT
