// An emulation of CUDA on the processor, as far as the sources here need it. The threads of a block run by
// turns, blocks run one after the other. It is slow: it checks the kernels where there is no GPU.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#define __global__
#define __device__
#define __shared__ static  // one block runs at a time

struct Index3 {
  unsigned x = 0, y = 0, z = 0;
};
extern Index3 threadIdx, blockIdx, blockDim, gridDim;

namespace on_host {

// Runs a kernel. Its threads run in the order of their numbers, each to its end or to where it waits for
// others. With the environment variable GB_HOST_BACKWARDS they run in the opposite order, which shows results
// that depend on the order.
void run(const char* name, int64_t blocks, int threads, const std::function<void()>& kernel);

// Gives `bits` to the lanes of this thread's warp, and returns the bits of the given lane.
uint64_t exchange(uint64_t bits, int lane);
int lane();

}  // namespace on_host

void __syncthreads();
void __syncwarp();

template <typename T>
T __shfl_sync(unsigned, T value, int lane) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = on_host::exchange(bits, lane);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
template <typename T>
T __shfl_xor_sync(unsigned mask, T value, int lanes) {
  return __shfl_sync(mask, value, on_host::lane() ^ lanes);
}

// Each result is rounded by itself: -ffp-contract=off keeps the compiler from fusing them.
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }

inline int __ffs(int word) { return __builtin_ffs(word); }

enum cudaError_t { cudaSuccess = 0, cudaErrorMemoryAllocation = 2, cudaErrorNoDevice = 100 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };
struct cudaDeviceProp {
  char name[256];
};

// The environment variable GB_HOST_GPU_BYTES is the memory of the emulated GPU in bytes; 0 means that there
// is no GPU. New memory is full of NaNs, so that a read before the first write shows.
cudaError_t cudaMalloc(void** to, size_t bytes);
cudaError_t cudaFree(void* begin);
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind);
cudaError_t cudaMemset(void* to, int value, size_t bytes);
cudaError_t cudaMemGetInfo(size_t* free, size_t* total);
cudaError_t cudaGetDeviceCount(int* count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* found, int device);
cudaError_t cudaDeviceSynchronize();
const char* cudaGetErrorString(cudaError_t code);
