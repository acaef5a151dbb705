// Prints the fastest kernel variant that this processor can run; CMakeLists.txt asks for GB_VARIANTS=native.
#include <cstdio>

#include "../src/graphbraid/csrc/variants/variants.cpp"

int main() {
  const bool avx512 = gb::is_supported(gb::Variant::kAvx512), avx2 = gb::is_supported(gb::Variant::kAvx2);
  std::fputs(avx512 ? "avx512" : avx2 ? "avx2" : "portable", stdout);
}
