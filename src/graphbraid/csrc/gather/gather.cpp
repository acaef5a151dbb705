#include "gather/gather.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "gather/narrow_rows.h"
#include "variants/variants.h"

#define GB_KERNEL_FILE "gather/gather.inl"
#include "variants/for_each_variant.h"

namespace gb {

void gather_rows(const char* table, int64_t row_bytes, const int64_t* ids, int64_t num_ids, char* out) {
  GB_PICK(gather_rows)(table, row_bytes, ids, num_ids, out);
}

void copy_slots(const char* table, int64_t row_bytes, const int32_t* slots, int64_t count, char* out) {
  GB_PICK(copy_slots)(table, row_bytes, slots, count, out);
}

void gather_as_float(const void* table, DType dtype, int64_t width, const int64_t* ids, int64_t num_ids,
                     float* out) {
  GB_PICK(gather_as_float)(table, dtype, width, ids, num_ids, out);
}

void gather_scaled(const int8_t* table, const float* scale, int64_t width, const int64_t* ids,
                   int64_t num_ids, float* out) {
  GB_PICK(gather_scaled)(table, scale, width, ids, num_ids, out);
}

}  // namespace gb
