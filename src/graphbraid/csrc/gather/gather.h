// Gathering rows by id: out[i, :] = table[ids[i], :], as bytes or widened to float32.
#pragma once

#include <cstdint>

#include "base/dtypes.h"

namespace gb {

// table   (num_rows, row_bytes)
// ids     (num_ids,) int64, in [0, num_rows)
// out     (num_ids, row_bytes), overwritten; must not overlap table
void gather_rows(const char* table, int64_t row_bytes, const int64_t* ids, int64_t num_ids, char* out);

// A table whose rows are gathered for a batch.
struct FeatureRows {
  const char* data = nullptr;  // null: nothing to gather
  int64_t row_bytes = 0;
};

// slots   (count,): rows of the table; negative if the table does not have the row
// out     as above; rows that the table does not have are not written
void copy_slots(const char* table, int64_t row_bytes, const int32_t* slots, int64_t count, char* out);

// table   (num_rows, width) float32, bfloat16 or float16
// out     (num_ids, width) float32, overwritten; must not overlap table
void gather_as_float(const void* table, DType dtype, int64_t width, const int64_t* ids, int64_t num_ids,
                     float* out);

// scale   (num_rows,): the factor of each row's numbers
void gather_scaled(const int8_t* table, const float* scale, int64_t width, const int64_t* ids,
                   int64_t num_ids, float* out);

}  // namespace gb
