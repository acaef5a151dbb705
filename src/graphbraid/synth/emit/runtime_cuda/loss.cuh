// The loss and the accuracy of rows with labels, and the update of parameters.
#pragma once

#include "gpu_kernels.h"
#include "warp.cuh"

namespace program {

// Rows of outputs and their labels, (count,).
struct Labelled {
  ConstMatrix outputs;
  const int64_t *rows, *labels;
  int64_t count;
};

// losses[i] = the cross entropy of labelled row i; its gradient times `share` into grad. A warp has a row.
static __global__ void lose(const Labelled given, float share, Matrix grad, float* losses) {
  const int64_t i = thread_number() / kWarp, lane = threadIdx.x % kWarp;
  if (i >= given.count) return;
  const float* from = given.outputs.data + given.rows[i] * given.outputs.row_stride;
  float* to = grad.data + given.rows[i] * grad.row_stride;
  float top = -INFINITY, total = 0;
  for (int64_t j = lane; j < given.outputs.columns; j += kWarp) top = from[j] > top ? from[j] : top;
  top = largest_of_warp(top);
  for (int64_t j = lane; j < given.outputs.columns; j += kWarp) total += expf(from[j] - top);
  total = sum_of_warp(total);
  for (int64_t j = lane; j < given.outputs.columns; j += kWarp) {
    const float likely = expf(from[j] - top) / total;
    to[j] = (j == given.labels[i] ? likely - 1.0f : likely) * share;
  }
  if (lane == 0) losses[i] = logf(total) - (from[given.labels[i]] - top);
}

// One block adds numbers up, in an order that their count alone decides.
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
static __global__ void judge(const Labelled given, float* right) {
  const int64_t i = thread_number();
  if (i >= given.count) return;
  const float* from = given.outputs.data + given.rows[i] * given.outputs.row_stride;
  int64_t best = 0;
  for (int64_t j = 1; j < given.outputs.columns; ++j)
    if (from[best] < from[j]) best = j;
  right[i] = best == given.labels[i] ? 1.0f : 0.0f;
}

// The rules of PyTorch's SGD, Adam and AdamW for one number; as in runtime/training.cpp.
struct Update {
  int kind;  // as in Optimizer
  bool is_first;
  float rate, momentum, beta1, rest1, beta2, rest2, root2, eps, decay, decay_rest;
};

static __global__ void update(const Update u, int64_t count, float* value, const float* grads, float* first,
                              float* second) {
  const int64_t i = thread_number();
  if (i >= count) return;
  float grad = grads[i];
  if (u.kind == 2)
    value[i] *= u.decay_rest;
  else
    grad += u.decay * value[i];
  if (u.kind == 0) {
    first[i] = u.is_first ? grad : u.momentum * first[i] + grad;
    value[i] -= u.rate * first[i];
    return;
  }
  first[i] = u.beta1 * first[i] + u.rest1 * grad;
  second[i] = u.beta2 * second[i] + u.rest2 * grad * grad;
  value[i] -= u.rate * first[i] / (sqrtf(second[i]) / u.root2 + u.eps);
}

}  // namespace program
