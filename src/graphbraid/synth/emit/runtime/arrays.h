// Arrays in .npy files: mapped to read, written whole.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace program {

// The product of an array's lengths.
int64_t count_of(const std::vector<int64_t>& shape);

// A file that is mapped into memory to be read.
class Array {
 public:
  // Maps an array. Throws std::runtime_error if its dtype ("<f4", "<i4" or "<i8") or shape is another one, or
  // the XXH64 of its values, where one is given.
  Array(const std::string& path, const std::string& dtype, const std::vector<int64_t>& shape,
        std::optional<uint64_t> digest = std::nullopt);
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
  explicit Array(const std::string& path);

  void* file_ = nullptr;
  int64_t file_bytes_ = 0;
  const void* values_ = nullptr;
};

// A folder of arrays. The name of an array is that of its file without .npy.
struct Folder {
  std::string path;

  Array floats(const char* name, const std::vector<int64_t>& shape, uint64_t digest) const {
    return {path + "/" + name + ".npy", "<f4", shape, digest};
  }
  Array int32s(const char* name, const std::vector<int64_t>& shape, uint64_t digest) const {
    return {path + "/" + name + ".npy", "<i4", shape, digest};
  }
  Array int64s(const char* name, const std::vector<int64_t>& shape, uint64_t digest) const {
    return {path + "/" + name + ".npy", "<i8", shape, digest};
  }
};

// Writes an array. A file of this name is replaced once all values are written. Throws std::runtime_error.
void write_array(const std::string& path, const std::string& dtype, const void* values,
                 const std::vector<int64_t>& shape);

}  // namespace program
