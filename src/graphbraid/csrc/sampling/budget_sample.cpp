#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "base/rng.h"
#include "sampling/sample.h"
#include "sampling/typed_sample.h"
#include "variants/variants.h"

#define GB_KERNEL_FILE "sampling/budget_sample.inl"
#include "variants/for_each_variant.h"

namespace gb {

void sample_budget(const SampleGraph& graph, const SampleConfig& config, uint64_t batch_key,
                   const int64_t* seeds, int64_t num_seeds, SampleScratch& scratch, SampledBatch& out) {
  GB_PICK(sample_budget)(graph, config, batch_key, seeds, num_seeds, scratch, out);
}

}  // namespace gb
