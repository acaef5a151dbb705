// What a program for processors has beside the kernels of every target.
#pragma once

#include <cstdint>

#include "kernels.h"

namespace program {

// Takes the fastest kernels that this processor can run; call it first.
void choose_variant();

// What csrc/ is told of an epilogue.
gb::Epilogue epilogue_of(const RowEpilogue& how);

// Messages made of steps, reduced by row: csrc/aggregate/messages.h says what steps and results are. Of the
// sources x and the destinations y those are given that a step reads.
struct Messages {
  Edges edges = {};  // the walked rows and their edges
  const int64_t* perm = nullptr;
  bool by_source = false;
  int64_t heads = 1, width = 0;
  const int64_t* steps = nullptr;
  const float* numbers = nullptr;
  int num_steps = 0;
  ConstMatrix x = {}, x2 = {}, x3 = {}, x4 = {};
  ConstMatrix y = {}, y2 = {}, y3 = {}, y4 = {}, y5 = {}, y6 = {}, y7 = {}, y8 = {}, y9 = {}, y10 = {};
  const float* weight = nullptr;
  const int64_t* results = nullptr;
  int num_results = 0;
  bool adds = false;
  Matrix out = {}, out2 = {}, out3 = {}, out4 = {};
  int32_t* count = nullptr;
};
void reduce_messages(const Messages& a);

// out = x / the number of each row's edges, or x where there are none.
struct DivideByDegrees {
  Edges edges = {};
  ConstMatrix x = {};
  Matrix out = {};
};
void divide_by_degrees(const DivideByDegrees& a);

// out = x / count, as by 1 where it is 0.
struct DivideByCounts {
  ConstMatrix x = {};
  const int32_t* count = nullptr;
  Matrix out = {};
};
void divide_by_counts(const DivideByCounts& a);

// out += x * y, element by element.
struct AddProduct {
  Matrix out = {};
  ConstMatrix x = {}, y = {};
};
void add_product(const AddProduct& a);

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
