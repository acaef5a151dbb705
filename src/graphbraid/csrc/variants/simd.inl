// Vectors of the variant's width over rows of any storage type. Included inside each kernel's text, so it
// stands in namespace gb::GB_VARIANT already; functions must be inlined (a vector in a signature has no
// portable ABI).

#ifndef GB_INLINE
#define GB_INLINE inline __attribute__((always_inline))
#define GB_LAMBDA __attribute__((always_inline))
#endif

constexpr int kVectorBytes = GB_LANES_F32 * 4;

typedef float VecF32 __attribute__((vector_size(kVectorBytes)));
typedef double VecF64 __attribute__((vector_size(kVectorBytes)));
typedef int32_t VecI32 __attribute__((vector_size(kVectorBytes)));
typedef int64_t VecI64 __attribute__((vector_size(kVectorBytes)));
typedef uint32_t VecU32 __attribute__((vector_size(kVectorBytes)));
typedef uint16_t VecU16 __attribute__((vector_size(kVectorBytes / 2)));  // as many lanes as VecF32
typedef VecF32 LooseF32 __attribute__((aligned(4), may_alias));
typedef VecF64 LooseF64 __attribute__((aligned(8), may_alias));
typedef VecI32 LooseI32 __attribute__((aligned(4), may_alias));
typedef VecU16 LooseU16 __attribute__((aligned(2), may_alias));

template <typename A>
struct VecOf;
template <>
struct VecOf<float> {
  using type = VecF32;
  using mask = VecI32;
};
template <>
struct VecOf<double> {
  using type = VecF64;
  using mask = VecI64;
};
// The vector a row of T is summed in, and how many elements it holds.
template <typename T>
using Vec = typename VecOf<Acc<T>>::type;
template <typename T>
using Mask = typename VecOf<Acc<T>>::mask;
template <typename T>
constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(Acc<T>));

// Calls f(std::integral_constant<int, 0>) ... f(<N - 1>): indices known when compiling, so that arrays of
// vectors stay in registers.
template <int... I, typename F>
GB_INLINE void unroll_(std::integer_sequence<int, I...>, F&& f) {
  (f(std::integral_constant<int, I>{}), ...);
}
template <int N, typename F>
GB_INLINE void unroll(F&& f) {
  unroll_(std::make_integer_sequence<int, N>{}, static_cast<F&&>(f));
}

// Calls f with n, in [1, Max], as a constant.
template <int Max, typename F>
GB_INLINE void with_count(int n, F&& f) {
  if constexpr (Max > 1) {
    if (n < Max) return with_count<Max - 1>(n, f);
  }
  f(std::integral_constant<int, Max>{});
}

// Calls f with a value of the dtype's type.
template <typename F>
void for_dtype(DType dtype, const F& f) {
  switch (dtype) {
    case DType::kFloat32:
      return f(float{});
    case DType::kFloat64:
      return f(double{});
    case DType::kBfloat16:
      return f(Bf16{});
    case DType::kFloat16:
      return f(F16{});
  }
}

template <typename V, typename A>
GB_INLINE V splat(A value) {
  return value - V{};  // broadcasts; x - 0 is x for every x, also for -0.0
}

GB_INLINE VecF32 load(const float* p) { return *reinterpret_cast<const LooseF32*>(p); }
GB_INLINE VecF64 load(const double* p) { return *reinterpret_cast<const LooseF64*>(p); }
GB_INLINE VecI32 load(const int32_t* p) { return *reinterpret_cast<const LooseI32*>(p); }
GB_INLINE VecU16 load(const uint16_t* p) { return *reinterpret_cast<const LooseU16*>(p); }
GB_INLINE void store(float* p, VecF32 v) { *reinterpret_cast<LooseF32*>(p) = v; }
GB_INLINE void store(double* p, VecF64 v) { *reinterpret_cast<LooseF64*>(p) = v; }
GB_INLINE void store(int32_t* p, VecI32 v) { *reinterpret_cast<LooseI32*>(p) = v; }
GB_INLINE void store(uint16_t* p, VecU16 v) { *reinterpret_cast<LooseU16*>(p) = v; }

// The number of each lane.
template <typename M>
GB_INLINE M lane_index() {
  M lane{};
  for (int l = 0; l < static_cast<int>(sizeof(M) / sizeof(lane[0])); ++l) lane[l] = l;
  return lane;
}

// The first n elements of a vector, 0 < n <= lanes. load_n puts zeros in the other lanes and reads nothing
// past them; store_n writes nothing past them. Each is a few instructions in every variant: a loop over lanes
// would be unrolled in hundreds of places.
#if GB_LANES_F32 == 16

GB_INLINE __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }

GB_INLINE VecF32 load_n(const float* p, int n) {
  return reinterpret_cast<VecF32>(_mm512_maskz_loadu_ps(first_lanes(n), p));
}
GB_INLINE VecF64 load_n(const double* p, int n) {
  return reinterpret_cast<VecF64>(_mm512_maskz_loadu_pd(static_cast<__mmask8>(first_lanes(n)), p));
}
GB_INLINE VecI32 load_n(const int32_t* p, int n) {
  return reinterpret_cast<VecI32>(_mm512_maskz_loadu_epi32(first_lanes(n), p));
}
GB_INLINE VecU16 load_n(const uint16_t* p, int n) {
  return reinterpret_cast<VecU16>(_mm256_maskz_loadu_epi16(first_lanes(n), p));
}
GB_INLINE void store_n(float* p, VecF32 v, int n) {
  _mm512_mask_storeu_ps(p, first_lanes(n), reinterpret_cast<__m512>(v));
}
GB_INLINE void store_n(double* p, VecF64 v, int n) {
  _mm512_mask_storeu_pd(p, static_cast<__mmask8>(first_lanes(n)), reinterpret_cast<__m512d>(v));
}
GB_INLINE void store_n(int32_t* p, VecI32 v, int n) {
  _mm512_mask_storeu_epi32(p, first_lanes(n), reinterpret_cast<__m512i>(v));
}
GB_INLINE void store_n(uint16_t* p, VecU16 v, int n) {
  _mm256_mask_storeu_epi16(p, first_lanes(n), reinterpret_cast<__m256i>(v));
}

#elif GB_LANES_F32 == 8

// Whole vectors by the branch: a masked load is slower, measured up to 1.7 times in spmm.
GB_INLINE VecF32 load_n(const float* p, int n) {
  if (n == GB_LANES_F32) return load(p);
  return reinterpret_cast<VecF32>(_mm256_maskload_ps(p, reinterpret_cast<__m256i>(lane_index<VecI32>() < n)));
}
GB_INLINE VecF64 load_n(const double* p, int n) {
  if (n == GB_LANES_F32 / 2) return load(p);
  return reinterpret_cast<VecF64>(_mm256_maskload_pd(p, reinterpret_cast<__m256i>(lane_index<VecI64>() < n)));
}
GB_INLINE VecI32 load_n(const int32_t* p, int n) {
  if (n == GB_LANES_F32) return load(p);
  return reinterpret_cast<VecI32>(
      _mm256_maskload_epi32(p, reinterpret_cast<__m256i>(lane_index<VecI32>() < n)));
}
// Pairs by a masked load of 32-bit lanes, then the last element alone: for an odd n, memory may end there.
GB_INLINE VecU16 load_n(const uint16_t* p, int n) {
  if (n == GB_LANES_F32) return load(p);
  const __m128i is_pair = _mm_cmpgt_epi32(_mm_set1_epi32(n / 2), _mm_setr_epi32(0, 1, 2, 3));
  const VecU16 pairs = reinterpret_cast<VecU16>(_mm_maskload_epi32(reinterpret_cast<const int*>(p), is_pair));
  const VecU16 last = splat<VecU16>(p[n - 1]);
  return lane_index<VecU16>() == static_cast<uint16_t>(n - 1) ? last : pairs;
}
GB_INLINE void store_n(float* p, VecF32 v, int n) {
  if (n == GB_LANES_F32) return store(p, v);
  _mm256_maskstore_ps(p, reinterpret_cast<__m256i>(lane_index<VecI32>() < n), reinterpret_cast<__m256>(v));
}
GB_INLINE void store_n(double* p, VecF64 v, int n) {
  if (n == GB_LANES_F32 / 2) return store(p, v);
  _mm256_maskstore_pd(p, reinterpret_cast<__m256i>(lane_index<VecI64>() < n), reinterpret_cast<__m256d>(v));
}
GB_INLINE void store_n(int32_t* p, VecI32 v, int n) {
  if (n == GB_LANES_F32) return store(p, v);
  _mm256_maskstore_epi32(p, reinterpret_cast<__m256i>(lane_index<VecI32>() < n),
                         reinterpret_cast<__m256i>(v));
}
GB_INLINE void store_n(uint16_t* p, VecU16 v, int n) {
  if (n == GB_LANES_F32) return store(p, v);
  __m128i left = reinterpret_cast<__m128i>(v);
  if (n & 4) {
    _mm_storeu_si64(p, left);
    left = _mm_unpackhi_epi64(left, left);
    p += 4;
  }
  if (n & 2) {
    _mm_storeu_si32(p, left);
    left = _mm_srli_epi64(left, 32);
    p += 2;
  }
  if (n & 1) *p = static_cast<uint16_t>(_mm_cvtsi128_si32(left));
}

#else

template <typename E>
GB_INLINE auto load_n(const E* p, int n) {
  decltype(load(p)) out{};
  constexpr int lanes = sizeof(out) / sizeof(E);
  if (n == lanes) return load(p);
  out[0] = p[0];
  for (int l = 1; l < lanes - 1; ++l)
    if (l < n) out[l] = p[l];
  return out;
}
template <typename E, typename V>
GB_INLINE void store_n(E* p, V v, int n) {
  constexpr int lanes = sizeof(v) / sizeof(E);
  if (n == lanes) return store(p, v);
  p[0] = v[0];
  for (int l = 1; l < lanes - 1; ++l)
    if (l < n) p[l] = v[l];
}

#endif

// The low halves of lanes.
GB_INLINE VecU16 low_halves(VecI32 v) {
#if GB_LANES_F32 == 16
  return reinterpret_cast<VecU16>(_mm512_cvtepi32_epi16(reinterpret_cast<__m512i>(v)));
#elif GB_LANES_F32 == 8
  const __m256i bits = reinterpret_cast<__m256i>(v & 0xFFFF);
  return reinterpret_cast<VecU16>(
      _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1)));
#else
  VecU16 out;
  for (int l = 0; l < GB_LANES_F32; ++l) out[l] = static_cast<uint16_t>(v[l]);
  return out;
#endif
}
GB_INLINE VecI32 zero_extended(VecU16 v) {
#if GB_LANES_F32 == 16
  return reinterpret_cast<VecI32>(_mm512_cvtepu16_epi32(reinterpret_cast<__m256i>(v)));
#elif GB_LANES_F32 == 8
  return reinterpret_cast<VecI32>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(v)));
#else
  return __builtin_convertvector(v, VecI32);
#endif
}

// The conversions of dtypes.h, to the same bits.
GB_INLINE VecF32 widened(VecU16 v, const Bf16*) { return reinterpret_cast<VecF32>(zero_extended(v) << 16); }
GB_INLINE VecU16 narrowed(VecF32 v, const Bf16*) {
  const VecU32 bits = reinterpret_cast<VecU32>(v);
  const VecI32 rounded = reinterpret_cast<VecI32>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
  return low_halves(v != v ? splat<VecI32>(0x7FC0) : rounded);
}
#if GB_LANES_F32 > 4
GB_INLINE VecF32 widened(VecU16 v, const F16*) {
#if GB_LANES_F32 == 16
  return reinterpret_cast<VecF32>(_mm512_cvtph_ps(reinterpret_cast<__m256i>(v)));
#else
  return reinterpret_cast<VecF32>(_mm256_cvtph_ps(reinterpret_cast<__m128i>(v)));
#endif
}
GB_INLINE VecU16 narrowed(VecF32 v, const F16*) {
  const VecI32 bits = reinterpret_cast<VecI32>(v);
  const VecI32 one_nan = v != v ? (bits & INT32_MIN) | 0x7FC00000 : bits;  // whatever its payload
#if GB_LANES_F32 == 16
  return reinterpret_cast<VecU16>(
      _mm512_cvtps_ph(reinterpret_cast<__m512>(one_nan), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
#else
  return reinterpret_cast<VecU16>(
      _mm256_cvtps_ph(reinterpret_cast<__m256>(one_nan), _MM_FROUND_TO_NEAREST_INT));
#endif
}
#else
GB_INLINE VecF32 widened(VecU16 v, const F16*) {
  const VecI32 bits = zero_extended(v), magnitude = bits & 0x7FFF;
  constexpr int rebias = 112 << 23;  // the exponent, from 15 to 127
  const VecI32 normal = (magnitude << 13) + rebias;
  const VecF32 subnormal = __builtin_convertvector(magnitude, VecF32) * 0x1p-24f;
  // Infinity and NaN get the exponent 31 + 2 * 112 = 255.
  VecI32 out = magnitude >= 0x7C00 ? normal + rebias : normal;
  out = magnitude < 0x0400 ? reinterpret_cast<VecI32>(subnormal) : out;
  return reinterpret_cast<VecF32>(out | (bits & 0x8000) << 16);
}
GB_INLINE VecU16 narrowed(VecF32 v, const F16*) {
  const VecI32 bits = reinterpret_cast<VecI32>(v), magnitude = bits & INT32_MAX;
  const VecI32 normal = (magnitude - (112 << 23) + 0x0FFF + ((magnitude >> 13) & 1)) >> 13;
  // Below 2^-14: adding 0.5 leaves the rounded multiple of 2^-24 in the mantissa.
  const VecI32 subnormal = reinterpret_cast<VecI32>(reinterpret_cast<VecF32>(magnitude) + 0.5f) - 0x3F000000;
  VecI32 out = magnitude < 0x38800000 ? subnormal : normal;
  out = magnitude >= 0x477FF000 ? splat<VecI32>(0x7C00) : out;  // 65520 and more round to infinity
  out = magnitude > 0x7F800000 ? splat<VecI32>(0x7E00) : out;
  return low_halves(out | ((bits >> 16) & 0x8000));
}
#endif

GB_INLINE VecF32 load(const Bf16* p) { return widened(load(&p->bits), p); }
GB_INLINE VecF32 load(const F16* p) { return widened(load(&p->bits), p); }
GB_INLINE VecF32 load_n(const Bf16* p, int n) { return widened(load_n(&p->bits, n), p); }
GB_INLINE VecF32 load_n(const F16* p, int n) { return widened(load_n(&p->bits, n), p); }
GB_INLINE void store(Bf16* p, VecF32 v) { store(&p->bits, narrowed(v, p)); }
GB_INLINE void store(F16* p, VecF32 v) { store(&p->bits, narrowed(v, p)); }
GB_INLINE void store_n(Bf16* p, VecF32 v, int n) { store_n(&p->bits, narrowed(v, p), n); }
GB_INLINE void store_n(F16* p, VecF32 v, int n) { store_n(&p->bits, narrowed(v, p), n); }

template <typename V>
GB_INLINE auto sum_lanes(V v) {
  constexpr int n = sizeof(V) / sizeof(v[0]);
#if GB_LANES_F32 == 16
  if constexpr (sizeof(v[0]) == 4) return _mm512_reduce_add_ps(reinterpret_cast<__m512>(v));
  if constexpr (sizeof(v[0]) == 8) return _mm512_reduce_add_pd(reinterpret_cast<__m512d>(v));
#endif
  auto total = v[0];
  for (int i = 1; i < n; ++i) total += v[i];
  return total;
}

template <typename V>
GB_INLINE auto max_lanes(V v) {
#if GB_LANES_F32 == 16
  if constexpr (sizeof(v[0]) == 4) return _mm512_reduce_max_ps(reinterpret_cast<__m512>(v));
#endif
  auto top = v[0];
  for (int i = 1; i < static_cast<int>(sizeof(V) / sizeof(v[0])); ++i) top = v[i] > top ? v[i] : top;
  return top;
}

// sum of a[i] * b[i] over n elements, n > 0.
template <typename T, typename U>
GB_INLINE Acc<T> dot(const T* a, const U* b, int64_t n) {
  static_assert(sizeof(Acc<T>) == sizeof(Acc<U>));
  constexpr int L = kLanes<T>;
  Vec<T> s0{}, s1{}, s2{}, s3{};
  int64_t i = 0;
  for (; i + 4 * L <= n; i += 4 * L) {
    s0 += load(a + i) * load(b + i);
    s1 += load(a + i + L) * load(b + i + L);
    s2 += load(a + i + 2 * L) * load(b + i + 2 * L);
    s3 += load(a + i + 3 * L) * load(b + i + 3 * L);
  }
  for (; i + L <= n; i += L) s0 += load(a + i) * load(b + i);
  if (i < n) s1 += load_n(a + i, static_cast<int>(n - i)) * load_n(b + i, static_cast<int>(n - i));
  return sum_lanes((s0 + s1) + (s2 + s3));
}

// y[i] += c * x[i] over n elements.
template <typename T>
GB_INLINE void axpy(Acc<T>* y, Acc<T> c, const T* x, int64_t n) {
  constexpr int L = kLanes<T>;
  int64_t i = 0;
  for (; i + L <= n; i += L) store(y + i, load(y + i) + c * load(x + i));
  if (i < n) {
    const int rest = static_cast<int>(n - i);
    store_n(y + i, load_n(y + i, rest) + c * load_n(x + i, rest), rest);
  }
}
