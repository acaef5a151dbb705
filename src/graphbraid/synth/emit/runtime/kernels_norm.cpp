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

void track_statistics(const float* mean, float* rstd, int64_t num_rows, int64_t width, float* running_mean,
                      float* running_variance, double share, double eps) {
  const float rest = static_cast<float>(1.0 - share), part = static_cast<float>(share);
  const float unbiased =
      static_cast<float>(static_cast<double>(num_rows) / static_cast<double>(num_rows - 1));
  for (int64_t j = 0; j < width; ++j) {
    running_mean[j] = running_mean[j] * rest + part * mean[j];
    running_variance[j] = running_variance[j] * rest + part * (rstd[j] * unbiased);
    rstd[j] = rstd_of(rstd[j], eps);
  }
}

void batch_statistics(ConstMatrix x, float* running_mean, float* running_variance, double share, double eps,
                      float* mean, float* rstd) {
  column_moments(x, mean, rstd);
  track_statistics(mean, rstd, x.rows, x.columns, running_mean, running_variance, share, eps);
}

void running_statistics(const float* running_mean, const float* running_variance, int64_t width, double eps,
                        float* mean, float* rstd) {
  for (int64_t j = 0; j < width; ++j) {
    mean[j] = running_mean[j];
    rstd[j] = rstd_of(running_variance[j], eps);
  }
}

void batch_norm(ConstMatrix x, const float* mean, const float* rstd, const float* weight, const float* bias,
                Matrix out) {
  gb::NormArgs a = args_of(x);
  a.mean = mean;
  a.rstd = rstd;
  a.weight = weight;
  a.bias = bias;
  a.out = out.data;
  if (a.width > 0) GB_PICK(batch_norm)(a);
}

void batch_norm_backward(ConstMatrix grad, ConstMatrix x, const float* mean, const float* rstd,
                         const float* weight, bool from_rows, Matrix grad_x, float* grad_weight,
                         float* grad_bias) {
  gb::NormArgs a = args_of(x);
  a.grad = grad.data;
  a.mean = mean;
  a.rstd = rstd;
  a.weight = weight;
  a.from_rows = from_rows;
  a.out = grad_x.data;
  a.grad_weight = grad_weight;
  a.grad_bias = grad_bias;
  if (a.width > 0) GB_PICK(batch_norm_backward)(a);
}

void layer_norm(ConstMatrix x, const float* weight, const float* bias, double eps, Matrix out, float* mean,
                float* rstd) {
  gb::NormArgs a = args_of(x);
  a.weight = weight;
  a.bias = bias;
  a.eps = eps;
  a.out = out.data;
  a.new_mean = mean;
  a.new_rstd = rstd;
  if (a.width > 0) GB_PICK(layer_norm)(a);
}

void layer_norm_backward(ConstMatrix grad, ConstMatrix x, const float* weight, const float* mean,
                         const float* rstd, Matrix grad_x, float* grad_weight, float* grad_bias) {
  gb::NormArgs a = args_of(x);
  a.grad = grad.data;
  a.weight = weight;
  a.mean = mean;
  a.rstd = rstd;
  a.out = grad_x.data;
  a.grad_weight = grad_weight;
  a.grad_bias = grad_bias;
  if (a.width > 0) GB_PICK(layer_norm_backward)(a);
}

}  // namespace program
