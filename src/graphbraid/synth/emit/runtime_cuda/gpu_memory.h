// The GPU's memory: one allocation, which is divided into parts. Its size is known before anything is read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "matrix.h"

namespace program {

// All that a program takes of the GPU's memory.
class Memory {
 public:
  // Allocates it. Throws std::runtime_error if there is no GPU, or too little memory.
  explicit Memory(int64_t bytes);
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  ~Memory();

  // Returns the next part, whose values are not set.
  void* take(int64_t bytes);
  // The bytes that were taken, and the GPU's name.
  std::string shown() const;

 private:
  int64_t bytes_, taken_ = 0;
  void* begin_ = nullptr;
  std::string gpu_;
};

// A file's array, see arrays.h, on the GPU.
class DeviceArray {
 public:
  DeviceArray(Memory& memory, const std::string& path, const std::string& dtype,
              const std::vector<int64_t>& shape, uint64_t digest);

  const float* floats() const { return static_cast<const float*>(values_); }
  const int32_t* int32s() const { return static_cast<const int32_t*>(values_); }
  const int64_t* int64s() const { return static_cast<const int64_t*>(values_); }
  const void* values() const { return values_; }
  int64_t rows() const { return rows_; }

 private:
  const void* values_;
  int64_t rows_;
};

// The rows with more than `edges` edges, and their parts.
inline LongRows long_rows(int64_t edges, const DeviceArray& rows, const DeviceArray& parts) {
  return {edges, rows.int64s(), rows.rows(), parts.int64s(), parts.rows()};
}

// A folder of arrays, which are copied to the GPU. The name of an array is that of its file without .npy.
struct DeviceFolder {
  Memory& memory;
  std::string path;

  DeviceArray floats(const char* name, const std::vector<int64_t>& shape, uint64_t digest) const {
    return {memory, path + "/" + name + ".npy", "<f4", shape, digest};
  }
  DeviceArray int32s(const char* name, const std::vector<int64_t>& shape, uint64_t digest) const {
    return {memory, path + "/" + name + ".npy", "<i4", shape, digest};
  }
  DeviceArray int64s(const char* name, const std::vector<int64_t>& shape, uint64_t digest) const {
    return {memory, path + "/" + name + ".npy", "<i8", shape, digest};
  }
};

// Numbers that a task of each step writes and later tasks read. They are zeros at first.
class Numbers {
 public:
  Numbers(Memory& memory, int64_t count);
  float* data() { return data_; }

 private:
  float* data_;
};

// The memory of a step's buffers, each at its planned place.
class Arena {
 public:
  Arena(Memory& memory, int64_t bytes) : begin_(static_cast<char*>(memory.take(bytes))) {}
  Tensor at(int64_t offset) const { return Tensor(begin_ + offset); }

 private:
  char* begin_;
};

// Scratch memory of the kernel that runs. All kernels share it.
class Workspace {
 public:
  Workspace(Memory& memory, int64_t bytes);
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace();

  // Its beginning. Throws std::logic_error if it has fewer bytes.
  static void* begin(int64_t bytes);
};

// Waits until the GPU has done all its work. Throws std::runtime_error if some of it failed.
void wait_for_gpu();

}  // namespace program
