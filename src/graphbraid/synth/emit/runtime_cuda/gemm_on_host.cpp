#include "gemm.h"

namespace program {

void prepare_gemm() {}

void gemm(ConstMatrix a, ConstMatrix b, Matrix out, bool add) {
  for (int64_t i = 0; i < out.rows; ++i)
    for (int64_t j = 0; j < out.columns; ++j) {
      float sum = 0;
      for (int64_t k = 0; k < a.columns; ++k)
        sum +=
            a.data[i * a.row_stride + k * a.column_stride] * b.data[k * b.row_stride + j * b.column_stride];
      float& to = out.data[i * out.row_stride + j];
      to = add ? to + sum : sum;
    }
}

}  // namespace program
