#include "gather.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstring>

#include "variants.h"

#define GB_KERNEL_FILE "gather.inl"
#include "for_each_variant.h"

namespace gb {

void gather_rows(const char* table, int64_t row_bytes, const int64_t* ids, int64_t num_ids, char* out) {
  GB_PICK(gather_rows)(table, row_bytes, ids, num_ids, out);
}

}  // namespace gb
