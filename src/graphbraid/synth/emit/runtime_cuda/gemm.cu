#include <cublas_v2.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "gemm.h"

namespace program {
namespace {

void require(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(std::string("cuBLAS failed at ") + what + ": " + cublasGetStatusString(status));
}

// Sums stay in float32: cuBLAS uses TF32 only if it is asked to.
cublasHandle_t handle() {
  static const cublasHandle_t made = [] {
    cublasHandle_t fresh = nullptr;
    require(cublasCreate(&fresh), "its start");
    return fresh;
  }();
  return made;
}

// A matrix as cuBLAS takes it. Its matrices have contiguous columns, so it takes rows of ours for the columns
// of the transpose.
struct Operand {
  const float* data;
  cublasOperation_t how;
  int64_t stride;

  explicit Operand(ConstMatrix m) : data(m.data) {
    const bool has_rows = m.column_stride == 1;
    how = has_rows ? CUBLAS_OP_N : CUBLAS_OP_T;
    stride = has_rows ? std::max(m.row_stride, m.columns) : std::max(m.column_stride, m.rows);
  }
};

}  // namespace

void prepare_gemm() { handle(); }

void gemm(ConstMatrix a, ConstMatrix b, Matrix out, bool add) {
  const float one = 1.0f, kept = add ? 1.0f : 0.0f;
  const Operand first(b), second(a);  // outᵀ = bᵀ aᵀ
  require(cublasSgemm_64(handle(), first.how, second.how, out.columns, out.rows, a.columns, &one, first.data,
                         first.stride, second.data, second.stride, &kept, out.data, out.row_stride),
          "a product");
}

}  // namespace program
