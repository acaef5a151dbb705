// An epilogue as it crosses from Python, checked: the fields of RowEpilogue in ops/row_epilogue.py.
#pragma once

#include <nanobind/stl/tuple.h>

#include <optional>
#include <tuple>

#include "epilogue.h"
#include "rows.h"

namespace gb {

using OptionalIds = std::optional<Array1<const int64_t>>;
// bias, act, slope, p, seed, ids
using EpilogueTuple = std::tuple<OptionalVector, int, double, double, uint64_t, OptionalIds>;

// Of (num_rows, width) rows of `dtype`.
inline Epilogue epilogue_of(const OptionalVector& bias, int act, double slope, double p, uint64_t seed,
                            const OptionalIds& ids, DType dtype, int64_t num_rows, int64_t width) {
  need(act >= 0 && act <= 3, "unknown activation");
  need(p >= 0 && p < 1, "p must lie in [0, 1)");
  Epilogue e;
  e.act = static_cast<Act>(act);
  e.slope = slope;
  e.bias = coefficients(bias, dtype, width, "bias");
  e.threshold = static_cast<uint32_t>(p * 4294967296.0);
  e.keep_scale = 1.0 / (1.0 - p);
  e.seed = seed;
  if (ids) {
    need_length(*ids, num_rows, "ids");
    e.ids = ids->data();
  }
  return e;
}

inline std::optional<Epilogue> epilogue_of(const std::optional<EpilogueTuple>& fields, DType dtype,
                                           int64_t num_rows, int64_t width) {
  if (!fields) return std::nullopt;
  const auto& [bias, act, slope, p, seed, ids] = *fields;
  return epilogue_of(bias, act, slope, p, seed, ids, dtype, num_rows, width);
}

}  // namespace gb
