// What a program for a GPU has beside the kernels of every target.
#pragma once

#include "kernels.h"

namespace program {

// The sums of spmm over the transpose of the edges, which is not stored: each row is added to those of its
// edges' sources, with atomics, in no fixed order. There is no mean and no epilogue.
void spmm_transposed(const Spmm& a);

}  // namespace program
