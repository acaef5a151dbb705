// Arrays in .npy files: mapped to read, written whole.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace program {

// The product of an array's lengths.
int64_t count_of(const std::vector<int64_t>& shape);

// A file mapped into memory, never written to.
class Array {
 public:
  // Maps an array whose dtype ("<f4", "<i4" or "<i8") and shape must be these, and the XXH64 of its values
  // this one, if any; throws std::runtime_error.
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

// A folder of arrays, each opened by its name, which is its file's without .npy.
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

// Writes values as an array of this dtype and shape, in place of a file of that name once they are all
// written; throws std::runtime_error.
void write_array(const std::string& path, const std::string& dtype, const void* values,
                 const std::vector<int64_t>& shape);

}  // namespace program
