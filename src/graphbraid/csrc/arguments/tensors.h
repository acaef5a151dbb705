// Tensors as PyTorch has them: what to say of those that come from Python, and those that are made here.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace gb {

// What there is to say of tensors but for their address and their numbers, for comparisons: dtypes, sizes,
// whether they are contiguous and want gradients. Nothing if one is of a class of its own.
std::optional<nanobind::bytes> forms_of(const nanobind::list& tensors);

// A float32 tensor over memory that it keeps, row by row, with one to three sizes.
nanobind::object tensor_over(std::shared_ptr<float> memory, const std::vector<int64_t>& sizes);

}  // namespace gb
