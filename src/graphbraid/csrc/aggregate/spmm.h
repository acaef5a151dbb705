// Arguments of the aggregation kernels, checked by spmm.cpp and filled alike for every variant.
#pragma once

#include <cstdint>

#include "arguments/epilogue.h"
#include "arguments/rows.h"

namespace gb {

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
  // For float32 rows: whether `out` holds a result of ReLU, and of dropout that scales by gate_scale. The
  // sums are its gradient. Where the result is positive, the scaled sums are written over it; elsewhere
  // zeros.
  bool is_gated = false;
  double gate_scale = 1;
};

void run_spmm(const SpmmArgs& a);  // by the variant in use

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
