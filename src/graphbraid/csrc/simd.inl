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
typedef VecF32 LooseF32 __attribute__((aligned(4), may_alias));
typedef VecF64 LooseF64 __attribute__((aligned(8), may_alias));
typedef VecI32 LooseI32 __attribute__((aligned(4), may_alias));

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

template <typename V, typename A>
GB_INLINE V splat(A value) {
  return value - V{};  // broadcasts; x - 0 is x for every x, also for -0.0
}

GB_INLINE VecF32 load(const float* p) { return *reinterpret_cast<const LooseF32*>(p); }
GB_INLINE VecF64 load(const double* p) { return *reinterpret_cast<const LooseF64*>(p); }
GB_INLINE void store(float* p, VecF32 v) { *reinterpret_cast<LooseF32*>(p) = v; }
GB_INLINE void store(double* p, VecF64 v) { *reinterpret_cast<LooseF64*>(p) = v; }

#if GB_LANES_F32 == 16

GB_INLINE VecF32 load(const Bf16* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return reinterpret_cast<VecF32>(_mm512_slli_epi32(wide, 16));
}
GB_INLINE VecF32 load(const F16* p) {
  return reinterpret_cast<VecF32>(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
}
GB_INLINE __mmask16 first_lanes(int n) { return static_cast<__mmask16>((1u << n) - 1u); }
// The first n elements, 0 < n <= lanes; zeros behind. Reads nothing past them.
GB_INLINE VecF32 load_n(const float* p, int n) {
  return reinterpret_cast<VecF32>(_mm512_maskz_loadu_ps(first_lanes(n), p));
}
GB_INLINE VecF64 load_n(const double* p, int n) {
  return reinterpret_cast<VecF64>(_mm512_maskz_loadu_pd(static_cast<__mmask8>(first_lanes(n)), p));
}
GB_INLINE VecF32 load_n(const Bf16* p, int n) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(first_lanes(n), p));
  return reinterpret_cast<VecF32>(_mm512_slli_epi32(wide, 16));
}
GB_INLINE VecF32 load_n(const F16* p, int n) {
  return reinterpret_cast<VecF32>(_mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), p)));
}
GB_INLINE void store_n(float* p, VecF32 v, int n) {
  _mm512_mask_storeu_ps(p, first_lanes(n), reinterpret_cast<__m512>(v));
}
GB_INLINE void store_n(double* p, VecF64 v, int n) {
  _mm512_mask_storeu_pd(p, static_cast<__mmask8>(first_lanes(n)), reinterpret_cast<__m512d>(v));
}

#else

#if GB_LANES_F32 == 8
GB_INLINE VecF32 load(const Bf16* p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return reinterpret_cast<VecF32>(_mm256_slli_epi32(wide, 16));
}
GB_INLINE VecF32 load(const F16* p) {
  return reinterpret_cast<VecF32>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
#else
template <typename H>
GB_INLINE VecF32 load_half(const H* p) {
  VecF32 out;
  for (int i = 0; i < GB_LANES_F32; ++i) out[i] = to_acc(p[i]);
  return out;
}
GB_INLINE VecF32 load(const Bf16* p) { return load_half(p); }
GB_INLINE VecF32 load(const F16* p) { return load_half(p); }
#endif

// The first n elements, 0 < n <= lanes; zeros behind. Reads nothing past them.
template <typename T>
GB_INLINE Vec<T> load_n(const T* p, int n) {
  if (n == kLanes<T>) return load(p);
  Vec<T> out{};
  for (int i = 0; i < kLanes<T>; ++i) out[i] = i < n ? to_acc(p[i]) : Acc<T>{0};
  return out;
}
template <typename A, typename V>
GB_INLINE void store_n(A* p, V v, int n) {
  if (n == kLanes<A>) {
    store(p, v);
    return;
  }
  for (int i = 0; i < n; ++i) p[i] = v[i];
}

#endif

template <typename H>
GB_INLINE void store_half(H* p, VecF32 v, int n) {
  float lanes[GB_LANES_F32];
  store(lanes, v);
  for (int i = 0; i < n; ++i) from_acc(lanes[i], p[i]);
}
GB_INLINE void store_n(Bf16* p, VecF32 v, int n) { store_half(p, v, n); }
GB_INLINE void store_n(F16* p, VecF32 v, int n) { store_half(p, v, n); }

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

// Prefetches `bytes` from p, a line at a time.
GB_INLINE void prefetch_row(const void* p, int64_t bytes) {
  const char* line = static_cast<const char*>(p);
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(line + i, 0, 3);
}
