// Aggregation over in-neighbours:
//
//   out[v, :] = dst_scale[v] * sum of weight[e] * src_scale[u] * x[u, :] over the edges e = u -> v
//
// Each factor is optional. `mean` divides by the number of the row's edges. Rows with an implicit self-loop
// add loop_scale * loop[v] * src_scale[v] * x[v, :] to the sum. addend[v, :] is added after the factors, and
// then comes the epilogue. Bound by reading num_edges rows of x.
#pragma once

#include "sums.cuh"

namespace program {

struct SpmmTerms {
  Edges edges;
  ConstMatrix x;
  Factors factors;
  float loop_scale;
  int64_t num_loops;
  bool skip_loops, mean;
  ConstMatrix addend;
  Matrix out;
  gb::Epilogue after;
  float* partial;

  __device__ int64_t columns() const { return out.columns; }
  __device__ bool leaves_out(int64_t row, int64_t node) const { return skip_loops && row == node; }
  __device__ float coefficient(int64_t edge, int64_t node) const {
    const float weight = factors.weight ? factors.weight[edge] : 1.0f;
    return factors.src_scale ? weight * factors.src_scale[node] : weight;
  }
  __device__ float number(int64_t, int64_t node, int64_t column) const {
    return x.data[node * x.row_stride + column];
  }
  // What the row's implicit self-loop adds.
  __device__ float loop(int64_t row, int64_t column) const {
    if (row >= num_loops) return 0.0f;
    const float own = factors.loop ? loop_scale * factors.loop[row] : loop_scale;
    return (factors.src_scale ? own * factors.src_scale[row] : own) * number(row, row, column);
  }
  __device__ float dst_scale(int64_t row) const {
    const int64_t degree = edges.indptr[row + 1] - edges.indptr[row];
    const float share = mean && degree > 1 ? 1.0f / static_cast<float>(degree) : 1.0f;
    return factors.dst_scale ? share * factors.dst_scale[row] : share;
  }
  __device__ void finish(int64_t row, int64_t column, float sum) const {
    sum = (sum + loop(row, column)) * dst_scale(row);
    if (row < addend.rows) sum += addend.data[row * addend.row_stride + column];
    out.data[row * out.row_stride + column] = followed(after, row, column, sum);
  }
};

}  // namespace program
