// Reads an epilogue as it crosses from Python: the fields of RowEpilogue in ops/library.py.
#pragma once

#include <nanobind/stl/tuple.h>

#include <tuple>

#include "arguments/edge_rows.h"
#include "arguments/epilogue.h"
#include "base/dropout.h"

namespace gb {

// bias, act, slope, p, seed, ids
using EpilogueTuple = std::tuple<OptionalVector, int, double, double, uint64_t, OptionalIds>;
using OptionalEpilogue = std::optional<EpilogueTuple>;

inline void take(OptionalEpilogue& after, const char*) {
  if (!after) return;
  take(std::get<0>(*after), "after.bias");
  take(std::get<5>(*after), "after.ids");
}

// The epilogue of (num_rows, width) rows of `dtype`.
inline Epilogue epilogue_of(const OptionalVector& bias, int act, double slope, double p, uint64_t seed,
                            const OptionalIds& ids, DType dtype, int64_t num_rows, int64_t width) {
  need_count(act, static_cast<int>(Act::kNone), static_cast<int>(Act::kElu), "act");
  need(p >= 0 && p < 1, "p must lie in [0, 1)");
  Epilogue e;
  e.act = static_cast<Act>(act);
  e.slope = slope;
  e.bias = in_sums(bias, dtype, width);
  e.threshold = drop_threshold(p);
  e.keep_scale = 1.0 / (1.0 - p);
  e.seed = seed;
  need_length(ids, num_rows);
  e.ids = data_or_null(ids);
  return e;
}

inline std::optional<Epilogue> epilogue_of(const OptionalEpilogue& fields, DType dtype, int64_t num_rows,
                                           int64_t width) {
  if (!fields) return std::nullopt;
  const auto& [bias, act, slope, p, seed, ids] = *fields;
  return epilogue_of(bias, act, slope, p, seed, ids, dtype, num_rows, width);
}

}  // namespace gb
