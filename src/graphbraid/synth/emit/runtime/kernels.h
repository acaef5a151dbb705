// graphbraid's kernels on plain pointers. Each call is one kernel of csrc/, in the variant for this
// processor.
#pragma once

#include <cstdint>

#include "epilogue.h"
#include "matrix.h"

namespace program {

// The edges into each of num_rows rows.
struct Edges {
  const int64_t* indptr;
  const void* indices;
  bool wide;  // whether ids have 64 bits instead of 32
  int64_t num_rows, num_edges;
};

// Takes the fastest kernels that this processor can run; call it first.
void choose_variant();

// What follows a kernel's sums, row by row: dropout(act(row + bias), p).
gb::Epilogue row_epilogue(const float* bias, int act, double slope, double p, uint64_t seed,
                          const int64_t* ids);

void spmm(const Edges& edges, ConstMatrix x, const Factors& factors, double loop_scale, int64_t num_loops,
          bool skip_loops, bool mean, ConstMatrix addend, Matrix out, const gb::Epilogue* after);
// ties: as numbered in csrc/spmm_max.h.
void spmm_max(const Edges& edges, ConstMatrix x, int ties, Matrix out, int32_t* found);
void spmm_max_shared_backward(const Edges& edges, ConstMatrix share, ConstMatrix largest, ConstMatrix x,
                              Matrix out);
void tall_product(ConstMatrix a, ConstMatrix b, Matrix out, bool add, const int64_t* ids,
                  const gb::Epilogue* after);
void tall_gram(ConstMatrix a, ConstMatrix b, Matrix out, const int64_t* ids);
// Rows of zeros and ones as bits: see csrc/bit_product.h.
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
// GATv2's attention, by the rows of both ends of each edge and the vectors of the heads, (heads, channels).
void gatv2_forward(const Edges& edges, ConstMatrix x, ConstMatrix own, ConstMatrix vectors,
                   const Attention& how, Matrix out, Matrix lse);
void gatv2_backward(const Edges& edges, const Edges& by_source, const int64_t* perm, ConstMatrix x,
                    ConstMatrix own, ConstMatrix vectors, const Attention& how, Matrix out, Matrix lse,
                    ConstMatrix grad, Matrix grad_x, Matrix grad_own, Matrix grad_vectors);
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
// The mean and the biased variance of x's columns.
void column_moments(ConstMatrix x, float* mean, float* variance);
// Gives the running ones their share of a mean and a biased variance of num_rows rows; rstd holds the
// variance and becomes 1 / sqrt(variance + eps).
void track_statistics(const float* mean, float* rstd, int64_t num_rows, int64_t width, float* running_mean,
                      float* running_variance, double share, double eps);
// The same numbers of a running mean and variance, which stay.
void running_statistics(const float* running_mean, const float* running_variance, int64_t width, double eps,
                        float* mean, float* rstd);
// from_rows: whether the statistics are those of x's rows.
void batch_norm(ConstMatrix x, const float* mean, const float* rstd, const float* weight, const float* bias,
                Matrix out);
void batch_norm_backward(ConstMatrix grad, ConstMatrix x, const float* mean, const float* rstd,
                         const float* weight, bool from_rows, Matrix grad_x, float* grad_weight,
                         float* grad_bias);

// Rows normalised each by its own mean and variance, which are kept for the backward pass, if not null.
void layer_norm(ConstMatrix x, const float* weight, const float* bias, double eps, Matrix out, float* mean,
                float* rstd);
void layer_norm_backward(ConstMatrix grad, ConstMatrix x, const float* weight, const float* mean,
                         const float* rstd, Matrix grad_x, float* grad_weight, float* grad_bias);

// out = (1 + factor) x, or that added to out; and the factor's gradient, the sum of grad * x.
void scale(ConstMatrix x, const float* factor, Matrix out, bool add);
void factor_gradient(ConstMatrix grad, ConstMatrix x, float* out);

// out = 0, out = x, out += x, out = x / divisor, element by element.
void set_zero(Matrix out);
void copy(ConstMatrix x, Matrix out);
void copy(const int32_t* x, Matrix out);
void add(ConstMatrix x, Matrix out);
void divide(ConstMatrix x, ConstMatrix divisor, Matrix out);

}  // namespace program
