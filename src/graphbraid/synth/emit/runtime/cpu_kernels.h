// What a program for processors has beside the kernels of every target.
#pragma once

#include <cstdint>

#include "kernels.h"

namespace program {

// Takes the fastest kernels that this processor can run; call it first.
void choose_variant();

// What csrc/ is told of an epilogue.
gb::Epilogue epilogue_of(const RowEpilogue& how);

// GATv2's attention, by the rows of both ends of each edge and the vectors of the heads, (heads, channels).
struct Gatv2Forward {
  Edges edges = {};
  ConstMatrix x = {}, own = {}, vectors = {};
  Attention how = {};
  Matrix out = {}, lse = {};
};
void gatv2_forward(const Gatv2Forward& a);

struct Gatv2Backward {
  Edges edges = {}, by_source = {};
  const int64_t* perm = nullptr;
  ConstMatrix x = {}, own = {}, vectors = {};
  Attention how = {};
  Matrix out = {}, lse = {};
  ConstMatrix grad = {};
  Matrix grad_x = {}, grad_own = {}, grad_vectors = {};
};
void gatv2_backward(const Gatv2Backward& a);

// The mean and the biased variance of x's columns.
void column_moments(ConstMatrix x, float* mean, float* variance);
// Gives the running ones their share of a mean and a biased variance of num_rows rows; rstd holds the
// variance and becomes 1 / sqrt(variance + eps).
void track_statistics(const BatchStatistics& a, int64_t num_rows);

// Rows normalised each by its own mean and variance, which are kept for the backward pass, if not null.
struct LayerNorm {
  ConstMatrix x = {};
  const float *weight = nullptr, *bias = nullptr;
  double eps = 0;
  Matrix out = {};
  float *mean = nullptr, *rstd = nullptr;
};
void layer_norm(const LayerNorm& a);

struct LayerNormBackward {
  ConstMatrix grad = {}, x = {};
  const float *weight = nullptr, *mean = nullptr, *rstd = nullptr;
  Matrix grad_x = {};
  float *grad_weight = nullptr, *grad_bias = nullptr;
};
void layer_norm_backward(const LayerNormBackward& a);

// out = (1 + factor) x, or that added to out; and the factor's gradient, the sum of grad * x.
struct Scale {
  ConstMatrix x = {};
  const float* factor = nullptr;
  Matrix out = {};
  bool add = false;
};
void scale(const Scale& a);

struct FactorGradient {
  ConstMatrix grad = {}, x = {};
  float* out = nullptr;
};
void factor_gradient(const FactorGradient& a);

}  // namespace program
