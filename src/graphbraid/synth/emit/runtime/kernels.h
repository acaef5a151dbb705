// graphbraid's kernels on plain pointers. Each call is one kernel of csrc/, in the variant for this
// processor.
#pragma once

#include <cstdint>

#include "epilogue.h"

namespace program {

// A float32 matrix in memory: element (i, j) stands at data[i * row_stride + j * column_stride].
template <typename Float>
struct MatrixOf {
  Float* data = nullptr;
  int64_t rows = 0, columns = 0, row_stride = 0, column_stride = 1;

  operator MatrixOf<const Float>() const { return {data, rows, columns, row_stride, column_stride}; }
};
using Matrix = MatrixOf<float>;
using ConstMatrix = MatrixOf<const float>;

// The edges into each of num_rows rows.
struct Edges {
  const int64_t* indptr;
  const void* indices;
  bool wide;  // whether ids have 64 bits instead of 32
  int64_t num_rows, num_edges;
};

// The factors of an aggregation, each null for ones.
struct Factors {
  const float* weight;     // of edges
  const float* src_scale;  // of sources
  const float* dst_scale;  // of destinations
  const float* loop;       // of the implicit self-loops
};

// Takes the fastest kernels that this processor can run; call it first.
void choose_variant();

// What follows a kernel's sums, row by row: dropout(act(row + bias), p).
gb::Epilogue row_epilogue(const float* bias, int act, double slope, double p, uint64_t seed,
                          const int64_t* ids);

void spmm(const Edges& edges, ConstMatrix x, const Factors& factors, double loop_scale, int64_t num_loops,
          bool skip_loops, bool mean, ConstMatrix addend, Matrix out, const gb::Epilogue* after);
// ties: as numbered in csrc/spmm_max.h.
void spmm_max(const Edges& edges, ConstMatrix x, int ties, Matrix out, int32_t* found);
void spmm_max_shared_backward(const Edges& edges, ConstMatrix share, ConstMatrix largest, ConstMatrix x,
                              Matrix out);
void tall_product(ConstMatrix a, ConstMatrix b, Matrix out, bool add, const int64_t* ids,
                  const gb::Epilogue* after);
void tall_gram(ConstMatrix a, ConstMatrix b, Matrix out, const int64_t* ids);
void epilogue(ConstMatrix x, const gb::Epilogue& how, Matrix out);
void epilogue_backward(ConstMatrix grad, ConstMatrix result, const gb::Epilogue& how, Matrix grad_x,
                       float* grad_bias);

// out = 0, out = x, out += x, out = x / divisor, element by element.
void set_zero(Matrix out);
void copy(ConstMatrix x, Matrix out);
void copy(const int32_t* x, Matrix out);
void add(ConstMatrix x, Matrix out);
void divide(ConstMatrix x, ConstMatrix divisor, Matrix out);

}  // namespace program
