// CUDA's runtime, or its emulation on the processor (on_host.h); checks of errors, and launches of kernels.
#pragma once

#include <cstdint>

#ifdef GB_ON_HOST
#include "on_host.h"
#else
#include <cuda_runtime.h>
#endif

namespace program {

constexpr int kWarp = 32;
constexpr int kThreads = 256;  // of a block

// Throws std::runtime_error if a call of CUDA failed. `what` names the call.
void require(cudaError_t code, const char* what);

// The number of this thread among all of a launch.
__device__ inline int64_t thread_number() { return int64_t{blockIdx.x} * kThreads + threadIdx.x; }

// Starts a kernel with so many blocks. An error that comes while it runs is found by the next call that waits
// for the GPU. With GB_CHECK_EACH_KERNEL each launch waits, and an error names its kernel.
template <typename... Takes, typename... Given>
void launch_blocks(const char* name, void (*kernel)(Takes...), int64_t blocks, const Given&... given) {
  if (blocks == 0) return;
#ifdef GB_ON_HOST
  on_host::run(name, blocks, kThreads, [&] { kernel(given...); });
#else
  // clang-format off
  kernel<<<static_cast<unsigned>(blocks), kThreads>>>(given...);
  // clang-format on
  require(cudaGetLastError(), name);
#ifdef GB_CHECK_EACH_KERNEL
  require(cudaDeviceSynchronize(), name);
#endif
#endif
}

// Starts a kernel with at least so many threads, in whole blocks.
template <typename... Takes, typename... Given>
void launch(const char* name, void (*kernel)(Takes...), int64_t threads, const Given&... given) {
  launch_blocks(name, kernel, (threads + kThreads - 1) / kThreads, given...);
}

}  // namespace program
