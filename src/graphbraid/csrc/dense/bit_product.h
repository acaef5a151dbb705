// Arguments of the products with binary rows, checked by bit_product.cpp and filled alike for every variant.
#pragma once

#include <cstdint>

#include "arguments/epilogue.h"
#include "dense/dense.h"

namespace gb {

constexpr int64_t kWordBits = 32;

// out = diag(factors) * x * b, or out += ..., for x of zeros and ones: bit j of bits[w * num_rows + i] is
// x[i, 32 w + j].
//   bits (ceil(depth / 32), num_rows);  b (depth, width);  factors (num_rows,), or null for ones;  out
//   (num_rows, width)
struct BitProductArgs {
  int64_t num_rows = 0, depth = 0, width = 0;
  const uint32_t* bits = nullptr;
  const float* factors = nullptr;
  Strided b;
  float* out = nullptr;
  int64_t out_stride = 0;
  bool add = false;
  const Epilogue* epilogue = nullptr;  // of each row of out once it is complete; may be null
};

// out = aᵀ * diag(factors) * x: bit j of bits[w * width + c] is x[32 w + j, c].
//   a (num_rows, height), rows contiguous;  bits (ceil(num_rows / 32), width);  factors (num_rows,), or null
//   for ones;  out (height, width), contiguous
struct BitGramArgs {
  int64_t num_rows = 0, height = 0, width = 0;
  const float* a = nullptr;
  int64_t a_stride = 0;
  const uint32_t* bits = nullptr;
  const float* factors = nullptr;
  float* out = nullptr;
};

}  // namespace gb
