// Array arguments as they cross from Python: nanobind views over CPU tensors, the checks every binding makes
// of them in constant time, and the way back.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace nb = nanobind;

namespace gb {

template <typename T>
using Array1 = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <typename T>
using Array2 = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
// Any dtype, any shape: for rows that are only moved.
using AnyArray = nb::ndarray<nb::c_contig, nb::device::cpu>;

using Tensor1I64 = nb::ndarray<nb::pytorch, int64_t, nb::ndim<1>>;
using Tensor1I32 = nb::ndarray<nb::pytorch, int32_t, nb::ndim<1>>;

// Arguments are positional or named, and never converted: an output that was copied on the way in would be
// lost, and ids of another type would be cut off.
inline auto array_arg(const char* name) { return nb::arg(name).noconvert(); }
inline auto optional_arg(const char* name) { return nb::arg(name).noconvert() = nb::none(); }

[[noreturn]] inline void refuse(const std::string& message) { throw nb::value_error(message.c_str()); }

inline void need(bool condition, const char* message) {
  if (!condition) refuse(message);
}

template <typename Array>
void need_length(const Array& array, int64_t length, const char* name) {
  const int64_t found = static_cast<int64_t>(array.shape(0));
  if (found != length)
    refuse(std::string(name) + " must have length " + std::to_string(length) + "; got " +
           std::to_string(found));
}

template <typename Array>
void need_length(const std::optional<Array>& array, int64_t length, const char* name) {
  if (array) need_length(*array, length, name);
}

template <typename Array>
void need_shape(const Array& array, int64_t rows, int64_t columns, const char* name) {
  const int64_t found_rows = static_cast<int64_t>(array.shape(0));
  const int64_t found_columns = static_cast<int64_t>(array.shape(1));
  if (found_rows != rows || found_columns != columns)
    refuse(std::string(name) + " must have shape (" + std::to_string(rows) + ", " + std::to_string(columns) +
           "); got (" + std::to_string(found_rows) + ", " + std::to_string(found_columns) + ")");
}

// A number of things, in [least, most].
inline void need_count(int64_t count, int64_t least, int64_t most, const char* name) {
  if (count < least || count > most)
    refuse(std::string(name) + " must lie in [" + std::to_string(least) + ", " + std::to_string(most) +
           "]; got " + std::to_string(count));
}

// More of anything than memory has bytes for; its products with a size of a few bytes stay below 2^63.
inline constexpr int64_t kMostItems = int64_t{1} << 56;

// How many rows an indptr has, which must run from 0 to num_edges. That it never falls was seen when the
// graph was made.
template <typename Indptr>
int64_t rows_between(const Indptr& indptr, int64_t num_edges, const char* name = "indptr") {
  const int64_t num_rows = static_cast<int64_t>(indptr.shape(0)) - 1;
  if (num_rows < 0) refuse(std::string(name) + " must not be empty");
  const int64_t first = indptr.data()[0], last = indptr.data()[num_rows];
  if (first != 0 || last != num_edges)
    refuse(std::string(name) + " must run from 0 to " + std::to_string(num_edges) + "; it runs from " +
           std::to_string(first) + " to " + std::to_string(last));
  return num_rows;
}

// Hands a vector to Python as a tensor without copying it.
template <typename T>
nb::ndarray<nb::pytorch, T, nb::ndim<1>> as_tensor(std::vector<T>&& values) {
  auto* owned = new std::vector<T>(std::move(values));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::ndarray<nb::pytorch, T, nb::ndim<1>>(owned->data(), {owned->size()}, owner);
}

}  // namespace gb
