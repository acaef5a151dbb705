// The products with rows of zeros and ones: see bits.cuh.
#include "bits.cuh"
#include "gpu_memory.h"

namespace program {

void bit_product(const BitProduct& a) {
  BitProduct task = a;
  if (a.b.column_stride != 1) {  // a weight's transpose: every row of out reads it
    void* scratch = Workspace::begin(a.b.rows * a.b.columns * static_cast<int64_t>(sizeof(float)));
    const Matrix packed = contiguous(static_cast<float*>(scratch), a.b.rows, a.b.columns);
    copy({.x = a.b, .out = packed});
    task.b = packed;
  }
  with_lanes(a.out.columns, [&](auto constant) {
    constexpr int kLanes = decltype(constant)::value;
    launch("bit_product", multiply_bits<kLanes>, a.out.rows * kLanes, task);
  });
  if (!is_empty(a.after)) epilogue({.x = a.out, .how = a.after, .out = a.out});
}

void bit_gram(const BitGram& a) {
  with_lanes(a.out.rows, [&](auto constant) {
    constexpr int kLanes = decltype(constant)::value;
    launch("bit_gram", gram_of_bits<kLanes>, a.out.columns * kLanes, a);
  });
}

}  // namespace program
