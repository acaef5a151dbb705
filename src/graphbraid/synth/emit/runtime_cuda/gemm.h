// The product of dense matrices: cuBLAS (gemm.cu), or plain loops where a program runs on the processor
// (gemm_on_host.cpp).
#pragma once

#include "matrix.h"

namespace program {

// out = a * b, or out += a * b. a and b each have contiguous rows or contiguous columns; out has contiguous
// rows.
void gemm(ConstMatrix a, ConstMatrix b, Matrix out, bool add);

// Prepares the products. cuBLAS takes memory of its own here.
void prepare_gemm();

}  // namespace program
