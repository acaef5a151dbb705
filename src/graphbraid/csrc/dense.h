// Arguments of the dense products, checked by dense.cpp and filled alike for every variant.
#pragma once

#include <cstdint>

#include "epilogue.h"

namespace gb {

// A float32 matrix in memory: element (i, j) stands at data[i * row_stride + j * column_stride].
struct Strided {
  const float* data = nullptr;
  int64_t row_stride = 0, column_stride = 1;
};

// out = a * b, or out += a * b:  a (num_rows, depth), rows contiguous;  b (depth, width);  out (num_rows,
// width). With ids, row i of a is the row ids[i] that stands there.
struct TallProductArgs {
  int64_t num_rows = 0, depth = 0, width = 0;
  const float* a = nullptr;
  int64_t a_stride = 0;
  const int64_t* ids = nullptr;
  Strided b;
  float* out = nullptr;
  int64_t out_stride = 0;
  bool add = false;
  const Epilogue* epilogue = nullptr;  // of each row of out once it is complete; may be null
};

// out = aᵀ * b:  a (num_rows, height), b (num_rows, width), rows contiguous;  out (height, width). Ids as
// above.
struct TallGramArgs {
  int64_t num_rows = 0, height = 0, width = 0;
  const float* a = nullptr;
  int64_t a_stride = 0;
  const int64_t* a_ids = nullptr;
  const float* b = nullptr;
  int64_t b_stride = 0;
  const int64_t* b_ids = nullptr;
  float* out = nullptr;  // contiguous
};

}  // namespace gb
