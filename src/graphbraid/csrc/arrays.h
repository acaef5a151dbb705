// Array arguments as they cross from Python: nanobind views over CPU tensors, and helpers to check and return
// them.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <memory>
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

// Hands a vector to Python as a tensor without copying it.
template <typename T>
nb::ndarray<nb::pytorch, T, nb::ndim<1>> as_tensor(std::vector<T>&& values) {
  auto* owned = new std::vector<T>(std::move(values));
  nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::ndarray<nb::pytorch, T, nb::ndim<1>>(owned->data(), {owned->size()}, owner);
}

}  // namespace gb
