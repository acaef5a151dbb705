// What follows a layer's matrix product, in one pass:  out = mask * act(x + bias), and its gradient
//
//   grad_x = grad * mask * act'(x + bias),  grad_bias = column sums of grad_x
//
// act' is found from the output, the mask from the output (ReLU) or drawn again, so nothing more is kept. May
// run in place. Bound by reading and writing each row once.

namespace gb::GB_VARIANT {

#include "exp.inl"

typedef uint32_t VecU32 __attribute__((vector_size(kVectorBytes)));

// Factors of kLanes elements from `column` on under dropout: 0 or scale.
GB_INLINE VecF32 mask_lanes(uint32_t row_key, int64_t column, uint32_t threshold, float scale, VecF32) {
  VecU32 h;
  for (int i = 0; i < GB_LANES_F32; ++i) h[i] = static_cast<uint32_t>(i);
  h = (h + static_cast<uint32_t>(column)) * kPhi32 + row_key;
  h = (h ^ (h >> 16)) * 0x85EBCA6Bu;
  h = (h ^ (h >> 13)) * 0xC2B2AE35u;
  h = h ^ (h >> 16);
  return h >= threshold ? splat<VecF32>(scale) : VecF32{};
}
GB_INLINE VecF64 mask_lanes(uint32_t row_key, int64_t column, uint32_t threshold, double scale, VecF64) {
  VecF64 mask;
  for (int i = 0; i < GB_LANES_F32 / 2; ++i)
    mask[i] = dropout_bits(row_key, static_cast<uint32_t>(column + i)) >= threshold ? scale : 0.0;
  return mask;
}

template <typename V, typename A>
GB_INLINE V activate(V x, Act act, A slope) {
  if (act == Act::kRelu) return x > 0 ? x : x != x ? x : V{};
  if (act == Act::kLeakyRelu) return x > 0 ? x : x * slope;
  if (act == Act::kElu) return x > 0 ? x : exp_lanes(x) - A{1};
  return x;
}

// act' where the activation gave y.
template <typename V, typename A>
GB_INLINE V slope_at(V y, Act act, A slope) {
  const V one = splat<V>(A{1});
  if (act == Act::kRelu) return y > 0 ? one : V{};
  if (act == Act::kLeakyRelu) return y > 0 ? one : splat<V>(slope);
  if (act == Act::kElu) return y > 0 ? one : y + A{1};
  return one;
}

template <typename T>
void epilogue_typed(const EpilogueArgs& a) {
  using A = Acc<T>;
  constexpr int L = kLanes<T>;
  const A scale = static_cast<A>(a.keep_scale), slope = static_cast<A>(a.slope);
  const A* bias = static_cast<const A*>(a.bias);
  parallel_static(a.num_rows, std::max<int64_t>(1, 8192 / a.width), [&](int64_t first, int64_t last) {
    for (int64_t v = first; v < last; ++v) {
      const T* x = static_cast<const T*>(a.x) + v * a.width;
      T* out = static_cast<T*>(a.out) + v * a.width;
      const uint32_t key = dropout_row_key(a.seed, static_cast<uint64_t>(a.ids ? a.ids[v] : v));
      for (int64_t c = 0; c < a.width; c += L) {
        const int n = static_cast<int>(std::min<int64_t>(L, a.width - c));
        Vec<T> y = load_n(x + c, n);
        if (bias) y += load_n(bias + c, n);
        y = activate(y, a.act, slope);
        if (a.threshold) y *= mask_lanes(key, c, a.threshold, scale, y);
        store_n(out + c, y, n);
      }
    }
  });
}

// Rows are shared out in fixed parts, so that the bias's gradient has the same bits with any number of
// threads.
constexpr int64_t kParts = 64;

template <typename T>
void epilogue_backward_typed(const EpilogueArgs& a) {
  using A = Acc<T>;
  constexpr int L = kLanes<T>;
  const A scale = static_cast<A>(a.keep_scale), slope = static_cast<A>(a.slope);
  std::vector<A> sums(static_cast<size_t>(a.grad_bias ? kParts * a.width : 0));
  parallel_dynamic(kParts, 1, [&](int64_t first_part, int64_t last_part) {
    for (int64_t part = first_part; part < last_part; ++part) {
      A* sum = a.grad_bias ? sums.data() + part * a.width : nullptr;
      const int64_t last = a.num_rows * (part + 1) / kParts;
      for (int64_t v = a.num_rows * part / kParts; v < last; ++v) {
        const T* grad = static_cast<const T*>(a.grad) + v * a.width;
        const T* out = static_cast<const T*>(a.x) + v * a.width;
        T* grad_x = static_cast<T*>(a.out) + v * a.width;
        const uint32_t key = dropout_row_key(a.seed, static_cast<uint64_t>(a.ids ? a.ids[v] : v));
        for (int64_t c = 0; c < a.width; c += L) {
          const int n = static_cast<int>(std::min<int64_t>(L, a.width - c));
          Vec<T> g = load_n(grad + c, n), y = load_n(out + c, n);
          if (a.act == Act::kRelu) {
            g = y > 0 ? g * scale : Vec<T>{};  // an output above 0 was kept
          } else {
            const Vec<T> mask = a.threshold ? mask_lanes(key, c, a.threshold, scale, y) : splat<Vec<T>>(A{1});
            g *= mask * slope_at(y / scale, a.act, slope);
          }
          store_n(grad_x + c, g, n);
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
