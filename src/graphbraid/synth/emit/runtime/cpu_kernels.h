// What a program for processors has beside the kernels of every target.
#pragma once

#include <cstdint>

#include "kernels.h"

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

// GATv2's attention, by the rows of both ends of each edge and the vectors of the heads, (heads, channels).
void gatv2_forward(const Edges& edges, ConstMatrix x, ConstMatrix own, ConstMatrix vectors,
                   const Attention& how, Matrix out, Matrix lse);
void gatv2_backward(const Edges& edges, const Edges& by_source, const int64_t* perm, ConstMatrix x,
                    ConstMatrix own, ConstMatrix vectors, const Attention& how, Matrix out, Matrix lse,
                    ConstMatrix grad, Matrix grad_x, Matrix grad_own, Matrix grad_vectors);

// The mean and the biased variance of x's columns.
void column_moments(ConstMatrix x, float* mean, float* variance);
// Gives the running ones their share of a mean and a biased variance of num_rows rows; rstd holds the
// variance and becomes 1 / sqrt(variance + eps).
void track_statistics(const float* mean, float* rstd, int64_t num_rows, int64_t width, float* running_mean,
                      float* running_variance, double share, double eps);

// Rows normalised each by its own mean and variance, which are kept for the backward pass, if not null.
void layer_norm(ConstMatrix x, const float* weight, const float* bias, double eps, Matrix out, float* mean,
                float* rstd);
void layer_norm_backward(ConstMatrix grad, ConstMatrix x, const float* weight, const float* mean,
                         const float* rstd, Matrix grad_x, float* grad_weight, float* grad_bias);

// out = (1 + factor) x, or that added to out; and the factor's gradient, the sum of grad * x.
void scale(ConstMatrix x, const float* factor, Matrix out, bool add);
void factor_gradient(ConstMatrix grad, ConstMatrix x, float* out);

}  // namespace program
