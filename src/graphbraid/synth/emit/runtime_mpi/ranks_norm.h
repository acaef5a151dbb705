// Batch normalisation of rows that are divided among ranks.
#pragma once

#include "cpu_kernels.h"
#include "ranks.h"

namespace program {

// Like batch_statistics of kernels.h, of all ranks' rows.
void batch_statistics(Ranks& ranks, ConstMatrix x, float* running_mean, float* running_variance, double share,
                      double eps, float* mean, float* rstd);

// Completes the gradient of the rows, which depend on each other through their statistics: grad_x, which is
// rstd * weight * grad before, loses its averages over all ranks' rows. scratch: of grad_x's shape, written.
// grad_weight and grad_bias: the sums over this rank's rows.
void couple(Ranks& ranks, Matrix grad_x, ConstMatrix x, Matrix scratch, const float* mean, const float* rstd,
            const float* weight, const float* grad_weight, const float* grad_bias);

}  // namespace program
