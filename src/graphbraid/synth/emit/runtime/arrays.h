// Arrays in .npy files: mapped to read, written whole.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace program {

// A file mapped into memory, never written to.
class Array {
 public:
  // Maps an array whose dtype ("<f4", "<i4" or "<i8") and shape must be these; throws std::runtime_error.
  Array(const std::string& path, const std::string& dtype, const std::vector<int64_t>& shape);
  Array(Array&& other) noexcept;
  Array& operator=(Array&&) = delete;
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  ~Array();

  const float* floats() const { return static_cast<const float*>(values_); }
  const int32_t* int32s() const { return static_cast<const int32_t*>(values_); }
  const int64_t* int64s() const { return static_cast<const int64_t*>(values_); }
  const void* values() const { return values_; }

 private:
  void* file_ = nullptr;
  int64_t file_bytes_ = 0;
  const void* values_ = nullptr;
};

// Writes float32 values as an array of this shape; throws std::runtime_error.
void write_floats(const std::string& path, const float* values, const std::vector<int64_t>& shape);

}  // namespace program
