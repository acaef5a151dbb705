#include "sample.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>

#include "neighbor_lists.h"
#include "rng.h"
#include "typed_sample.h"
#include "variants.h"

#define GB_KERNEL_FILE "sample.inl"
#include "for_each_variant.h"

namespace gb {

void sample_batch(const SampleGraph& graph, const SampleConfig& config, uint64_t batch_key,
                  const int64_t* seeds, int64_t num_seeds, SampleScratch& scratch, SampledBatch& out,
                  const Team* team, const SampleConstraints* constraints) {
  GB_PICK(sample_batch)(graph, config, batch_key, seeds, num_seeds, scratch, out, team, constraints);
}

}  // namespace gb
