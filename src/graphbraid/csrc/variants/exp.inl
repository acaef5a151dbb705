// Exponential of vectors; for floats within 2 ulp of the correctly rounded value. Includes simd.inl.

#include "variants/simd.inl"

// exp(r) for |r| at most half of log(2).
GB_INLINE VecF32 exp_polynomial(VecF32 r) {
  VecF32 p = splat<VecF32>(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  return p * (r * r) + (r + 1.0f);
}

#if GB_LANES_F32 == 16
GB_INLINE VecF32 exp_lanes(VecF32 x) {
  // min_ps returns its second operand if one is NaN, so a NaN in x stays.
  const VecF32 at_most =
      reinterpret_cast<VecF32>(_mm512_min_ps(_mm512_set1_ps(89.0f), reinterpret_cast<__m512>(x)));
  const VecF32 n = reinterpret_cast<VecF32>(_mm512_roundscale_ps(
      reinterpret_cast<__m512>(at_most * 1.44269504088896f), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  VecF32 r = at_most - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  const VecF32 p = exp_polynomial(r);
  const __mmask16 in_range =
      _mm512_cmp_ps_mask(reinterpret_cast<__m512>(x), _mm512_set1_ps(-87.0f), _CMP_NLT_UQ);
  return reinterpret_cast<VecF32>(
      _mm512_maskz_scalef_ps(in_range, reinterpret_cast<__m512>(p), reinterpret_cast<__m512>(n)));
}
#else
GB_INLINE VecF32 exp_lanes(VecF32 x) {
  const VecF32 clamped = x < -87.0f ? splat<VecF32>(-87.0f) : x > 88.0f ? splat<VecF32>(88.0f) : x;
  const VecF32 magic = splat<VecF32>(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const VecF32 n = (clamped * 1.44269504088896f + magic) - magic;
  // r = x - n log(2), with log(2) in two parts: the first has 9 bits, so that n times it is exact.
  VecF32 r = clamped - n * 0.693359375f;
  r = r + n * 2.12194440e-4f;
  const VecF32 p = exp_polynomial(r);
  const VecI32 power = __builtin_convertvector(n, VecI32) << 23;  // adds n to the exponent of p
  const VecF32 result = reinterpret_cast<VecF32>(reinterpret_cast<VecI32>(p) + power);
  return x < -87.0f ? VecF32{} : x != x ? x : result;
}
#endif
// Doubles are for checks of gradients: one code for all processors, element by element.
__attribute__((noinline, unused)) static void exp_each(double* x) {
  for (int i = 0; i < GB_LANES_F32 / 2; ++i) x[i] = std::exp(x[i]);
}
GB_INLINE VecF64 exp_lanes(VecF64 x) {
  double each[GB_LANES_F32 / 2];
  store(each, x);
  exp_each(each);
  return load(each);
}

// Natural logarithm of normal positive numbers.
GB_INLINE VecF32 log_lanes(VecF32 x) {
  VecI32 bits = reinterpret_cast<VecI32>(x);
  const VecI32 steps = (bits - 0x3F3504F3) >> 23;  // x = 2^steps * m, m in [sqrt(1/2), sqrt(2))
  bits -= steps << 23;
  const VecF32 r = reinterpret_cast<VecF32>(bits) - 1.0f, n = __builtin_convertvector(steps, VecF32);
  VecF32 p = splat<VecF32>(7.0376836292e-2f);
  p = p * r - 1.1514610310e-1f;
  p = p * r + 1.1676998740e-1f;
  p = p * r - 1.2420140846e-1f;
  p = p * r + 1.4249322787e-1f;
  p = p * r - 1.6668057665e-1f;
  p = p * r + 2.0000714765e-1f;
  p = p * r - 2.4999993993e-1f;
  p = p * r + 3.3333331174e-1f;
  const VecF32 square = r * r;
  p = p * r * square - n * 2.12194440e-4f - 0.5f * square;
  const VecF32 result = r + p + n * 0.693359375f;
  return x != x ? x : result;
}
GB_INLINE VecF64 log_lanes(VecF64 x) {
  for (int i = 0; i < GB_LANES_F32 / 2; ++i) x[i] = std::log(x[i]);
  return x;
}
