// The part of a batch that some of its seeds read: the share of one of several ranks.
#pragma once

#include <cstdint>
#include <vector>

#include "sampling/sample.h"
#include "sampling/typed_sample.h"

namespace gb {

// Writes to `out` the part of the sampled batch `whole`, of layout `subgraph`, that is within `reach` sampled
// edges of some of its seeds. It has the form of a batch of `reach` hops. A node has the in-edges that it has
// in `whole`, wherever the whole batch drew them; those of the last hop have none. `whole` is changed.
//
//   own    (num_own,)          positions among the seeds of `whole`, rising
//   seeds  (whole.num_seeds,)  the seeds as the whole batch was sampled for; read where the graph has types
void keep_share(SampledBatch& whole, const int64_t* own, int64_t num_own, int64_t reach, bool keep_edges,
                const TypedGraph* types, const int64_t* seeds, SampleScratch& scratch, SampledBatch& out);

}  // namespace gb
