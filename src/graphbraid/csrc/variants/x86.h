// The intrinsics of the variants in this build, without GCC 12's false warnings about immintrin.h's own
// "undefined" operands. The portable variant alone needs those that every x86-64 has, which take a tenth as
// long to read.
#pragma once

#include "variants/variants.h"

#ifdef __x86_64__
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#if defined(GB_HAS_AVX2) || defined(GB_HAS_AVX512)
#include <immintrin.h>
#else
#include <emmintrin.h>
#endif
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif
#endif
