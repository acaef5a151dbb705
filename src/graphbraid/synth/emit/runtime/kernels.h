// The kernels that programs for every target call. Each call is one kernel of csrc/ in the variant for this
// processor, or a kernel of the same name and formula on a GPU, with pointers into its memory.
#pragma once

#include <cstdint>

#include "arguments/epilogue.h"
#include "matrix.h"

namespace program {

struct Edges;  // see cpu_kernels.h and gpu_kernels.h

// What follows a kernel's sums, row by row: dropout(act(row + bias), p).
gb::Epilogue row_epilogue(const float* bias, int act, double slope, double p, uint64_t seed,
                          const int64_t* ids);

void spmm(const Edges& edges, ConstMatrix x, const Factors& factors, double loop_scale, int64_t num_loops,
          bool skip_loops, bool mean, ConstMatrix addend, Matrix out, const gb::Epilogue* after);
// ties: as numbered in csrc/aggregate/spmm_max.h.
void spmm_max(const Edges& edges, ConstMatrix x, int ties, Matrix out, int32_t* found);
void spmm_max_shared_backward(const Edges& edges, ConstMatrix share, ConstMatrix largest, ConstMatrix x,
                              Matrix out);
void tall_product(ConstMatrix a, ConstMatrix b, Matrix out, bool add, const int64_t* ids,
                  const gb::Epilogue* after);
void tall_gram(ConstMatrix a, ConstMatrix b, Matrix out, const int64_t* ids);
// Rows of zeros and ones as bits: see csrc/dense/bit_product.h.
void bit_product(const int32_t* bits, const float* factors, ConstMatrix b, Matrix out, bool add,
                 const gb::Epilogue* after);
void bit_gram(ConstMatrix a, const int32_t* bits, const float* factors, Matrix out);
void epilogue(ConstMatrix x, const gb::Epilogue& how, Matrix out);
void epilogue_backward(ConstMatrix grad, ConstMatrix result, const gb::Epilogue& how, Matrix grad_x,
                       float* grad_bias);

// Attention over the edges; above and share are kept for the backward pass, which takes the edges by source,
// too.
void gat_forward(const Edges& edges, ConstMatrix x, ConstMatrix src_logit, ConstMatrix dst_logit,
                 const Attention& how, Matrix out, Matrix lse, Matrix above, Matrix share);
void gat_backward(const Edges& edges, const Edges& by_source, const int64_t* perm, ConstMatrix x,
                  ConstMatrix src_logit, ConstMatrix dst_logit, const Attention& how, Matrix out, Matrix lse,
                  ConstMatrix grad, Matrix grad_x, Matrix grad_src_logit, Matrix grad_dst_logit, Matrix above,
                  Matrix share);
// (heads, channels) to (heads * channels, heads): the numbers of each head in its own rows and column.
void spread_heads(const float* x, int64_t heads, int64_t channels, Matrix out);
// (heads, heads * channels) to (heads, channels): of each row the columns of its own head.
void own_heads(ConstMatrix x, float* out);
// out = the mean of as many blocks of columns as x has of out's.
void mean_of_heads(ConstMatrix x, Matrix out);
// out = x * factor in each block of its columns.
void repeat_heads(ConstMatrix x, float factor, Matrix out);

// The mean and 1 / sqrt(variance + eps) of x's columns, which get a share in the running mean and variance.
void batch_statistics(ConstMatrix x, float* running_mean, float* running_variance, double share, double eps,
                      float* mean, float* rstd);
// The same numbers of a running mean and variance, which stay.
void running_statistics(const float* running_mean, const float* running_variance, int64_t width, double eps,
                        float* mean, float* rstd);
// from_rows: whether the statistics are those of x's rows.
void batch_norm(ConstMatrix x, const float* mean, const float* rstd, const float* weight, const float* bias,
                Matrix out);
void batch_norm_backward(ConstMatrix grad, ConstMatrix x, const float* mean, const float* rstd,
                         const float* weight, bool from_rows, Matrix grad_x, float* grad_weight,
                         float* grad_bias);

// The cross entropy of the outputs' `rows`, (count,), each another one, with `labels`, (count,), summed and
// divided by `total`, the number of all ranks' rows; writes its gradient, which is 0 elsewhere.
double cross_entropy(ConstMatrix outputs, const int64_t* rows, const int64_t* labels, int64_t count,
                     int64_t total, Matrix grad);
// The number of the outputs' `rows` whose largest column is their label.
int64_t num_right(ConstMatrix outputs, const int64_t* rows, const int64_t* labels, int64_t count);

// out = 0, out = x, out += x, out = x / divisor, element by element.
void set_zero(Matrix out);
void copy(ConstMatrix x, Matrix out);
void copy(const int32_t* x, Matrix out);
void add(ConstMatrix x, Matrix out);
void divide(ConstMatrix x, ConstMatrix divisor, Matrix out);

}  // namespace program
