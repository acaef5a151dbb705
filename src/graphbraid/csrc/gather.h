// Gathering rows by id: out[i, :] = table[ids[i], :], as bytes.
#pragma once

#include <cstdint>

namespace gb {

// table   (num_rows, row_bytes)
// ids     (num_ids,) int64, in [0, num_rows)
// out     (num_ids, row_bytes), overwritten; must not overlap table
void gather_rows(const char* table, int64_t row_bytes, const int64_t* ids, int64_t num_ids, char* out);

}  // namespace gb
