#include "sampling/sample.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>

#include "base/rng.h"
#include "disk/neighbor_lists.h"
#include "sampling/typed_sample.h"
#include "variants/variants.h"

#define GB_KERNEL_FILE "sampling/sample.inl"
#include "variants/for_each_variant.h"

namespace gb {

void sample_batch(const SampleGraph& graph, const SampleConfig& config, uint64_t batch_key,
                  const int64_t* seeds, int64_t num_seeds, SampleScratch& scratch, SampledBatch& out,
                  const Team* team, const SampleConstraints* constraints) {
  if (graph.types != nullptr && !graph.types->num_samples.empty())
    return sample_budget(graph, config, batch_key, seeds, num_seeds, scratch, out);
  GB_PICK(sample_batch)(graph, config, batch_key, seeds, num_seeds, scratch, out, team, constraints);
}

}  // namespace gb
