// The product of dense matrices: cuBLAS (gemm.cu), or plain loops where a program runs on the processor
// (gemm_on_host.cpp).
#pragma once

#include "matrix.h"

namespace program {

// out = a * b, or out += a * b. Of a and b each the rows or the columns are contiguous, of out the rows.
void gemm(ConstMatrix a, ConstMatrix b, Matrix out, bool add);

// Makes what the products need.
void prepare_gemm();

}  // namespace program
