#include <cstdio>
#include <stdexcept>

#include "arrays.h"
#include "gemm.h"
#include "gpu.cuh"
#include "gpu_memory.h"

namespace program {
namespace {

constexpr int64_t kAlign = 256;  // each part begins at a multiple of so many bytes

struct {
  void* begin = nullptr;
  int64_t bytes = 0;
} lent;  // the workspace

std::string gigabytes(double bytes) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f GB", bytes / 1e9);
  return text;
}

int64_t bytes_of(const std::string& dtype, const std::vector<int64_t>& shape) {
  return count_of(shape) * (dtype == "<i8" ? 8 : 4);
}

}  // namespace

void require(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  throw std::runtime_error(std::string("the GPU failed at ") + what + ": " + cudaGetErrorString(code));
}

Memory::Memory(int64_t bytes) : bytes_(bytes) {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code != cudaSuccess || count == 0)
    throw std::runtime_error(std::string("there is no GPU that CUDA can use: ") + cudaGetErrorString(code));
  cudaDeviceProp properties;
  require(cudaGetDeviceProperties(&properties, 0), "the GPU's properties");
  gpu_ = properties.name;
  prepare_gemm();  // takes memory of its own
  size_t free = 0, total = 0;
  require(cudaMemGetInfo(&free, &total), "the GPU's free memory");
  if (static_cast<size_t>(bytes) > free || cudaMalloc(&begin_, static_cast<size_t>(bytes)) != cudaSuccess)
    throw std::runtime_error("this training takes " + gigabytes(static_cast<double>(bytes)) +
                             " of the GPU's memory; of " + gpu_ + " " + gigabytes(static_cast<double>(free)) +
                             " of " + gigabytes(static_cast<double>(total)) + " are free");
}

Memory::~Memory() { cudaFree(begin_); }

void* Memory::take(int64_t bytes) {
  void* part = static_cast<char*>(begin_) + taken_;
  taken_ += (bytes + kAlign - 1) / kAlign * kAlign;
  if (taken_ > bytes_) throw std::logic_error("the GPU's memory is planned too small");
  return part;
}

std::string Memory::shown() const { return std::to_string(taken_) + " bytes of " + gpu_; }

DeviceArray::DeviceArray(Memory& memory, const std::string& path, const std::string& dtype,
                         const std::vector<int64_t>& shape, uint64_t digest) {
  const Array file(path, dtype, shape, digest);
  const int64_t bytes = bytes_of(dtype, shape);
  void* values = memory.take(bytes);
  require(cudaMemcpy(values, file.values(), static_cast<size_t>(bytes), cudaMemcpyHostToDevice),
          path.c_str());
  values_ = values;
  rows_ = shape.empty() ? 1 : shape.front();
}

Numbers::Numbers(Memory& memory, int64_t count) {
  const size_t bytes = static_cast<size_t>(count) * sizeof(float);
  data_ = static_cast<float*>(memory.take(static_cast<int64_t>(bytes)));
  require(cudaMemset(data_, 0, bytes), "the first zeros");
}

Workspace::Workspace(Memory& memory, int64_t bytes) {
  lent.begin = memory.take(bytes);
  lent.bytes = bytes;
}

Workspace::~Workspace() { lent = {}; }

void* Workspace::begin(int64_t bytes) {
  if (bytes > lent.bytes) throw std::logic_error("the kernels' workspace is planned too small");
  return lent.begin;
}

void wait_for_gpu() { require(cudaDeviceSynchronize(), "the step before"); }

}  // namespace program
