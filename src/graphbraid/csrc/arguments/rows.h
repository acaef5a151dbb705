// Rows of a matrix, and the arguments of kernels that take rows by the ids of edges.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/dtypes.h"

namespace gb {

// Rows of a matrix: element (i, j) stands at data[i * stride + j].
struct Rows {
  const void* data = nullptr;
  int64_t stride = 0;
};

// The arguments of every aggregation: rows of a matrix by the ids of edges.
struct EdgeRows {
  DType dtype = DType::kFloat32;  // of x
  bool wide_indices = false;      // int64 instead of int32
  const int64_t* indptr = nullptr;
  const void* indices = nullptr;
  int64_t num_dst = 0;
  int64_t num_edges = 0;
  int64_t width = 0;
  Rows x;
  const void* weight = nullptr;  // (num_edges,), in the dtype of the sums; may be null
};

// Ids of either width.
struct AnyId {};

// The node at the other end of an edge, by ids of type I. AnyId reads it by a branch that always goes the
// same way: then a kernel needs no code of its own for each width.
template <typename I = AnyId>
int64_t node_at(const EdgeRows& a, int64_t edge) {
  if constexpr (!std::is_same_v<I, AnyId>) return static_cast<const I*>(a.indices)[edge];
  return a.wide_indices ? static_cast<const int64_t*>(a.indices)[edge]
                        : static_cast<const int32_t*>(a.indices)[edge];
}

}  // namespace gb
