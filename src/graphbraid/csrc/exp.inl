// Exponential of vectors; for floats within 2 ulp of the correctly rounded value. Brings simd.inl.

#include "simd.inl"

GB_INLINE VecF32 exp_lanes(VecF32 x) {
  const VecF32 clamped = x < -87.0f ? splat<VecF32>(-87.0f) : x > 88.0f ? splat<VecF32>(88.0f) : x;
  const VecF32 magic = splat<VecF32>(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const VecF32 n = (clamped * 1.44269504088896f + magic) - magic;
  VecF32 r = clamped - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  VecF32 p = splat<VecF32>(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const VecI32 power = __builtin_convertvector(n, VecI32) << 23;
  const VecF32 result = reinterpret_cast<VecF32>(reinterpret_cast<VecI32>(p) + power);
  return x < -87.0f ? VecF32{} : x != x ? x : result;
}
GB_INLINE VecF64 exp_lanes(VecF64 x) {
  for (int i = 0; i < GB_LANES_F32 / 2; ++i) x[i] = std::exp(x[i]);
  return x;
}

// x[i] = exp(x[i]) over n elements.
template <typename A>
GB_INLINE void exp_array(A* x, int64_t n) {
  constexpr int L = kLanes<A>;
  for (int64_t i = 0; i < n; i += L) {
    const int rest = static_cast<int>(std::min<int64_t>(L, n - i));
    store_n(x + i, exp_lanes(load_n(x + i, rest)), rest);
  }
}
