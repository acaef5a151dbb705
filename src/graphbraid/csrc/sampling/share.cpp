#include "sampling/share.h"

#include <algorithm>

namespace gb {
namespace {

// Gives each node of a batch that drew nothing a row without edges.
void add_empty_rows(SampledEdges& edges, int64_t num_nodes) {
  edges.indptr.reserve(num_nodes + 1, edges.num_rows + 1);
  std::fill(edges.indptr.data() + edges.num_rows + 1, edges.indptr.data() + num_nodes + 1, edges.num_edges);
}

void take(int64_t* at, int64_t count, const Buffer<int64_t>& from) {
  for (int64_t i = 0; i < count; ++i) at[i] = from[at[i]];
}

// The number of each tree of `whole` among the trees of its own seeds.
std::vector<int64_t> places_of(const int64_t* own, int64_t num_own, int64_t num_seeds) {
  std::vector<int64_t> place(static_cast<size_t>(num_seeds), 0);
  for (int64_t i = 0; i < num_own; ++i) place[static_cast<size_t>(own[i])] = i;
  return place;
}

void take_trees(Buffer<int64_t>& trees, const int64_t* local, int64_t count, const Buffer<int64_t>& from,
                const std::vector<int64_t>& place) {
  trees.reserve(count + 1);
  for (int64_t i = 0; i < count; ++i) trees[i] = place[static_cast<size_t>(from[local[i]])];
}

// A batch as a graph to sample from: the ids of its nodes are the local ones.
struct BatchGraph {
  TypedGraph types;
  Buffer<int64_t> indptr;
  Buffer<int32_t> indices;
  int64_t num_edges = 0;
};

// The edges of each relation one after another, with a row for each node of its destinations' type, and an
// empty row behind them: between the end of one relation and the start of the next.
void join_relations(SampledBatch& whole, const TypedGraph& graph, int64_t reach, BatchGraph& out) {
  int64_t first = 0, num_rows = 0;
  for (const NodeIds& nodes : whole.by_type) {
    out.types.num_nodes.push_back(nodes.count);
    out.types.first_ids.push_back(first);
    first += nodes.count;
  }
  for (const TypedRelation& relation : graph.relations) {
    out.num_edges += whole.adjacencies[relation.number].num_edges;
    num_rows += out.types.num_nodes[relation.destination] + 1;
  }
  out.indptr.reserve(num_rows + 1);
  out.indices.reserve(out.num_edges + 1);
  int64_t row = 0, edge = 0;
  for (const TypedRelation& relation : graph.relations) {
    SampledEdges& edges = whole.adjacencies[relation.number];
    const int64_t num_nodes = out.types.num_nodes[relation.destination];
    add_empty_rows(edges, num_nodes);
    TypedRelation local;
    local.number = relation.number;
    local.source = relation.source;
    local.destination = relation.destination;
    local.first_row = row;
    local.stride = 1;
    local.fanouts.assign(static_cast<size_t>(reach), -1);
    out.types.relations.push_back(std::move(local));
    for (int64_t v = 0; v <= num_nodes; ++v) out.indptr[row++] = edge + edges.indptr[v];
    std::copy_n(edges.indices.data(), edges.num_edges, out.indices.data() + edge);
    edge += edges.num_edges;
  }
  out.types.indptr = out.indptr.data();
  out.types.num_rows = row;
}

// The local ids of own seeds, counted on from type to type as in BatchGraph.
std::vector<int64_t> local_seeds(const TypedGraph& graph, const TypedGraph& batch, const int64_t* seeds,
                                 int64_t num_seeds, const int64_t* own, int64_t num_own) {
  std::vector<int64_t> known(batch.num_nodes.size(), 0), found;
  for (int64_t i = 0, next = 0; i < num_seeds && next < num_own; ++i) {
    size_t type = graph.seed_type.value_or(0);
    if (!graph.seed_type) {
      const auto after = std::upper_bound(graph.first_ids.begin(), graph.first_ids.end(), seeds[i]);
      type = static_cast<size_t>(after - graph.first_ids.begin()) - 1;
    }
    const int64_t local = batch.first_ids[type] + known[type]++;
    if (own[next] != i) continue;
    found.push_back(local);
    ++next;
  }
  return found;
}

void keep_typed(SampledBatch& whole, const int64_t* own, int64_t num_own, int64_t reach,
                const TypedGraph& graph, const int64_t* seeds, const SampleConfig& config,
                SampleScratch& scratch, SampledBatch& out) {
  BatchGraph batch;
  join_relations(whole, graph, reach, batch);
  SampleGraph drawn;
  drawn.indptr = batch.indptr.data();
  drawn.indices = batch.indices.data();
  drawn.num_edges = batch.num_edges;
  drawn.types = &batch.types;
  const std::vector<int64_t> local = local_seeds(graph, batch.types, seeds, whole.num_seeds, own, num_own);
  sample_batch(drawn, config, 0, local.data(), num_own, scratch, out, nullptr, nullptr);
  out.disjoint = whole.disjoint;
  const std::vector<int64_t> place = places_of(own, num_own, whole.num_seeds);
  for (size_t type = 0; type < out.by_type.size(); ++type) {
    NodeIds& nodes = out.by_type[type];
    const NodeIds& from = whole.by_type[type];
    if (whole.disjoint) take_trees(nodes.trees, nodes.ids.data(), nodes.count, from.trees, place);
    take(nodes.ids.data(), nodes.count, from.ids);
  }
  if (!config.keep_edges) return;
  int64_t edge = 0;
  for (const TypedRelation& relation : graph.relations) {
    SampledEdges& edges = out.adjacencies[relation.number];
    for (int64_t e = 0; e < edges.num_edges; ++e) edges.edges[e] -= edge;
    take(edges.edges.data(), edges.num_edges, whole.adjacencies[relation.number].edges);
    edge += whole.adjacencies[relation.number].num_edges;
  }
}

}  // namespace

void keep_share(SampledBatch& whole, const int64_t* own, int64_t num_own, int64_t reach, bool keep_edges,
                const TypedGraph* types, const int64_t* seeds, SampleScratch& scratch, SampledBatch& out) {
  SampleConfig config;
  config.fanouts.assign(static_cast<size_t>(reach), -1);
  config.keep_edges = keep_edges;
  if (types != nullptr) return keep_typed(whole, own, num_own, reach, *types, seeds, config, scratch, out);
  SampledEdges& edges = whole.adjacencies[0];
  add_empty_rows(edges, whole.num_nodes);
  SampleGraph drawn;
  drawn.indptr = edges.indptr.data();
  drawn.indices = edges.indices.data();
  drawn.num_nodes = whole.num_nodes;
  drawn.num_edges = edges.num_edges;
  sample_batch(drawn, config, 0, own, num_own, scratch, out, nullptr, nullptr);
  out.disjoint = whole.disjoint;
  if (whole.disjoint)
    take_trees(out.trees, out.n_id.data(), out.num_nodes, whole.trees,
               places_of(own, num_own, whole.num_seeds));
  take(out.n_id.data(), out.num_nodes, whole.n_id);
  if (keep_edges) take(out.adjacencies[0].edges.data(), out.adjacencies[0].num_edges, edges.edges);
}

}  // namespace gb
