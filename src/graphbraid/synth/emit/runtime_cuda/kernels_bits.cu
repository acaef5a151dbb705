// The products with rows of zeros and ones: see bits.cuh.
#include "bits.cuh"
#include "gpu_memory.h"

namespace program {

void bit_product(const int32_t* bits, const float* factors, ConstMatrix b, Matrix out, bool add,
                 const gb::Epilogue* after) {
  ConstMatrix rows = b;
  if (b.column_stride != 1) {  // a weight's transpose: every row of out reads it
    void* scratch = Workspace::begin(b.rows * b.columns * static_cast<int64_t>(sizeof(float)));
    const Matrix contiguous{static_cast<float*>(scratch), b.rows, b.columns, b.columns};
    copy(b, contiguous);
    rows = contiguous;
  }
  with_lanes(out.columns, [&](auto constant) {
    constexpr int kLanes = decltype(constant)::value;
    launch("bit_product", multiply_bits<kLanes>, out.rows * kLanes,
           BitProduct{bits, factors, rows, out, add});
  });
  if (after) epilogue(out, *after, out);
}

void bit_gram(ConstMatrix a, const int32_t* bits, const float* factors, Matrix out) {
  with_lanes(out.rows, [&](auto constant) {
    constexpr int kLanes = decltype(constant)::value;
    launch("bit_gram", gram_of_bits<kLanes>, out.columns * kLanes, BitGram{a, bits, factors, out});
  });
}

}  // namespace program
