#include "variants/variants.h"

#include <atomic>

namespace gb {
namespace {
std::atomic<int> active{static_cast<int>(Variant::kPortable)};
}

Variant active_variant() { return static_cast<Variant>(active.load(std::memory_order_relaxed)); }

void set_active_variant(Variant variant) {
  active.store(static_cast<int>(variant), std::memory_order_relaxed);
}

bool is_supported(Variant variant) {
#ifdef __x86_64__
  const bool avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
  if (variant == Variant::kAvx2) return avx2;
  if (variant == Variant::kAvx512)
    return avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd");
#endif
  return variant == Variant::kPortable;
}

bool is_compiled(Variant variant) {
#ifdef GB_HAS_PORTABLE
  if (variant == Variant::kPortable) return true;
#endif
#ifdef GB_HAS_AVX2
  if (variant == Variant::kAvx2) return true;
#endif
#ifdef GB_HAS_AVX512
  if (variant == Variant::kAvx512) return true;
#endif
  return false;
}

}  // namespace gb
