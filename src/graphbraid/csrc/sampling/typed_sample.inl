// Samples one mini-batch of a graph of several node types. Included by sample.inl, once per variant.
//
//   rows     (num_rows + 1,)    in-edges by node and relation        n_id     (num_sampled,)  per type
//   indices  (num_edges,)       -- fanouts per relation and hop -->  indptr   (rows + 1,)     per relation
//   seeds    (num_seeds,)       of one type                          indices  (edges,)        per relation
//
// A hop takes the relations in their order; each draws for the nodes of its destinations' type that the last
// hop found, as sample.inl does for one relation, and new sources get the next local ids of their own type.
// A graph of one type and one relation gives the bits of sample.inl; so does sampling/reference.py.
// Where draws are constrained, each relation's hop is that of sample_constrained.inl.

namespace gb::GB_VARIANT {
namespace {

// A seed as a node of its type.
struct TypedSeed {
  size_t type;
  int64_t id;
};

inline TypedSeed typed_seed(const TypedGraph& types, int64_t seed) {
  if (types.seed_type) return {*types.seed_type, seed};
  const auto after = std::upper_bound(types.first_ids.begin(), types.first_ids.end(), seed);
  const size_t type = static_cast<size_t>(after - types.first_ids.begin()) - 1;
  return {type, seed - types.first_ids[type]};
}

// Empties `out` and the tables, and makes room for the seeds of each type, which it counts.
template <typename Key>
void begin_typed(const SampleGraph& graph, const SampleConfig& config, const int64_t* seeds,
                 int64_t num_seeds, std::vector<IdTable<Key>>& tables, SampledBatch& out) {
  const size_t num_types = graph.types->num_nodes.size(), num_hops = config.fanouts.size();
  const size_t num_relations = graph.types->relations.size();
  out.num_seeds = num_seeds;
  out.disjoint = false;
  out.nodes_per_hop.assign(num_types * (num_hops + 1), 0);
  for (int64_t i = 0; i < num_seeds; ++i)
    ++out.nodes_per_hop[typed_seed(*graph.types, seeds[i]).type * (num_hops + 1)];
  tables.resize(num_types);
  out.by_type.resize(num_types);
  for (size_t type = 0; type < num_types; ++type) {
    const int64_t count = out.nodes_per_hop[type * (num_hops + 1)];
    out.by_type[type].count = 0;
    out.by_type[type].ids.reserve(count + 1);
    begin_batch(tables[type]);
    grow_table(tables[type], out.by_type[type].ids.data(), 0, count);
  }
  out.adjacencies.resize(config.blocks ? num_hops * num_relations : num_relations);
  for (SampledEdges& adjacency : out.adjacencies) {
    adjacency.num_rows = adjacency.num_edges = 0;
    adjacency.indptr.reserve(1);
    adjacency.indptr[0] = 0;
    adjacency.indices.reserve(1);
    if (config.keep_edges) adjacency.edges.reserve(1);
  }
  out.edges_per_hop.assign(num_relations * num_hops, 0);
}

// Runs body(hop, relation, adjacency, rows) for each relation of each hop, and keeps the counts.
template <typename Key, typename Body>
void for_each_typed_hop(const SampleGraph& graph, const SampleConfig& config,
                        std::vector<IdTable<Key>>& tables, SampledBatch& out, const Body& body) {
  const size_t num_types = out.by_type.size(), num_hops = config.fanouts.size();
  const std::vector<TypedRelation>& relations = graph.types->relations;
  std::vector<Rows> last(num_types, {0, 0});  // the nodes that the last hop found, per type
  for (size_t hop = 0; hop < num_hops; ++hop) {
    for (size_t type = 0; type < num_types; ++type)
      last[type] = {config.blocks ? 0 : last[type].end, out.by_type[type].count};
    for (const TypedRelation& relation : relations) {
      const size_t place = relation.number + (config.blocks ? hop * relations.size() : 0);
      SampledEdges& adjacency = out.adjacencies[place];
      const int64_t edges_before = adjacency.num_edges;
      body(hop, relation, adjacency, last[relation.destination]);
      out.edges_per_hop[relation.number * num_hops + hop] = adjacency.num_edges - edges_before;
    }
    for (size_t type = 0; type < num_types; ++type)
      out.nodes_per_hop[type * (num_hops + 1) + hop + 1] = out.by_type[type].count - last[type].end;
  }
  out.num_nodes = 0;
  for (size_t type = 0; type < num_types; ++type) {
    tables[type].nodes_in_use = out.by_type[type].count;
    out.num_nodes += out.by_type[type].count;
  }
}

template <typename Id, typename Key>
void sample_typed(const SampleGraph& graph, const SampleConfig& config, uint64_t batch_key,
                  const int64_t* seeds, int64_t num_seeds, SampleScratch& scratch,
                  std::vector<IdTable<Key>>& tables, SampledBatch& out) {
  begin_typed(graph, config, seeds, num_seeds, tables, out);
  // Every copy of a repeated seed keeps a row; neighbours point at the first copy.
  for (int64_t i = 0; i < num_seeds; ++i) {
    const auto [type, id] = typed_seed(*graph.types, seeds[i]);
    NodeIds& nodes = out.by_type[type];
    find_or_insert(tables[type], static_cast<Key>(id), static_cast<uint32_t>(nodes.count));
    nodes.ids[nodes.count++] = id;
  }
  const auto nodes_of = [&](size_t type) {
    return FoundNodes{out.by_type[type].ids, out.by_type[type].count, graph.types->num_nodes[type]};
  };
  const auto run = [&](size_t hop, const TypedRelation& relation, SampledEdges& adjacency, Rows rows) {
    Hop<Id, Key>{graph,
                 config,
                 relation,
                 scratch,
                 nodes_of(relation.destination),
                 nodes_of(relation.source),
                 adjacency,
                 tables[relation.source],
                 batch_key,
                 hop,
                 relation.fanouts[hop]}
        .run(rows);
  };
  for_each_typed_hop(graph, config, tables, out, run);
}

template <typename Id>
void sample_typed_constrained(const SampleGraph& graph, const SampleConfig& config, uint64_t batch_key,
                              const int64_t* seeds, int64_t num_seeds, SampleScratch& scratch,
                              SampledBatch& out, const SampleConstraints& constraints) {
  std::vector<IdTable<uint64_t>>& tables = scratch.wide_tables;
  begin_typed(graph, config, seeds, num_seeds, tables, out);
  out.disjoint = constraints.disjoint;
  scratch.keys_by_type.resize(tables.size());
  std::vector<KnownNodes> known;
  for (size_t type = 0; type < tables.size(); ++type) {
    NodeIds& nodes = out.by_type[type];
    known.push_back({nodes.ids, nodes.trees, scratch.keys_by_type[type], tables[type], nodes.count,
                     graph.types->num_nodes[type]});
    known[type].reserve(out.nodes_per_hop[type * (config.fanouts.size() + 1)] + 1, constraints.disjoint);
  }
  for (int64_t i = 0; i < num_seeds; ++i) {
    const auto [type, id] = typed_seed(*graph.types, seeds[i]);
    known[type].add_seed(id, i, constraints.disjoint);
  }
  const auto run = [&](size_t hop, const TypedRelation& relation, SampledEdges& adjacency, Rows rows) {
    ConstrainedHop<Id>{graph,
                       config,
                       constraints,
                       relation,
                       scratch,
                       known[relation.destination],
                       known[relation.source],
                       adjacency,
                       batch_key,
                       hop,
                       relation.fanouts[hop]}
        .run(rows);
  };
  for_each_typed_hop(graph, config, tables, out, run);
}

}  // namespace
}  // namespace gb::GB_VARIANT
