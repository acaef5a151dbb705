// The loss and the accuracy of rows with labels, and the update of parameters.
#pragma once

#include "element_losses.h"
#include "kernels.h"
#include "optimizer.h"
#include "warp.cuh"

namespace program {

// losses[i] = the cross entropy of labelled row i. Its part of the mean's gradient is written to grad. A warp
// handles a row.
static __global__ void lose(const LossInput given, float* losses) {
  const int64_t i = thread_number() / kWarp, lane = threadIdx.x % kWarp;
  if (i >= given.nodes.count) return;
  const float share = 1.0f / static_cast<float>(given.nodes.total);
  const int64_t row = given.nodes.rows[i], label = given.nodes.labels[i];
  const float* from = given.outputs.data + row * given.outputs.row_stride;
  float* to = given.grad.data + row * given.grad.row_stride;
  float top = -INFINITY, total = 0;
  for (int64_t j = lane; j < given.outputs.columns; j += kWarp) top = from[j] > top ? from[j] : top;
  top = largest_of_warp(top);
  for (int64_t j = lane; j < given.outputs.columns; j += kWarp) total += expf(from[j] - top);
  total = sum_of_warp(total);
  for (int64_t j = lane; j < given.outputs.columns; j += kWarp) {
    const float likely = expf(from[j] - top) / total;
    to[j] = (j == label ? likely - 1.0f : likely) * share;
  }
  if (lane == 0) losses[i] = logf(total) - (from[label] - top);
}

// One block adds numbers up, in an order that depends on their count alone.
static __global__ void add_up(const float* numbers, int64_t count, double* sum) {
  __shared__ double of_thread[kThreads];
  double own = 0;
  for (int64_t i = threadIdx.x; i < count; i += kThreads) own += static_cast<double>(numbers[i]);
  of_thread[threadIdx.x] = own;
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    __syncthreads();
    if (threadIdx.x < half) of_thread[threadIdx.x] += of_thread[threadIdx.x + half];
  }
  if (threadIdx.x == 0) *sum = of_thread[0];
}

// right[i] = whether the largest column of labelled row i, the first of equal ones, is its label.
static __global__ void judge(const ConstMatrix outputs, const LabelledRows nodes, float* right) {
  const int64_t i = thread_number();
  if (i >= nodes.count) return;
  const float* from = outputs.data + nodes.rows[i] * outputs.row_stride;
  int64_t best = 0;
  for (int64_t j = 1; j < outputs.columns; ++j)
    if (from[best] < from[j]) best = j;
  right[i] = best == nodes.labels[i] ? 1.0f : 0.0f;
}

// losses[i] = the loss of output i of the rows with targets. Its gradient times `share` is written to grad,
// if that has data.
template <typename Loss>
__global__ void lose_elements(const LossInput given, float share, float* losses) {
  const int64_t i = thread_number(), columns = given.outputs.columns;
  if (i >= given.nodes.count * columns) return;
  const int64_t row = given.nodes.rows[i / columns], column = i % columns;
  const float output = given.outputs.data[row * given.outputs.row_stride + column];
  const ElementLoss found = Loss::of(output, given.nodes.targets[i]);
  losses[i] = found.loss;
  if (given.grad.data != nullptr) given.grad.data[row * given.grad.row_stride + column] = found.grad * share;
}

static __global__ void update(const Update step, int64_t count, float* value, const float* grads,
                              float* first, float* second) {
  const int64_t i = thread_number();
  if (i < count) step(grads[i], value[i], first[i], second[i]);
}

}  // namespace program
