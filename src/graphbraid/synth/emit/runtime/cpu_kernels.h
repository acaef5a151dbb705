// What a program for processors has beside the kernels of every target.
#pragma once

#include <cstdint>

#include "kernels.h"

namespace program {

// Takes the fastest kernels that this processor can run; call it first.
void choose_variant();

// What csrc/ is told of an epilogue.
gb::Epilogue epilogue_of(const RowEpilogue& how);

// The mean and the biased variance of x's columns.
void column_moments(ConstMatrix x, float* mean, float* variance);
// Gives the running ones their share of a mean and a biased variance of num_rows rows; rstd holds the
// variance and becomes 1 / sqrt(variance + eps).
void track_statistics(const BatchStatistics& a, int64_t num_rows);

}  // namespace program
