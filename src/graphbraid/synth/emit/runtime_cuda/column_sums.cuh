// Sums of columns over all rows. First parts of the rows are summed, then a tree adds up the parts of a
// column. The order, and so the bits, depends on the number of rows alone.
#pragma once

#include "gpu.cuh"
#include "gpu_memory.h"

namespace program {

constexpr int64_t kMostParts = 512;
constexpr int64_t kRowsOfPart = 64;  // at least

// sums[part, column] = the sum of values(row, column) over the part's rows.
template <typename Values>
__global__ void sum_in_parts(const Values values, int64_t rows, int64_t columns, int64_t parts, float* sums) {
  const int64_t part = thread_number() / columns, column = thread_number() % columns;
  if (part >= parts) return;
  float sum = 0;
  for (int64_t row = rows * part / parts; row < rows * (part + 1) / parts; ++row) sum += values(row, column);
  sums[part * columns + column] = sum;
}

// One block sums the parts of a column.
static __global__ void join_columns(const float* sums, int64_t columns, int64_t parts, float* out) {
  __shared__ float of_thread[kThreads];
  const int64_t column = blockIdx.x;
  float sum = 0;
  for (int64_t part = threadIdx.x; part < parts; part += kThreads) sum += sums[part * columns + column];
  of_thread[threadIdx.x] = sum;
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) of_thread[threadIdx.x] += of_thread[threadIdx.x + half];
  }
  if (threadIdx.x == 0) out[column] = of_thread[0];
}

// Sums the columns. The sums of the parts are the workspace's first kMostParts * columns floats. `out`,
// (columns,), may stand behind them.
template <typename Values>
void sum_columns(const char* name, const Values& values, int64_t rows, int64_t columns, float* out) {
  int64_t parts = rows / kRowsOfPart;
  parts = parts < 1 ? 1 : parts > kMostParts ? kMostParts : parts;
  const int64_t bytes = kMostParts * columns * static_cast<int64_t>(sizeof(float));
  float* sums = static_cast<float*>(Workspace::begin(bytes));
  launch(name, sum_in_parts<Values>, parts * columns, values, rows, columns, parts, sums);
  launch_blocks(name, join_columns, columns, sums, columns, parts, out);
}

}  // namespace program
