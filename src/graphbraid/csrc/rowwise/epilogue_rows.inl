// The epilogue's arithmetic: activations, slopes, factors of dropout, the loop over rows. Includes simd.inl.

#include "rowwise/epilogue_call.inl"
#include "variants/exp.inl"

// Dropout's factors, 0 or scale, of kLanes elements from `column` on.
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
  if (act == Act::kRelu) return x <= 0 ? V{} : x;  // NaN is not <= 0, so it stays
  if (act == Act::kLeakyRelu) return x > 0 ? x : x * slope;
  if (act == Act::kElu) return x > 0 ? x : exp_lanes(x) - A{1};
  return x;
}

// act' for the activation's result y. ReLU does not call it.
template <typename V, typename A>
GB_INLINE V slope_at(V y, Act act, A slope) {
  const V one = splat<V>(A{1});
  if (act == Act::kLeakyRelu) return y > 0 ? one : splat<V>(slope);
  if (act == Act::kElu) return y > 0 ? one : y + A{1};
  return one;
}

// The key of a row's dropout mask; 0 without dropout.
GB_INLINE uint32_t mask_key(const Epilogue& e, int64_t v) {
  return e.threshold ? dropout_row_key(e.seed, static_cast<uint64_t>(e.ids ? e.ids[v] : v)) : 0;
}

// Rows narrower than a vector, one after the other, without dropout: as many rows as a vector has lanes are
// `width` whole vectors. Row by row, each masked load would wait for the masked store before it.
template <Act kAct, typename T>
GB_INLINE void epilogue_narrow(const Epilogue& e, int64_t width, int64_t count, const T* x, T* out) {
  using A = Acc<T>;
  constexpr int L = kLanes<T>;
  const A slope = static_cast<A>(e.slope);
  const A* bias = static_cast<const A*>(e.bias);
  A biases[L * L];  // of those rows; each store overwrites what the one before wrote behind its row
  const int64_t period = width * L;
  if (bias)
    for (int64_t r = 0; r < L; ++r) store(biases + r * width, load_n(bias, static_cast<int>(width)));
  int64_t place = 0;
  const auto columns = [&](int64_t c, int n) GB_LAMBDA {
    Vec<T> y = load_n(x + c, n);
    if (bias) y += load(biases + place);
    store_n(out + c, activate(y, kAct, slope), n);
    place = place + L == period ? 0 : place + L;
  };
  int64_t c = 0;
  for (; c + L <= count; c += L) columns(c, L);
  if (c < count) columns(c, static_cast<int>(count - c));
}

// epilogue_rows with one activation.
template <Act kAct, typename T>
GB_INLINE void epilogue_rows_of(const Epilogue& e, int64_t width, int64_t first, int64_t last, const T* x,
                                int64_t x_stride, T* out, int64_t out_stride) {
  using A = Acc<T>;
  constexpr int L = kLanes<T>;
  const A scale = static_cast<A>(e.keep_scale), slope = static_cast<A>(e.slope);
  const A* bias = static_cast<const A*>(e.bias);
  if (width < L && x_stride == width && out_stride == width && !e.threshold)
    return epilogue_narrow<kAct>(e, width, (last - first) * width, x + first * width, out + first * width);
  for (int64_t v = first; v < last; ++v) {
    const T* from = x + v * x_stride;
    T* to = out + v * out_stride;
    const uint32_t key = mask_key(e, v);
    const auto columns = [&](int64_t c, int n) GB_LAMBDA {
      Vec<T> y = load_n(from + c, n);
      if (bias) y += load_n(bias + c, n);
      y = activate(y, kAct, slope);
      if (e.threshold) y *= mask_lanes(key, c, e.threshold, scale, y);
      store_n(to + c, y, n);
    };
    int64_t c = 0;
    for (; c + L <= width; c += L) columns(c, L);  // L is a constant, so these loads need no lane mask
    if (c < width) columns(c, static_cast<int>(width - c));
  }
}

// Never inlined, for the sake of those bits.
template <typename T>
__attribute__((noinline)) void epilogue_rows(const Epilogue& e, int64_t width, int64_t first, int64_t last,
                                             const T* x, int64_t x_stride, T* out, int64_t out_stride) {
  switch (e.act) {
    case Act::kNone:
      return epilogue_rows_of<Act::kNone>(e, width, first, last, x, x_stride, out, out_stride);
    case Act::kRelu:
      return epilogue_rows_of<Act::kRelu>(e, width, first, last, x, x_stride, out, out_stride);
    case Act::kLeakyRelu:
      return epilogue_rows_of<Act::kLeakyRelu>(e, width, first, last, x, x_stride, out, out_stride);
    case Act::kElu:
      return epilogue_rows_of<Act::kElu>(e, width, first, last, x, x_stride, out, out_stride);
  }
}

template void epilogue_rows(const Epilogue&, int64_t, int64_t, int64_t, const float*, int64_t, float*,
                            int64_t);
template void epilogue_rows(const Epilogue&, int64_t, int64_t, int64_t, const double*, int64_t, double*,
                            int64_t);
template void epilogue_rows(const Epilogue&, int64_t, int64_t, int64_t, const Bf16*, int64_t, Bf16*, int64_t);
template void epilogue_rows(const Epilogue&, int64_t, int64_t, int64_t, const F16*, int64_t, F16*, int64_t);
