// Samples one mini-batch with several threads, to the same bits as sample.inl's single one. Used when there
// are fewer batches to prepare than threads. Included by sample.inl, once per variant.
//
//   the hop's rows ---> drawn (edges,) positions ---> ids (edges,) global ---> indices (edges,) local ids
//                draw rows                    read indices           by shards  and  n_id  (num_sampled,)
//
// Local ids go by first appearance. Per hop: rows are drawn in parallel; each shard of the id space finds,
// for every edge of its ids, the first edge with that id; a prefix sum over the first edges numbers the new
// nodes.

namespace gb::GB_VARIANT {
namespace {

constexpr int64_t kRowsPerTask = 256;
constexpr int64_t kEdgesPerTask = 8192;

inline int64_t tasks_of(int64_t count, int64_t grain) { return (count + grain - 1) / grain; }

inline size_t shard_of(int64_t id, size_t num_shards) {
  return (static_cast<uint64_t>(id) * 0xD6E8FEB86659FD93ull >> 32) & (num_shards - 1);
}

inline void grow_shard(IdShard& shard) {
  if ((shard.count + 1) * 2 <= (int64_t{1} << shard.table.bits)) return;
  clear_table(shard.table, shard.table.bits + 1);
  for (int64_t i = 0; i < shard.count; ++i)
    find_or_insert(shard.table, static_cast<uint64_t>(shard.keys[i]), shard.values[i]);
}

// Returns the id's value in the shard. An id without one gets `value`.
inline uint32_t find_or_insert(IdShard& shard, int64_t id, uint32_t value) {
  grow_shard(shard);
  const uint32_t found = find_or_insert(shard.table, static_cast<uint64_t>(id), value);
  if (found != value) return found;  // no two calls have the same `value`: only a new id has this one
  shard.keys.reserve(shard.count + 1, shard.count);
  shard.values.reserve(shard.count + 1, shard.count);
  shard.keys[shard.count] = id;
  shard.values[shard.count++] = value;
  return found;
}

template <typename Id>
struct SharedHop {
  const SampleGraph& graph;
  const SampleConfig& config;
  SampleScratch& scratch;
  SampledBatch& out;
  SampledEdges& adjacency;
  const Team& team;
  uint64_t batch_key;
  uint64_t hop;
  int64_t fanout;

  void run(Rows rows) {
    adjacency.indptr.reserve(rows.end + 1, rows.begin + 1);
    const int64_t first_edge = adjacency.num_edges;
    draw(rows);
    number(first_edge, adjacency.num_edges - first_edge);
    adjacency.num_rows = rows.end;
  }

  // Draws every row; leaves the ids in scratch.drawn, from 0 on.
  void draw(Rows rows) {
    const int64_t tasks = tasks_of(rows.end - rows.begin, kRowsPerTask);
    std::vector<std::vector<int64_t>> positions(static_cast<size_t>(tasks));
    team.run(tasks, [&](int64_t task) {
      const int64_t begin = rows.begin + task * kRowsPerTask;
      positions[static_cast<size_t>(task)] = draw_rows({begin, std::min(rows.end, begin + kRowsPerTask)});
    });
    std::vector<int64_t> offset(static_cast<size_t>(tasks) + 1, adjacency.num_edges);
    for (size_t t = 0; t < positions.size(); ++t)
      offset[t + 1] = offset[t] + static_cast<int64_t>(positions[t].size());
    const int64_t first_edge = adjacency.num_edges;
    adjacency.num_edges = offset.back();
    scratch.drawn.reserve(adjacency.num_edges - first_edge);
    if (config.keep_edges) adjacency.edges.reserve(adjacency.num_edges, first_edge);
    team.run(tasks, [&](int64_t task) {
      const auto& drawn = positions[static_cast<size_t>(task)];
      const int64_t at = offset[static_cast<size_t>(task)];
      const int64_t begin = rows.begin + task * kRowsPerTask;
      for (int64_t r = begin; r < std::min(rows.end, begin + kRowsPerTask); ++r)
        adjacency.indptr[r + 1] += at;
      const Id* indices = static_cast<const Id*>(graph.indices);
      for (size_t e = 0; e < drawn.size(); ++e)
        scratch.drawn[at - first_edge + static_cast<int64_t>(e)] = static_cast<int64_t>(indices[drawn[e]]);
      check_ids(scratch.drawn.data() + at - first_edge, static_cast<int64_t>(drawn.size()), graph.num_nodes);
      if (config.keep_edges) std::copy(drawn.begin(), drawn.end(), adjacency.edges.data() + at);
    });
  }

  // The positions drawn for some rows; indptr gets the count up to and with each row, from 0.
  std::vector<int64_t> draw_rows(Rows rows) const {
    SampleScratch own;
    std::vector<int64_t> positions;
    int64_t used = 0;
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      const int64_t node = out.n_id[r];
      const int64_t start = graph.indptr[node];
      const int64_t degree = graph.indptr[node + 1] - start;
      check_row(graph, start, degree);
      positions.resize(static_cast<size_t>(used + max_count(degree, fanout, config.replace) + 16));
      used += draw_row(graph, config, row_key(batch_key, hop, static_cast<uint64_t>(node)), start, degree,
                       fanout, own, positions.data() + used);
      adjacency.indptr[r + 1] = used;
    }
    positions.resize(static_cast<size_t>(used));
    return positions;
  }

  // Gives each drawn id its local id. Until a new id has one, its value is num_nodes + the first edge that
  // has it.
  void number(int64_t first_edge, int64_t num_edges) {
    const int64_t known = out.num_nodes;
    if (known + num_edges > kMaxBatchNodes) throw std::length_error(kBatchTooLarge);
    adjacency.indices.reserve(adjacency.num_edges, first_edge);
    int32_t* local = adjacency.indices.data() + first_edge;
    const int64_t num_shards = static_cast<int64_t>(scratch.shards.size());
    team.run(num_shards, [&](int64_t s) {
      IdShard& shard = scratch.shards[static_cast<size_t>(s)];
      shard.first_new = shard.count;
      for (int64_t e = 0; e < num_edges; ++e) {
        const int64_t id = scratch.drawn[e];
        if (shard_of(id, scratch.shards.size()) == static_cast<size_t>(s))  // so one shard writes local[e]
          local[e] = static_cast<int32_t>(find_or_insert(shard, id, static_cast<uint32_t>(known + e)));
      }
    });
    number_new_nodes(local, num_edges);
    team.run(tasks_of(num_edges, kEdgesPerTask), [&](int64_t task) {
      const int64_t end = std::min(num_edges, (task + 1) * kEdgesPerTask);
      for (int64_t e = task * kEdgesPerTask; e < end; ++e)
        if (local[e] >= known) local[e] = scratch.rank[local[e] - known];
    });
    team.run(num_shards, [&](int64_t s) {
      IdShard& shard = scratch.shards[static_cast<size_t>(s)];
      for (int64_t i = shard.first_new; i < shard.count; ++i) {
        shard.values[i] = static_cast<uint32_t>(scratch.rank[shard.values[i] - known]);
        set_value(shard.table, static_cast<uint64_t>(shard.keys[i]), shard.values[i]);
      }
    });
  }

  // rank[e] is the local id of edge e's source where e is the first edge that has it.
  void number_new_nodes(const int32_t* local, int64_t num_edges) {
    const int64_t known = out.num_nodes, tasks = tasks_of(num_edges, kEdgesPerTask);
    scratch.rank.reserve(num_edges);
    std::vector<int64_t> offset(static_cast<size_t>(tasks) + 1, known);
    const auto for_first_edges = [&](int64_t task, auto&& body) {
      const int64_t end = std::min(num_edges, (task + 1) * kEdgesPerTask);
      for (int64_t e = task * kEdgesPerTask; e < end; ++e)
        if (local[e] == known + e) body(e);
    };
    team.run(tasks, [&](int64_t task) {
      int64_t count = 0;
      for_first_edges(task, [&](int64_t) { ++count; });
      offset[static_cast<size_t>(task) + 1] = count;
    });
    for (size_t t = 1; t < offset.size(); ++t) offset[t] += offset[t - 1];
    out.n_id.reserve(offset.back() + 1, known);
    team.run(tasks, [&](int64_t task) {
      int64_t next = offset[static_cast<size_t>(task)];
      for_first_edges(task, [&](int64_t e) {
        out.n_id[next] = scratch.drawn[e];
        scratch.rank[e] = static_cast<int32_t>(next++);
      });
    });
    out.num_nodes = offset.back();
  }
};

void begin_shards(const int64_t* seeds, int64_t num_seeds, const Team& team, SampleScratch& scratch) {
  scratch.shards.resize(std::bit_ceil(static_cast<size_t>(std::clamp(team.num_threads, 1, 16))));
  const size_t num_shards = scratch.shards.size();
  team.run(static_cast<int64_t>(num_shards), [&](int64_t s) {
    IdShard& shard = scratch.shards[static_cast<size_t>(s)];
    clear_table(shard.table, std::max(shard.table.bits, 10));
    shard.count = 0;
    for (int64_t i = 0; i < num_seeds; ++i)
      if (shard_of(seeds[i], num_shards) == static_cast<size_t>(s))
        find_or_insert(shard, seeds[i], static_cast<uint32_t>(i));
  });
}

template <typename Id>
void sample_together(const SampleGraph& graph, const SampleConfig& config, uint64_t batch_key,
                     const int64_t* seeds, int64_t num_seeds, SampleScratch& scratch, SampledBatch& out,
                     const Team& team) {
  begin_output(config, seeds, num_seeds, out);
  begin_shards(seeds, num_seeds, team, scratch);
  for_each_hop(config, out, [&](size_t hop, SampledEdges& adjacency, Rows rows) {
    SharedHop<Id>{graph, config, scratch, out, adjacency, team, batch_key, hop, config.fanouts[hop]}.run(
        rows);
  });
}

}  // namespace
}  // namespace gb::GB_VARIANT
