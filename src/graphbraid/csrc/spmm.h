// Arguments of the aggregation kernels, checked by spmm.cpp and filled alike for every variant.
#pragma once

#include <cstdint>
#include <type_traits>

#include "dtypes.h"
#include "epilogue.h"

namespace gb {

// Rows of a matrix: element (i, j) stands at data[i * stride + j].
struct Rows {
  const void* data = nullptr;
  int64_t stride = 0;
};

// What every aggregation reads: rows of a matrix by the ids of edges.
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

// The node at the other end of an edge, by ids of type I. Of AnyId read by a branch that is always taken
// alike: a kernel then needs no text of its own for each width.
template <typename I = AnyId>
int64_t node_at(const EdgeRows& a, int64_t edge) {
  if constexpr (!std::is_same_v<I, AnyId>) return static_cast<const I*>(a.indices)[edge];
  return a.wide_indices ? static_cast<const int64_t*>(a.indices)[edge]
                        : static_cast<const int32_t*>(a.indices)[edge];
}

struct SpmmArgs : EdgeRows {
  // Further coefficients, in the dtype of the sums; each may be null.
  const void* src_scale = nullptr;  // (num_src,)
  const void* dst_scale = nullptr;  // (num_dst,)
  const void* loop = nullptr;       // (num_loops,)
  double loop_scale = 0;            // 0: no implicit self-loops
  int64_t num_loops = 0;            // the first rows have an implicit self-loop
  bool skip_loops = false;          // leave out the edges u == v that are stored
  bool mean = false;
  Rows addend = {};  // dtype of out
  int64_t num_addend = 0;
  void* out = nullptr;  // dtype of x, or of the sums where out_wide
  int64_t out_stride = 0;
  bool out_wide = false;
  const Epilogue* epilogue = nullptr;  // of each row once it is summed; may be null
};

struct SddmmArgs {
  DType dtype = DType::kFloat32;
  bool wide_indices = false;
  const int64_t* indptr = nullptr;
  const void* indices = nullptr;
  int64_t num_dst = 0;
  int64_t num_edges = 0;
  int64_t width = 0;
  int64_t heads = 1;  // width = heads * channels
  Rows dst;           // (num_dst, width)
  Rows src;           // (num_src, width)
  const void* dst_scale = nullptr;
  const void* src_scale = nullptr;
  void* out = nullptr;  // (num_edges, heads), dtype of the sums
};

}  // namespace gb
