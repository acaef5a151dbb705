// Sampling of graphs with node types and relations: the arrays of such a graph beside its topology.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "gather/gather.h"
#include "sampling/sample.h"

namespace gb {

// The edges of one type. Destination v of the relation has them in row first_row + v * stride: the rows of a
// node's relations are neighbours, and the next node's follow.
struct TypedRelation {
  uint64_t number = 0;  // draws are keyed by it
  size_t source = 0;    // type of the sources
  size_t destination = 0;
  int64_t first_row = 0;
  int64_t stride = 0;
  int64_t first_source = 0;      // indices minus this are ids of the sources' type
  std::vector<int64_t> fanouts;  // per hop
  bool timed = true;             // false: its edges have no times, though others have: each is early enough
};

struct TypedGraph {
  const int64_t* indptr = nullptr;  // (num_rows + 1,) in-edges by destination and relation
  int64_t num_rows = 0;
  std::vector<int64_t> num_nodes;  // per type
  std::vector<int64_t> first_ids;  // per type, id in the whole graph of its first node
  std::vector<TypedRelation> relations;
  std::vector<FeatureRows> features;  // per type
  std::optional<size_t> seed_type;    // of all seeds; if none, seeds are ids in the whole graph
  // Nodes drawn by budget, per type and hop; empty where neighbours are drawn by fanouts.
  std::vector<std::vector<int64_t>> num_samples;
};

// Samples one batch by budget into `out`, for seeds of one type; see budget_sample.inl.
void sample_budget(const SampleGraph& graph, const SampleConfig& config, uint64_t batch_key,
                   const int64_t* seeds, int64_t num_seeds, SampleScratch& scratch, SampledBatch& out);

}  // namespace gb
