// Samples one mini-batch under more constraints than the fanouts: a tree for each seed, edges up to the
// seed's time alone, and no excluded edges. Included by sample.inl, once per variant. Twin:
// sampling/reference.py.
//
//   a row's edges  -- up to its tree's time, without those excluded -->  allowed edges, in their order
//   allowed edges  -- draw_row -->  positions
//
// A row draws from its allowed edges as from a list without the others, so all are equally likely. Local ids
// are given in the order of first appearance; with disjoint trees, of a node in its tree.

namespace gb::GB_VARIANT {
namespace {

constexpr int64_t kEdgesAhead = 16;  // between the prefetch of an id's slot and its use

// The key by which the rows of a tree draw, instead of the batch's key; `tree_keys` in ops/rng.py.
inline uint64_t tree_key(uint64_t batch_key, int64_t tree) {
  return mix(batch_key + (static_cast<uint64_t>(tree) + 1) * kPhi);
}

// The nodes of a type, or of a graph without types, that a batch has so far. With disjoint trees, a node
// counts once in each tree: its keys differ.
struct KnownNodes {
  Buffer<int64_t>& ids;
  Buffer<int64_t>& trees;  // only where trees are disjoint
  Buffer<int64_t>& keys;   // what the table knows each node by
  IdTable<uint64_t>& table;
  int64_t& count;
  int64_t num_nodes;  // of the type

  // Makes room for more nodes after the known ones.
  void reserve(int64_t more, bool disjoint) {
    ids.reserve(count + more, count);
    keys.reserve(count + more, count);
    if (disjoint) trees.reserve(count + more, count);
  }

  // Every copy of a repeated seed keeps a row. Where trees are not disjoint, neighbours point at the first.
  void add_seed(int64_t id, int64_t tree, bool disjoint) {
    const int64_t key = (disjoint ? tree * num_nodes : 0) + id;
    find_or_insert(table, static_cast<uint64_t>(key), static_cast<uint32_t>(count));
    keys[count] = key;
    if (disjoint) trees[count] = tree;
    ids[count++] = id;
  }
};

template <typename Id>
struct ConstrainedHop {
  const SampleGraph& graph;
  const SampleConfig& config;
  const SampleConstraints& constraints;
  const TypedRelation& relation;
  SampleScratch& scratch;
  KnownNodes& destinations;
  KnownNodes& sources;  // the same where both ends have one type
  SampledEdges& adjacency;
  uint64_t batch_key;
  uint64_t hop;
  int64_t fanout;

  void run(Rows rows) {
    const int64_t first_edge = adjacency.num_edges;
    draw(rows);
    read_ids(rows, first_edge);
    insert(rows, first_edge);
    adjacency.num_rows = rows.end;
  }

  int64_t tree_of(int64_t row) const { return constraints.disjoint ? destinations.trees[row] : 0; }

  void draw(Rows rows) {
    const int64_t first_edge = adjacency.num_edges;
    Buffer<int64_t>& positions = scratch.positions[0];
    adjacency.indptr.reserve(rows.end + 1, rows.begin + 1);
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      if (r + kRowsAhead < rows.end)
        __builtin_prefetch(row_of(graph, relation, destinations.ids[r + kRowsAhead]));
      const int64_t node = destinations.ids[r], drawn = adjacency.num_edges - first_edge;
      const int64_t* row = row_of(graph, relation, node);
      positions.reserve(drawn + max_count(row[1] - row[0], fanout, config.replace) + 16, drawn);
      const int64_t count = draw_allowed(node, tree_of(r), positions.data() + drawn);
      prefetch_ids(positions.data() + drawn, count);
      adjacency.num_edges += count;
      adjacency.indptr[r + 1] = adjacency.num_edges;
    }
  }

  void prefetch_ids(const int64_t* positions, int64_t count) const {
    if (graph.lists != nullptr) return;
    for (int64_t i = 0; i < count; ++i)
      __builtin_prefetch(static_cast<const Id*>(graph.indices) + positions[i]);
  }

  // draw_row among the allowed edges of a node.
  int64_t draw_allowed(int64_t node, int64_t tree, int64_t* positions) {
    const int64_t start = row_of(graph, relation, node)[0];
    int64_t end = row_of(graph, relation, node)[1];
    check_row(graph, start, end - start);
    if (constraints.times != nullptr && relation.timed)
      end = std::upper_bound(graph.time + start, graph.time + end, constraints.times[tree]) - graph.time;
    const int64_t* none = constraints.excluded + constraints.num_excluded;
    const int64_t* first = std::lower_bound(constraints.excluded, none, start);
    const int64_t* last = std::lower_bound(first, none, end);
    const int64_t allowed = end - start - (last - first);
    const bool latest = config.last && relation.timed && fanout >= 0;
    const int64_t earlier = latest ? std::max<int64_t>(allowed - fanout, 0) : 0;
    const uint64_t key = typed_row_key(constraints.disjoint ? tree_key(batch_key, tree) : batch_key, hop,
                                       relation.number, static_cast<uint64_t>(node));
    if (first == last)
      return draw_row(graph, config, key, start + earlier, allowed - earlier, fanout, scratch, positions);
    SampleGraph row = graph;
    if (graph.weight != nullptr) row.weight = allowed_weights(start, end, first, last);
    // Draws among the allowed edges, numbered from 0. Each excluded edge at or before a position moves it on
    // by one; `excluded` rises, so the first one behind the position ends the loop.
    const int64_t count = draw_row(row, config, key, earlier, allowed - earlier, fanout, scratch, positions);
    for (int64_t i = 0; i < count; ++i) {
      int64_t position = start + positions[i];
      for (const int64_t* e = first; e != last && *e <= position; ++e) ++position;
      positions[i] = position;
    }
    return count;
  }

  const float* allowed_weights(int64_t start, int64_t end, const int64_t* first, const int64_t* last) {
    scratch.row_weight.reserve(end - start);
    int64_t count = 0;
    for (int64_t position = start; position < end; ++position) {
      if (first != last && *first == position)
        ++first;
      else
        scratch.row_weight[count++] = graph.weight[position];
    }
    return scratch.row_weight.data();
  }

  void read_ids(Rows rows, int64_t first_edge) {
    const int64_t num_edges = adjacency.num_edges - first_edge;
    const int64_t* positions = scratch.positions[0].data();
    scratch.ids[0].reserve(num_edges);
    int64_t* ids = scratch.ids[0].data();
    if (graph.lists != nullptr) {
      const DrawnRows drawn{destinations.ids.data() + rows.begin, adjacency.indptr.data() + rows.begin,
                            rows.end - rows.begin, positions};
      graph.lists->read(graph.indptr, drawn, ids);
    } else {
      const Id* indices = static_cast<const Id*>(graph.indices);
      for (int64_t e = 0; e < num_edges; ++e)
        ids[e] = static_cast<int64_t>(indices[positions[e]]) - relation.first_source;
    }
    check_ids(ids, num_edges, sources.num_nodes);
    if (config.keep_edges) {
      adjacency.edges.reserve(first_edge + num_edges, first_edge);
      std::copy_n(positions, num_edges, adjacency.edges.data() + first_edge);
    }
  }

  void insert(Rows rows, int64_t first_edge) {
    const int64_t num_edges = adjacency.num_edges - first_edge;
    if (sources.count + num_edges > kMaxBatchNodes) throw std::length_error(kBatchTooLarge);
    sources.reserve(num_edges + 1, constraints.disjoint);
    IdTable<uint64_t>& table = sources.table;
    grow_table(table, sources.keys.data(), sources.count, num_edges);
    adjacency.indices.reserve(first_edge + num_edges, first_edge);
    uint32_t next = static_cast<uint32_t>(sources.count);
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      const int64_t tree = tree_of(r), first_key = tree * sources.num_nodes;
      for (int64_t e = adjacency.indptr[r]; e < adjacency.indptr[r + 1]; ++e) {
        const int64_t id = scratch.ids[0][e - first_edge], key = first_key + id;
        if (e + kEdgesAhead < first_edge + num_edges) {  // the wrong slot if that edge is in the next tree
          const int64_t ahead = first_key + scratch.ids[0][e + kEdgesAhead - first_edge];
          __builtin_prefetch(table.slots.data() + slot_of(static_cast<uint64_t>(ahead), table.bits), 1);
        }
        const uint32_t local = find_or_insert(table, static_cast<uint64_t>(key), next);
        // Without a branch: if the node was known, the next new one overwrites this entry.
        sources.keys[next] = key;
        sources.ids[next] = id;
        if (constraints.disjoint) sources.trees[next] = tree;
        next += local == next;
        adjacency.indices[e] = static_cast<int32_t>(local);
      }
    }
    sources.count = next;
  }
};

template <typename Id>
void sample_constrained(const SampleGraph& graph, const SampleConfig& config, uint64_t batch_key,
                        const int64_t* seeds, int64_t num_seeds, SampleScratch& scratch, SampledBatch& out,
                        const SampleConstraints& constraints) {
  begin_output(config, seeds, num_seeds, out);
  out.disjoint = constraints.disjoint;
  IdTable<uint64_t>& table = scratch.wide_table;
  begin_batch(table);
  grow_table(table, scratch.keys.data(), 0, num_seeds);
  KnownNodes known{out.n_id, out.trees, scratch.keys, table, out.num_nodes, graph.num_nodes};
  known.count = 0;
  known.reserve(num_seeds + 1, constraints.disjoint);
  for (int64_t i = 0; i < num_seeds; ++i) known.add_seed(seeds[i], i, constraints.disjoint);
  const TypedRelation only = only_relation();
  for_each_hop(config, out, [&](size_t hop, SampledEdges& adjacency, Rows rows) {
    ConstrainedHop<Id>{graph,     config, constraints,        only, scratch, known, known, adjacency,
                       batch_key, hop,    config.fanouts[hop]}
        .run(rows);
  });
  table.nodes_in_use = out.num_nodes;
}

}  // namespace
}  // namespace gb::GB_VARIANT
