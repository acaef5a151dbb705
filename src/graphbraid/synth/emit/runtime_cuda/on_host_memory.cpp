// The memory of the GPU that on_host.h emulates: it is the processor's.
#include <cstdlib>
#include <map>

#include "on_host.h"

namespace {

constexpr size_t kUsualBytes = size_t{1} << 36;

size_t total_bytes() {
  const char* text = std::getenv("GB_HOST_GPU_BYTES");
  return text == nullptr ? kUsualBytes : static_cast<size_t>(std::strtoull(text, nullptr, 10));
}

std::map<void*, size_t>& taken() {
  static std::map<void*, size_t> bytes_at;
  return bytes_at;
}

size_t free_bytes() {
  size_t used = 0;
  for (const auto& [begin, bytes] : taken()) used += bytes;
  return used < total_bytes() ? total_bytes() - used : 0;
}

}  // namespace

cudaError_t cudaMalloc(void** to, size_t bytes) {
  if (bytes > free_bytes()) return cudaErrorMemoryAllocation;
  *to = std::malloc(bytes);
  if (*to == nullptr) return cudaErrorMemoryAllocation;
  std::memset(*to, 0xFF, bytes);
  taken()[*to] = bytes;
  return cudaSuccess;
}

cudaError_t cudaFree(void* begin) {
  taken().erase(begin);
  std::free(begin);
  return cudaSuccess;
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  if (bytes > 0) std::memcpy(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  if (bytes > 0) std::memset(to, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *free = free_bytes();
  *total = total_bytes();
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = total_bytes() > 0 ? 1 : 0;
  return *count > 0 ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* found, int) {
  std::strcpy(found->name, "the processor in place of a GPU");
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

const char* cudaGetErrorString(cudaError_t code) {
  if (code == cudaErrorMemoryAllocation) return "out of memory";
  return code == cudaErrorNoDevice ? "no CUDA-capable device is detected" : "no error";
}
