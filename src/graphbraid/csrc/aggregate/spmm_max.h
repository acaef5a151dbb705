// Arguments of the kernels of the maximum, checked by spmm_max.cpp and filled alike for every variant.
#pragma once

#include <cstdint>

#include "arguments/rows.h"

namespace gb {

// Which of equal largest messages the gradient goes to. Numbers as in ops/spmm.py.
enum class Ties { kFirst, kShared, kSharedWithZero };

struct SpmmMaxArgs : EdgeRows {
  Ties ties = Ties::kFirst;
  void* out = nullptr;       // (num_dst, width), contiguous, dtype of x
  int32_t* found = nullptr;  // (num_dst, width), contiguous; null if it is not asked for
};

// The edges and weights are those of the transpose, x is the gradient of the maxima.
struct SpmmMaxBackwardArgs : EdgeRows {
  const int64_t* perm = nullptr;            // edge of the transpose -> edge
  const int64_t* forward_indptr = nullptr;  // by destination
  const int32_t* winner = nullptr;
  void* out = nullptr;  // (num_dst, width), contiguous: the transpose's rows
};

// The edges and weights are those of the transpose, x is each maximum's gradient over its number of edges.
struct SpmmMaxSharedArgs : EdgeRows {
  const void* largest = nullptr;  // (rows of x, width), contiguous: the maxima
  Rows rows = {};                 // (num_dst, width): the rows that the maxima were taken of
  void* out = nullptr;            // (num_dst, width), contiguous: the transpose's rows
};

}  // namespace gb
