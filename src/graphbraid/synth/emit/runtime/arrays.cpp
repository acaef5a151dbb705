#include "arrays.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "base/xxh64.h"

namespace program {
namespace {

constexpr int64_t kPrefix = 10;  // magic, version, and two bytes for the length of the text that follows
constexpr int64_t kAlign = 8;    // bytes of the largest element
constexpr const char* kOthers = "; take the file that this program was written for, or write a new program";

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw std::runtime_error(path + ": " + why);
}

int64_t size_of(const std::string& dtype) { return dtype == "<i8" ? 8 : 4; }

std::string text_of(const std::vector<int64_t>& shape) {
  std::string text = "(";
  for (size_t i = 0; i < shape.size(); ++i) {
    if (i > 0) text += ", ";
    text += std::to_string(shape[i]);
  }
  return text + (shape.size() == 1 ? ",)" : ")");
}

// The text of a header without the spaces and the newline that fill it up.
std::string shown(const std::string& header) { return header.substr(0, header.find_last_not_of(" \n") + 1); }

}  // namespace

int64_t count_of(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t length : shape) count *= length;
  return count;
}

Array::Array(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_NONBLOCK);  // a pipe without a writer is refused at once
  if (file < 0) refuse(path, std::strerror(errno));
  struct stat about{};
  const bool is_known = fstat(file, &about) == 0 && S_ISREG(about.st_mode) && about.st_size > kPrefix;
  void* mapped = is_known ? mmap(nullptr, static_cast<size_t>(about.st_size), PROT_READ, MAP_PRIVATE, file, 0)
                          : MAP_FAILED;
  close(file);
  if (mapped == MAP_FAILED) refuse(path, is_known ? "it cannot be mapped" : "it is no .npy file");
  file_ = mapped;
  file_bytes_ = about.st_size;
}

// The delegated constructor has completed the array: if this one throws, the destructor unmaps the file.
Array::Array(const std::string& path, const std::string& dtype, const std::vector<int64_t>& shape,
             std::optional<uint64_t> digest)
    : Array(path) {
  const auto* bytes = static_cast<const unsigned char*>(file_);
  const int64_t header = std::memcmp(bytes, "\x93NUMPY\x01", 7) == 0 ? bytes[8] + 256 * bytes[9] : -1;
  if (header < 0 || kPrefix + header > file_bytes_ || (kPrefix + header) % kAlign != 0)
    refuse(path, "it is no .npy file of version 1");
  const std::string text(reinterpret_cast<const char*>(bytes) + kPrefix, static_cast<size_t>(header));
  const bool is_as_told = text.find("'descr': '" + dtype + "'") != std::string::npos &&
                          text.find("'fortran_order': False") != std::string::npos &&
                          text.find("'shape': " + text_of(shape)) != std::string::npos;
  if (!is_as_told)
    refuse(path, "it must hold " + dtype + " of shape " + text_of(shape) + "; it says " + shown(text));
  const int64_t size = count_of(shape) * size_of(dtype);
  if (kPrefix + header + size > file_bytes_) refuse(path, "its end is missing");
  if (kPrefix + header + size < file_bytes_) refuse(path, "there are bytes behind its values");
  values_ = bytes + kPrefix + header;
  if (digest && gb::xxh64(static_cast<const char*>(values_), size) != *digest)
    refuse(path, std::string("its values are different") + kOthers);
}

Array::Array(Array&& other) noexcept
    : file_(std::exchange(other.file_, nullptr)), file_bytes_(other.file_bytes_), values_(other.values_) {}

Array::~Array() {
  if (file_ != nullptr) munmap(file_, static_cast<size_t>(file_bytes_));
}

void write_array(const std::string& path, const std::string& dtype, const void* values,
                 const std::vector<int64_t>& shape) {
  std::string header =
      "{'descr': '" + dtype + "', 'fortran_order': False, 'shape': " + text_of(shape) + ", }";
  // Spaces and a newline fill the header up, so that the values begin at a multiple of 64 bytes.
  header.resize((kPrefix + header.size() + 64) / 64 * 64 - kPrefix - 1, ' ');
  header += '\n';
  const unsigned char length[2] = {static_cast<unsigned char>(header.size() % 256),
                                   static_cast<unsigned char>(header.size() / 256)};
  const std::string aside = path + ".part";
  std::FILE* file = std::fopen(aside.c_str(), "wb");
  if (file == nullptr) refuse(path, std::strerror(errno));
  const size_t count = static_cast<size_t>(count_of(shape)), size = static_cast<size_t>(size_of(dtype));
  const bool is_written = std::fwrite("\x93NUMPY\x01\x00", 1, 8, file) == 8 &&
                          std::fwrite(length, 1, 2, file) == 2 &&
                          std::fwrite(header.data(), 1, header.size(), file) == header.size() &&
                          (count == 0 || std::fwrite(values, size, count, file) == count);
  if (std::fclose(file) != 0 || !is_written || std::rename(aside.c_str(), path.c_str()) != 0)
    refuse(path, "it cannot be written");
}

}  // namespace program
