// The declarations of cuBLAS that programs use, as its header has them: enough to compile where nvcc is
// installed without the library.
#pragma once

#include <cstdint>

enum cublasStatus_t { CUBLAS_STATUS_SUCCESS = 0 };
enum cublasOperation_t { CUBLAS_OP_N = 0, CUBLAS_OP_T = 1 };
using cublasHandle_t = struct cublasContext*;

extern "C" {
const char* cublasGetStatusString(cublasStatus_t status);
cublasStatus_t cublasCreate_v2(cublasHandle_t* handle);
cublasStatus_t cublasSgemm_v2_64(cublasHandle_t handle, cublasOperation_t transa, cublasOperation_t transb,
                                 int64_t m, int64_t n, int64_t k, const float* alpha, const float* a,
                                 int64_t lda, const float* b, int64_t ldb, const float* beta, float* c,
                                 int64_t ldc);
}

#define cublasCreate cublasCreate_v2
#define cublasSgemm_64 cublasSgemm_v2_64
