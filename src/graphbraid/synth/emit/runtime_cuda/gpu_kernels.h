// What a program for a GPU has beside the kernels of every target.
#pragma once

#include <cstdint>

#include "kernels.h"

namespace program {

// What the device code is told of an epilogue.
gb::Epilogue epilogue_of(const RowEpilogue& how);

// The sums of spmm over the transpose of the edges, which is not stored: each row is added to those of its
// edges' sources, with atomics, in no fixed order. There is no mean and no epilogue.
void spmm_transposed(const Spmm& a);

}  // namespace program
