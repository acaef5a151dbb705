// The kernels that programs for every target call. Each call is one kernel of csrc/ in the variant for this
// processor, or a kernel of the same name and formula on a GPU, with pointers into its memory. A call names
// its arguments: what it leaves out is null, empty or false.
#pragma once

#include <cstdint>

#include "matrix.h"

namespace program {

struct Spmm {
  Edges edges = {};
  ConstMatrix x = {};
  Factors factors = {};
  double loop_scale = 0;
  int64_t num_loops = 0;
  bool skip_loops = false, mean = false;
  ConstMatrix addend = {};
  Matrix out = {};
  RowEpilogue after = {};
};
void spmm(const Spmm& a);

struct SpmmMax {
  Edges edges = {};
  ConstMatrix x = {};
  int ties = 0;  // as numbered in csrc/aggregate/spmm_max.h
  Matrix out = {};
  int32_t* found = nullptr;  // for the gradient; null: not asked for
};
void spmm_max(const SpmmMax& a);

struct SpmmMaxBackward {
  Edges edges = {};
  ConstMatrix share = {}, largest = {}, x = {};
  Matrix out = {};
};
void spmm_max_shared_backward(const SpmmMaxBackward& a);

struct TallProduct {
  ConstMatrix a = {}, b = {};
  Matrix out = {};
  bool add = false;
  const int64_t* ids = nullptr;  // the rows of a; null: all
  RowEpilogue after = {};
};
void tall_product(const TallProduct& a);

struct TallGram {
  ConstMatrix a = {}, b = {};
  Matrix out = {};
  const int64_t* ids = nullptr;  // the rows of b; null: all
};
void tall_gram(const TallGram& a);

// Rows of zeros and ones as bits: see csrc/dense/bit_product.h.
struct BitProduct {
  const int32_t* bits = nullptr;
  const float* factors = nullptr;
  ConstMatrix b = {};
  Matrix out = {};
  bool add = false;
  RowEpilogue after = {};
};
void bit_product(const BitProduct& a);

struct BitGram {
  ConstMatrix a = {};
  const int32_t* bits = nullptr;
  const float* factors = nullptr;
  Matrix out = {};
};
void bit_gram(const BitGram& a);

struct RowwiseEpilogue {
  ConstMatrix x = {};
  RowEpilogue how = {};
  Matrix out = {};
};
void epilogue(const RowwiseEpilogue& a);

struct EpilogueBackward {
  ConstMatrix grad = {}, result = {};
  RowEpilogue how = {};
  Matrix grad_x = {};
  float* grad_bias = nullptr;
};
void epilogue_backward(const EpilogueBackward& a);

// Attention over the edges; above and share are kept for the backward pass, which takes the edges by source,
// too. Without them nothing is kept.
struct GatForward {
  Edges edges = {};
  ConstMatrix x = {}, src_logit = {}, dst_logit = {};
  Attention how = {};
  Matrix out = {}, lse = {}, above = {}, share = {};
};
void gat_forward(const GatForward& a);

struct GatBackward {
  Edges edges = {}, by_source = {};
  const int64_t* perm = nullptr;
  ConstMatrix x = {}, src_logit = {}, dst_logit = {};
  Attention how = {};
  Matrix out = {}, lse = {};
  ConstMatrix grad = {};
  Matrix grad_x = {}, grad_src_logit = {}, grad_dst_logit = {}, above = {}, share = {};
};
void gat_backward(const GatBackward& a);

// (heads, channels) to (heads * channels, heads): the numbers of each head in its own rows and column.
struct SpreadHeads {
  const float* x = nullptr;
  int64_t heads = 0, channels = 0;
  Matrix out = {};
};
void spread_heads(const SpreadHeads& a);

// (heads, heads * channels) to (heads, channels): of each row the columns of its own head.
struct OwnHeads {
  ConstMatrix x = {};
  float* out = nullptr;
};
void own_heads(const OwnHeads& a);

struct Elements {
  ConstMatrix x = {};
  Matrix out = {};
};
// out = the mean of as many blocks of columns as x has of out's.
void mean_of_heads(const Elements& a);

// out = x * factor in each block of its columns.
struct RepeatHeads {
  ConstMatrix x = {};
  double factor = 1;
  Matrix out = {};
};
void repeat_heads(const RepeatHeads& a);

// The mean and 1 / sqrt(variance + eps) of x's columns, which get a share in the running mean and variance.
struct BatchStatistics {
  ConstMatrix x = {};
  float *running_mean = nullptr, *running_variance = nullptr;
  double share = 0, eps = 0;
  float *mean = nullptr, *rstd = nullptr;
};
void batch_statistics(const BatchStatistics& a);

// The same numbers of a running mean and variance, which stay.
struct RunningStatistics {
  const float *running_mean = nullptr, *running_variance = nullptr;
  int64_t width = 0;
  double eps = 0;
  float *mean = nullptr, *rstd = nullptr;
};
void running_statistics(const RunningStatistics& a);

struct BatchNorm {
  ConstMatrix x = {};
  const float *mean = nullptr, *rstd = nullptr, *weight = nullptr, *bias = nullptr;
  Matrix out = {};
};
void batch_norm(const BatchNorm& a);

struct BatchNormBackward {
  ConstMatrix grad = {}, x = {};
  const float *mean = nullptr, *rstd = nullptr, *weight = nullptr;
  bool from_rows = false;  // whether the statistics are those of x's rows
  Matrix grad_x = {};
  float *grad_weight = nullptr, *grad_bias = nullptr;
};
void batch_norm_backward(const BatchNormBackward& a);

// The cross entropy of labelled rows, summed and divided by their number on all ranks; writes its gradient,
// which is 0 elsewhere.
struct LossInput {
  ConstMatrix outputs = {};
  LabelledRows nodes = {};
  Matrix grad = {};
};
double cross_entropy(const LossInput& a);
// The number of labelled rows whose largest column is their label.
int64_t num_right(ConstMatrix outputs, const LabelledRows& nodes);

// The same of targets, one for each output of a row: losses are divided by `total` times the columns.
double binary_cross_entropy(const LossInput& a);
double mean_squared(const LossInput& a);
// The number of outputs above 0 just where their target is above 1/2; the sum of squared differences.
int64_t num_right_signs(ConstMatrix outputs, const LabelledRows& nodes);
double squared_errors(ConstMatrix outputs, const LabelledRows& nodes);

// out = 0, out = x, out += x, out = x / divisor, element by element.
void set_zero(Matrix out);
void copy(const Elements& a);
struct Counts {
  const int32_t* x = nullptr;
  Matrix out = {};
};
void copy_counts(const Counts& a);
void add(const Elements& a);
struct Divide {
  ConstMatrix x = {}, divisor = {};
  Matrix out = {};
};
void divide(const Divide& a);

}  // namespace program
