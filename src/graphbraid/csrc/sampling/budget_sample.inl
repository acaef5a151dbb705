// Budget sampling of a graph of several node types: HGSampling of Hu et al., "Heterogeneous Graph
// Transformer", as torch_sparse has it. Included by budget_sample.cpp, once per variant.
//
//   rows     (num_rows + 1,)  by node and relation             n_id     (num_sampled,)  of a type
//   indices  (num_edges,)     -- num_samples, type and hop ->  indptr   (nodes + 1,)    of a relation
//   seeds    (num_seeds,)     of one type                      indices  (edges,)        of a relation
//
// A node that joins the sample gives each in-neighbour outside of it 1 / d of budget, for each relation of d
// in-edges. If there are more than kMostRead in-edges, it draws kMostRead of them. A hop then draws nodes of
// each type without replacement, with probability proportional to the square of their budget. At last, the
// edges between sampled nodes are found, again among at most kMostRead in-edges of each node and relation.
//
// Bound by the misses of the tables of candidates. sampling/cpu.py is the twin, to the bit: sums of budget
// are doubles, added in the order of relations, nodes and draws.

#include "sampling/sample_row.inl"

namespace gb::GB_VARIANT {
namespace {

constexpr int64_t kMostRead = 50;

// The nodes of one type that were seen, in order of first appearance: seeds, and candidates with a budget.
class Candidates {
 public:
  std::vector<int64_t> ids;
  std::vector<double> budget;
  std::vector<int32_t> local;  // position in the sample, or -1

  // The place of a node, which is added if it is new.
  size_t add(int64_t id) {
    if (2 * (ids.size() + 1) > slots_.size()) grow();
    size_t& place = slots_[slot_of(id)];
    if (place == kFree) {
      place = ids.size();
      ids.push_back(id);
      budget.push_back(0.0);
      local.push_back(-1);
    }
    return place;
  }

  // The position of a node in the sample, or -1.
  int32_t find(int64_t id) const {
    if (slots_.empty()) return -1;
    const size_t place = slots_[slot_of(id)];
    return place == kFree ? -1 : local[place];
  }

 private:
  static constexpr size_t kFree = ~size_t{0};

  // The slot that has the node, or a free one for it. At least half of the slots are free, so one is found.
  size_t slot_of(int64_t id) const {
    const size_t mask = slots_.size() - 1;
    for (size_t at = mix(static_cast<uint64_t>(id)) & mask;; at = (at + 1) & mask)
      if (slots_[at] == kFree || ids[slots_[at]] == id) return at;
  }

  void grow() {
    slots_.assign(std::max<size_t>(256, 2 * slots_.size()), kFree);
    for (size_t place = 0; place < ids.size(); ++place) slots_[slot_of(ids[place])] = place;
  }

  std::vector<size_t> slots_;
};

template <typename Id>
struct BudgetSampler {
  const SampleGraph& graph;
  const SampleConfig& config;
  uint64_t key;
  SampleScratch& scratch;
  SampledBatch& out;
  std::vector<Candidates> of_type;
  SampleConfig plain;  // draws without replacement

  // Draws among the in-edges of a node; returns how many positions are in scratch.positions[0].
  int64_t read(const TypedRelation& relation, int64_t node, uint64_t hop) {
    const int64_t* row = graph.types->indptr + relation.first_row + node * relation.stride;
    const int64_t start = row[0], degree = row[1] - row[0];
    // The arrays may have been changed since they were checked.
    if (start < 0 || degree < 0 || start > graph.num_edges - degree)
      throw std::invalid_argument("the graph's arrays were changed while batches were sampled from them");
    scratch.positions[0].reserve(max_count(degree, kMostRead, false) + 16);
    const uint64_t row_key = typed_row_key(key, hop, relation.number, static_cast<uint64_t>(node));
    return draw_row(graph, plain, row_key, start, degree, kMostRead, scratch, scratch.positions[0].data());
  }

  int64_t source_of(const TypedRelation& relation, int64_t position) const {
    const int64_t id =
        static_cast<int64_t>(static_cast<const Id*>(graph.indices)[position]) - relation.first_source;
    if (id < 0 || id >= graph.types->num_nodes[relation.source])
      throw std::invalid_argument("the graph's arrays were changed while batches were sampled from them");
    return id;
  }

  // The last hop's nodes of the destinations' type, from `first` on, give budget to their in-neighbours.
  void give(const TypedRelation& relation, int64_t first, uint64_t hop) {
    Candidates& sources = of_type[relation.source];
    const NodeIds& nodes = out.by_type[relation.destination];
    for (int64_t i = first; i < nodes.count; ++i) {
      const int64_t count = read(relation, nodes.ids[i], hop);
      const double share = 1.0 / static_cast<double>(count);
      for (int64_t e = 0; e < count; ++e) {
        const size_t place = sources.add(source_of(relation, scratch.positions[0][e]));
        if (sources.local[place] < 0) sources.budget[place] += share;
      }
    }
  }

  // Draws nodes of a type: the first to arrive of an exponential race, as race_by_weight has it for edges.
  void draw_nodes(size_t type, int64_t count, uint64_t hop) {
    Candidates& nodes = of_type[type];
    const uint64_t race = graph.types->relations.size() + type;  // keys that no relation's rows have
    std::vector<std::pair<double, size_t>> arrivals;
    for (size_t place = 0; place < nodes.ids.size(); ++place) {
      if (nodes.local[place] >= 0) continue;
      const uint64_t row_key = typed_row_key(key, hop, race, static_cast<uint64_t>(nodes.ids[place]));
      const double weight = nodes.budget[place] * nodes.budget[place];
      arrivals.emplace_back(-log_of_draw(draw(row_key, 0)) / weight, place);
    }
    const size_t chosen = std::min(arrivals.size(), static_cast<size_t>(count));
    const auto end = arrivals.begin() + static_cast<std::ptrdiff_t>(chosen);
    std::partial_sort(arrivals.begin(), end, arrivals.end());
    NodeIds& sampled = out.by_type[type];
    sampled.ids.reserve(sampled.count + static_cast<int64_t>(chosen) + 1, sampled.count);
    for (auto arrival = arrivals.begin(); arrival != end; ++arrival) {
      nodes.local[arrival->second] = static_cast<int32_t>(sampled.count);
      sampled.ids[sampled.count++] = nodes.ids[arrival->second];
    }
  }

  // The edges of a relation between sampled nodes, by destination.
  void join(const TypedRelation& relation, SampledEdges& edges, uint64_t hop) {
    const NodeIds& nodes = out.by_type[relation.destination];
    edges.num_rows = nodes.count;
    edges.num_edges = 0;
    edges.indptr.reserve(nodes.count + 1);
    edges.indptr[0] = 0;
    for (int64_t i = 0; i < nodes.count; ++i) {
      const int64_t count = read(relation, nodes.ids[i], hop);
      edges.indices.reserve(edges.num_edges + count + 1, edges.num_edges);
      if (config.keep_edges) edges.edges.reserve(edges.num_edges + count + 1, edges.num_edges);
      for (int64_t e = 0; e < count; ++e) {
        const int64_t position = scratch.positions[0][e];
        const int32_t local = of_type[relation.source].find(source_of(relation, position));
        if (local < 0) continue;
        if (config.keep_edges) edges.edges[edges.num_edges] = position;
        edges.indices[edges.num_edges++] = local;
      }
      edges.indptr[i + 1] = edges.num_edges;
    }
    edges.indices.reserve(1);
    if (config.keep_edges) edges.edges.reserve(1);
  }

  void run(const int64_t* seeds, int64_t num_seeds) {
    const TypedGraph& types = *graph.types;
    const size_t num_types = types.num_nodes.size(), num_hops = config.fanouts.size();
    out.num_seeds = num_seeds;
    out.disjoint = false;
    out.by_type.resize(num_types);
    out.adjacencies.resize(types.relations.size());
    out.nodes_per_hop.assign(num_types * (num_hops + 1), 0);
    out.edges_per_hop.assign(types.relations.size() * num_hops, 0);
    of_type.resize(num_types);
    for (NodeIds& nodes : out.by_type) {
      nodes.count = 0;
      nodes.ids.reserve(num_seeds + 1);
    }
    // Every copy of a repeated seed keeps a row; edges from it name the first copy.
    for (int64_t i = 0; i < num_seeds; ++i) {
      const size_t type = *types.seed_type;
      NodeIds& nodes = out.by_type[type];
      int32_t& local = of_type[type].local[of_type[type].add(seeds[i])];
      if (local < 0) local = static_cast<int32_t>(nodes.count);
      nodes.ids[nodes.count++] = seeds[i];
    }
    std::vector<int64_t> first(num_types, 0);  // of the last hop's nodes
    for (size_t type = 0; type < num_types; ++type)
      out.nodes_per_hop[type * (num_hops + 1)] = out.by_type[type].count;
    for (size_t hop = 0; hop < num_hops; ++hop) {
      for (const TypedRelation& relation : types.relations) give(relation, first[relation.destination], hop);
      for (size_t type = 0; type < num_types; ++type) {
        first[type] = out.by_type[type].count;
        draw_nodes(type, types.num_samples[type][hop], hop);
        out.nodes_per_hop[type * (num_hops + 1) + hop + 1] = out.by_type[type].count - first[type];
      }
    }
    for (const TypedRelation& relation : types.relations) {
      join(relation, out.adjacencies[relation.number], num_hops);
      if (num_hops > 0)
        out.edges_per_hop[relation.number * num_hops] = out.adjacencies[relation.number].num_edges;
    }
    out.num_nodes = 0;
    for (const NodeIds& nodes : out.by_type) out.num_nodes += nodes.count;
  }
};

}  // namespace

void sample_budget(const SampleGraph& graph, const SampleConfig& config, uint64_t batch_key,
                   const int64_t* seeds, int64_t num_seeds, SampleScratch& scratch, SampledBatch& out) {
  if (graph.wide)
    BudgetSampler<int64_t>{graph, config, batch_key, scratch, out, {}, {}}.run(seeds, num_seeds);
  else
    BudgetSampler<int32_t>{graph, config, batch_key, scratch, out, {}, {}}.run(seeds, num_seeds);
}

}  // namespace gb::GB_VARIANT
