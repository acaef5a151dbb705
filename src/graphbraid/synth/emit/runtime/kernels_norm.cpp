// Batch and layer normalisation, compiled from csrc/rowwise/norm.inl.
#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

#include "cpu_kernels.h"
#include "rowwise/norm.h"
#include "threads/parallel.h"
#include "variants/variants.h"
#include "variants/x86.h"

#define GB_KERNEL_FILE "rowwise/norm.inl"
#include "variants/for_each_variant.h"

namespace program {
namespace {

gb::NormArgs args_of(ConstMatrix x) {
  gb::NormArgs a;
  a.num_rows = x.rows;
  a.width = x.columns;
  a.x = x.data;
  return a;
}

float rstd_of(float variance, double eps) { return 1.0f / std::sqrt(variance + static_cast<float>(eps)); }

}  // namespace

void column_moments(ConstMatrix x, float* mean, float* variance) {
  gb::NormArgs a = args_of(x);
  a.new_mean = mean;
  a.new_variance = variance;
  if (a.width > 0) GB_PICK(column_moments)(a);
}

void track_statistics(const BatchStatistics& a, int64_t num_rows) {
  const float rest = static_cast<float>(1.0 - a.share), part = static_cast<float>(a.share);
  const float unbiased =
      static_cast<float>(static_cast<double>(num_rows) / static_cast<double>(num_rows - 1));
  for (int64_t j = 0; j < a.x.columns; ++j) {
    a.running_mean[j] = a.running_mean[j] * rest + part * a.mean[j];
    a.running_variance[j] = a.running_variance[j] * rest + part * (a.rstd[j] * unbiased);
    a.rstd[j] = rstd_of(a.rstd[j], a.eps);
  }
}

void batch_statistics(const BatchStatistics& a) {
  column_moments(a.x, a.mean, a.rstd);
  track_statistics(a, a.x.rows);
}

void running_statistics(const RunningStatistics& a) {
  for (int64_t j = 0; j < a.width; ++j) {
    a.mean[j] = a.running_mean[j];
    a.rstd[j] = rstd_of(a.running_variance[j], a.eps);
  }
}

void batch_norm(const BatchNorm& a) {
  gb::NormArgs n = args_of(a.x);
  n.mean = a.mean;
  n.rstd = a.rstd;
  n.weight = a.weight;
  n.bias = a.bias;
  n.out = a.out.data;
  if (n.width > 0) GB_PICK(batch_norm)(n);
}

void batch_norm_backward(const BatchNormBackward& a) {
  gb::NormArgs n = args_of(a.x);
  n.grad = a.grad.data;
  n.mean = a.mean;
  n.rstd = a.rstd;
  n.weight = a.weight;
  n.from_rows = a.from_rows;
  n.out = a.grad_x.data;
  n.grad_weight = a.grad_weight;
  n.grad_bias = a.grad_bias;
  if (n.width > 0) GB_PICK(batch_norm_backward)(n);
}

void layer_norm(const LayerNorm& a) {
  gb::NormArgs n = args_of(a.x);
  n.weight = a.weight;
  n.bias = a.bias;
  n.eps = a.eps;
  n.out = a.out.data;
  n.new_mean = a.mean;
  n.new_rstd = a.rstd;
  if (n.width > 0) GB_PICK(layer_norm)(n);
}

void layer_norm_backward(const LayerNormBackward& a) {
  gb::NormArgs n = args_of(a.x);
  n.grad = a.grad.data;
  n.weight = a.weight;
  n.mean = a.mean;
  n.rstd = a.rstd;
  n.out = a.grad_x.data;
  n.grad_weight = a.grad_weight;
  n.grad_bias = a.grad_bias;
  if (n.width > 0) GB_PICK(layer_norm_backward)(n);
}

}  // namespace program
