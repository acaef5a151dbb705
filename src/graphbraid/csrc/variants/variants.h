// Kernel variants: one source text compiled for several instruction sets, one of them chosen at run time.
//
// A kernel's text stands in `name.inl` inside `namespace gb::GB_VARIANT`. Its `name.cpp` includes standard
// headers, then
//     #define GB_KERNEL_FILE "ROOM/NAME.inl"
//     #include "variants/for_each_variant.h"
// which includes the text once per variant, each time under that variant's target options. The options stand
// on the functions, not on the build (decision 0001): nothing else is compiled for a newer machine by
// accident. GB_PICK(f) is a pointer to the active variant's f.
#pragma once

// The variants in this build; CMake's GB_VARIANTS leaves some out.
#ifndef GB_WITHOUT_PORTABLE
#define GB_HAS_PORTABLE 1
#endif
#if defined(__x86_64__) && !defined(GB_WITHOUT_AVX2)
#define GB_HAS_AVX2 1
#endif
#if defined(__x86_64__) && !defined(GB_WITHOUT_AVX512)
#define GB_HAS_AVX512 1
#endif

namespace gb {

enum class Variant : int { kPortable = 0, kAvx2 = 1, kAvx512 = 2 };

// The variant in use; chosen by the Python side once, before the first kernel runs.
Variant active_variant();
void set_active_variant(Variant variant);
// What this processor can run, whether it is in this build or not.
bool is_supported(Variant variant);
bool is_compiled(Variant variant);

}  // namespace gb

// The last variant of the build is picked without a test: only variants of the build are ever made active.
#if defined(GB_HAS_PORTABLE)
#define GB_LAST(f) &::gb::portable::f
#elif defined(GB_HAS_AVX2)
#define GB_LAST(f) &::gb::avx2::f
#elif defined(GB_HAS_AVX512)
#define GB_LAST(f) &::gb::avx512::f
#else
#error "GB_WITHOUT_... leaves no kernel variant for this processor"
#endif
#ifdef GB_HAS_AVX2
#define GB_AVX2_OR(f, other) (::gb::active_variant() == ::gb::Variant::kAvx2 ? &::gb::avx2::f : (other))
#else
#define GB_AVX2_OR(f, other) (other)
#endif
#ifdef GB_HAS_AVX512
#define GB_AVX512_OR(f, other) (::gb::active_variant() == ::gb::Variant::kAvx512 ? &::gb::avx512::f : (other))
#else
#define GB_AVX512_OR(f, other) (other)
#endif
#define GB_PICK(f) GB_AVX512_OR(f, GB_AVX2_OR(f, GB_LAST(f)))
