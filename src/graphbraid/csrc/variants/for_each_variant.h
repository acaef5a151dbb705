// Includes GB_KERNEL_FILE once per variant; see variants.h. No include guard: each kernel file includes it
// once.
//
// GB_LANES_F32: float lanes of the variant's vector registers.

#ifdef GB_HAS_PORTABLE
#define GB_VARIANT portable
#define GB_LANES_F32 4
#include GB_KERNEL_FILE
#undef GB_VARIANT
#undef GB_LANES_F32
#endif  // GB_HAS_PORTABLE

#ifdef GB_HAS_AVX2
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,bmi,bmi2,f16c,lzcnt,popcnt"))), \
                             apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,bmi,bmi2,f16c,lzcnt,popcnt")
#endif
#define GB_VARIANT avx2
#define GB_LANES_F32 8
#include GB_KERNEL_FILE
#undef GB_VARIANT
#undef GB_LANES_F32
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif  // GB_HAS_AVX2

#ifdef GB_HAS_AVX512
#if defined(__clang__)
#pragma clang attribute push(                                                                        \
    __attribute__((                                                                                  \
        target("avx512f,avx512vl,avx512dq,avx512bw,avx512cd,avx2,fma,bmi,bmi2,f16c,lzcnt,popcnt"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target( \
    "avx512f,avx512vl,avx512dq,avx512bw,avx512cd,avx2,fma,bmi,bmi2,f16c,lzcnt,popcnt,prefer-vector-width=512")
#endif
#define GB_VARIANT avx512
#define GB_LANES_F32 16
#include GB_KERNEL_FILE
#undef GB_VARIANT
#undef GB_LANES_F32
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif  // GB_HAS_AVX512

#undef GB_KERNEL_FILE
