// Samples one mini-batch:
//
//   indptr   (num_nodes + 1,)                       n_id     (num_sampled,)  global ids: seeds come first
//   indices  (num_edges,)      -- fanouts -->       indptr   (rows + 1,)
//   seeds    (num_seeds,)                           indices  (edges,)        local ids: positions in n_id
//                                                   edges    (edges,)        positions in the graph's indices
//
// The last three per hop, or once for all hops; `edges` only where it is asked for. Structures: sample.h.
//
// The time goes into three kinds of random reads: the degree of a row, the ids its draws point at, and the
// id's slot in the local-id table. So rows are taken in blocks, and three blocks are in flight: while one is
// inserted into the table, the ids of the next are read (and its slots prefetched), and the one after that is
// drawn (and its ids prefetched). The prefetch of a row's indptr runs further ahead.

#include "sampling/sample_row.inl"

namespace gb::GB_VARIANT {
namespace {

constexpr int64_t kEdgesPerBlock = 192;
constexpr int64_t kEdgesPerRead = int64_t{1} << 18;  // where lists come from a file: the disk's whole queue
constexpr int64_t kRowsAhead = 96;
constexpr int64_t kSlotsAhead = 24;  // of a block's slots many are gone from the cache by their turn
// Local ids and the table's moving base share 32 bits.
constexpr int64_t kMaxBatchNodes = int64_t{1} << 28;
constexpr char kBatchTooLarge[] =
    "a mini-batch may hold 268 million nodes at the most; lower the fanouts or the batch size";

template <typename Key>
inline uint32_t slot_of(Key id, int bits) {
  return static_cast<uint32_t>((static_cast<uint64_t>(id) * kPhi) >> (64 - bits));
}

template <typename Key>
inline void prefetch_slot(const IdTable<Key>& table, int64_t id) {
  __builtin_prefetch(table.slots.data() + slot_of(static_cast<Key>(id), table.bits), 1);
}

// An array may be changed after it was checked, while these threads read it or through shared memory. The
// next hop would then read outside of the graph. These checks cost one comparison per row and one pass over
// ids in L1.
constexpr char kChanged[] = "the graph's arrays were changed while batches were sampled from them";

inline void check_ids(const int64_t* ids, int64_t count, int64_t num_nodes) {
  uint64_t highest = 0;
  for (int64_t e = 0; e < count; ++e) highest = std::max(highest, static_cast<uint64_t>(ids[e]));
  if (count > 0 && highest >= static_cast<uint64_t>(num_nodes)) throw std::invalid_argument(kChanged);
}

inline void check_row(const SampleGraph& graph, int64_t start, int64_t degree) {
  if (start < 0 || degree < 0 || start > graph.num_edges - degree) throw std::invalid_argument(kChanged);
}

template <typename Key>
void clear_table(IdTable<Key>& table, int bits) {
  const int64_t capacity = int64_t{1} << bits;
  table.slots.reserve(capacity);
  std::memset(table.slots.data(), 0, static_cast<size_t>(capacity) * sizeof(typename IdTable<Key>::Slot));
  table.bits = bits;
  table.base = 1;
}

// Inserts id with local id `next` unless it is there; returns the id's local id. Without a branch on new or
// known, which no predictor would guess. The caller sees that it was new by the result being `next`.
template <typename Key>
inline uint32_t find_or_insert(IdTable<Key>& table, Key id, uint32_t next) {
  auto* slots = table.slots.data();
  const uint32_t mask = (1u << table.bits) - 1;
  uint32_t at = slot_of(id, table.bits);
  auto slot = slots[at];
  bool empty = slot.value < table.base;
  while (!empty && slot.key != id) [[unlikely]] {
    at = (at + 1) & mask;
    slot = slots[at];
    empty = slot.value < table.base;
  }
  const uint32_t value = empty ? table.base + next : slot.value;
  slots[at] = {id, value};
  return value - table.base;
}

// Replaces the value of an id that is in the table.
template <typename Key>
inline void set_value(IdTable<Key>& table, Key id, uint32_t value) {
  auto* slots = table.slots.data();
  const uint32_t mask = (1u << table.bits) - 1;
  uint32_t at = slot_of(id, table.bits);
  while (slots[at].key != id || slots[at].value < table.base) at = (at + 1) & mask;
  slots[at].value = table.base + value;
}

// Makes room for `extra` more ids beside the batch's first `used`.
template <typename Key>
void grow_table(IdTable<Key>& table, const int64_t* n_id, int64_t used, int64_t extra) {
  if (table.bits > 0 && (used + extra) * 2 <= (int64_t{1} << table.bits)) return;
  int bits = std::max(table.bits, 10);
  while ((used + extra) * 2 > (int64_t{1} << bits)) ++bits;
  clear_table(table, bits);
  for (int64_t i = 0; i < used; ++i)
    find_or_insert(table, static_cast<Key>(n_id[i]), static_cast<uint32_t>(i));
}

// Forgets the last batch. A batch that ended in an exception left no count (-1), so its table is cleared.
template <typename Key>
void begin_batch(IdTable<Key>& table) {
  const int64_t base = table.base + table.nodes_in_use;
  if (table.nodes_in_use >= 0 && base + kMaxBatchNodes < int64_t{0xFFFFFFFF})
    table.base = static_cast<uint32_t>(base);
  else
    clear_table(table, std::max(table.bits, 12));
  table.nodes_in_use = -1;
}

struct Rows {
  int64_t begin, end;
};

// The rows that draw at a hop: all known nodes, or those the last hop found.
inline Rows rows_of_hop(const SampleConfig& config, const SampledBatch& out) {
  return {config.blocks ? 0 : out.num_nodes - out.nodes_per_hop.back(), out.num_nodes};
}

inline SampledEdges& adjacency_of_hop(const SampleConfig& config, SampledBatch& out, size_t hop) {
  SampledEdges& adjacency = out.adjacencies[config.blocks ? hop : 0];
  if (config.blocks || hop == 0) {
    adjacency.num_rows = adjacency.num_edges = 0;
    adjacency.indptr.reserve(1);
    adjacency.indptr[0] = 0;
  }
  return adjacency;
}

// One block of rows on its way through the three steps.
struct Block {
  int which = 0;  // of the scratch buffers
  Rows rows{};
  int64_t* positions = nullptr;
  int64_t* ids = nullptr;
  int64_t num_edges = 0;
  int64_t first_edge = 0;
};

// The nodes of a type, or of a graph without types, that a batch has so far.
struct FoundNodes {
  Buffer<int64_t>& ids;
  int64_t& count;
  int64_t num_nodes;  // of the type
};

// Where a node's edges of a relation begin, and behind that where they end.
inline const int64_t* row_of(const SampleGraph& graph, const TypedRelation& relation, int64_t node) {
  const int64_t* indptr = graph.types == nullptr ? graph.indptr : graph.types->indptr;
  return indptr + relation.first_row + node * relation.stride;
}

// The relation of a graph without types.
inline TypedRelation only_relation() {
  TypedRelation only;
  only.stride = 1;
  return only;
}

template <typename Id, typename Key>
struct Hop {
  const SampleGraph& graph;
  const SampleConfig& config;
  const TypedRelation& relation;
  SampleScratch& scratch;
  FoundNodes destinations;
  FoundNodes sources;  // the same where both ends have one type
  SampledEdges& adjacency;
  IdTable<Key>& table;  // of the sources' type
  uint64_t batch_key;
  uint64_t hop;
  int64_t fanout;

  void run(Rows rows) {
    const int64_t per_row = fanout < 0 ? 16 : std::max<int64_t>(fanout, 1);
    const int64_t edges_per_block = graph.lists == nullptr ? kEdgesPerBlock : kEdgesPerRead;
    const int64_t rows_per_block = std::max<int64_t>(edges_per_block / per_row, 1);
    const int64_t num_blocks = (rows.end - rows.begin + rows_per_block - 1) / rows_per_block;
    adjacency.indptr.reserve(rows.end + 1, rows.begin + 1);
    prefetch_rows(rows.begin, std::min(rows.end, rows.begin + kRowsAhead));
    Block blocks[3];
    for (int64_t b = 0; b < num_blocks + 2; ++b) {
      if (b < num_blocks) {
        const int64_t begin = rows.begin + b * rows_per_block;
        blocks[b % 3] = draw({begin, std::min(rows.end, begin + rows_per_block)}, rows.end, b % 3);
      }
      if (b >= 1 && b - 1 < num_blocks) read_ids(blocks[(b - 1) % 3]);
      if (b >= 2) insert(blocks[(b - 2) % 3]);
    }
    adjacency.num_rows = rows.end;
  }

  void prefetch_rows(int64_t begin, int64_t end) const {
    for (int64_t r = begin; r < end; ++r) __builtin_prefetch(row_of(graph, relation, destinations.ids[r]));
  }

  Block draw(Rows rows, int64_t last_row, int which) {
    const int64_t ahead = rows.begin + kRowsAhead;
    prefetch_rows(std::min(ahead, last_row), std::min(ahead + rows.end - rows.begin, last_row));
    int64_t most = 16;
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      const int64_t* row = row_of(graph, relation, destinations.ids[r]);
      most += max_count(row[1] - row[0], fanout, config.replace);
    }
    // A weighted row is scanned to its end before it is cut to the fanout, but written only then.
    scratch.positions[which].reserve(most);
    Block block{which, rows, scratch.positions[which].data(), nullptr, 0, adjacency.num_edges};
    const Id* indices = static_cast<const Id*>(graph.indices);
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      const int64_t node = destinations.ids[r];
      const int64_t* row = row_of(graph, relation, node);
      const int64_t start = row[0], degree = row[1] - start;
      int64_t* positions = block.positions + block.num_edges;
      const uint64_t key = typed_row_key(batch_key, hop, relation.number, static_cast<uint64_t>(node));
      check_row(graph, start, degree);
      const int64_t count = draw_row(graph, config, key, start, degree, fanout, scratch, positions);
      if (graph.lists == nullptr)
        for (int64_t i = 0; i < count; ++i) __builtin_prefetch(indices + positions[i]);
      block.num_edges += count;
      adjacency.indptr[r + 1] = adjacency.num_edges + block.num_edges;
    }
    adjacency.num_edges += block.num_edges;
    return block;
  }

  void read_ids(Block& block) {
    scratch.ids[block.which].reserve(block.num_edges);
    block.ids = scratch.ids[block.which].data();
    // Room for the three blocks in flight: if the table grew before they are inserted, prefetches were
    // wasted.
    grow_table(table, sources.ids.data(), sources.count, 3 * block.num_edges);
    const Id* indices = static_cast<const Id*>(graph.indices);
    if (graph.lists != nullptr) {
      const int64_t begin = block.rows.begin;
      graph.lists->read(graph.indptr,
                        {destinations.ids.data() + begin, adjacency.indptr.data() + begin,
                         block.rows.end - begin, block.positions},
                        block.ids);
    } else {
      for (int64_t e = 0; e < block.num_edges; ++e) {
        block.ids[e] = static_cast<int64_t>(indices[block.positions[e]]) - relation.first_source;
        prefetch_slot(table, block.ids[e]);
      }
    }
    check_ids(block.ids, block.num_edges, sources.num_nodes);
    if (config.keep_edges) {
      adjacency.edges.reserve(block.first_edge + block.num_edges, block.first_edge);
      std::copy_n(block.positions, block.num_edges, adjacency.edges.data() + block.first_edge);
    }
  }

  void insert(const Block& block) {
    if (sources.count + block.num_edges > kMaxBatchNodes) throw std::length_error(kBatchTooLarge);
    grow_table(table, sources.ids.data(), sources.count, block.num_edges);
    sources.ids.reserve(sources.count + block.num_edges + 1, sources.count);
    adjacency.indices.reserve(block.first_edge + block.num_edges, block.first_edge);
    int32_t* local = adjacency.indices.data() + block.first_edge;
    int64_t* ids = sources.ids.data();
    uint32_t next = static_cast<uint32_t>(sources.count);
    for (int64_t e = 0; e < block.num_edges; ++e) {
      if (e + kSlotsAhead < block.num_edges) prefetch_slot(table, block.ids[e + kSlotsAhead]);
      const uint32_t id = find_or_insert(table, static_cast<Key>(block.ids[e]), next);
      ids[next] = block.ids[e];  // without a branch: if the id was known, the next new one overwrites it
      next += id == next;
      local[e] = static_cast<int32_t>(id);
    }
    sources.count = next;
  }
};

void begin_output(const SampleConfig& config, const int64_t* seeds, int64_t num_seeds, SampledBatch& out) {
  out.adjacencies.resize(config.blocks ? config.fanouts.size() : 1);
  out.n_id.reserve(num_seeds + 1);
  std::copy_n(seeds, num_seeds, out.n_id.data());
  out.num_nodes = out.num_seeds = num_seeds;
  out.nodes_per_hop.assign(1, num_seeds);
  out.edges_per_hop.clear();
  out.disjoint = false;
}

// Runs body(hop, adjacency, rows) for each hop and keeps the counts.
template <typename Body>
void for_each_hop(const SampleConfig& config, SampledBatch& out, const Body& body) {
  for (size_t hop = 0; hop < config.fanouts.size(); ++hop) {
    const int64_t nodes_before = out.num_nodes;
    SampledEdges& adjacency = adjacency_of_hop(config, out, hop);
    const int64_t edges_before = adjacency.num_edges;
    body(hop, adjacency, rows_of_hop(config, out));
    out.nodes_per_hop.push_back(out.num_nodes - nodes_before);
    out.edges_per_hop.push_back(adjacency.num_edges - edges_before);
  }
}

template <typename Id, typename Key>
void sample_alone(const SampleGraph& graph, const SampleConfig& config, uint64_t batch_key,
                  const int64_t* seeds, int64_t num_seeds, SampleScratch& scratch, IdTable<Key>& table,
                  SampledBatch& out) {
  begin_output(config, seeds, num_seeds, out);
  begin_batch(table);
  grow_table(table, out.n_id.data(), 0, num_seeds);
  // Of a repeated seed every copy keeps a row; neighbours point at the first.
  for (int64_t i = 0; i < num_seeds; ++i)
    find_or_insert(table, static_cast<Key>(seeds[i]), static_cast<uint32_t>(i));
  const TypedRelation only = only_relation();
  const FoundNodes nodes{out.n_id, out.num_nodes, graph.num_nodes};
  for_each_hop(config, out, [&](size_t hop, SampledEdges& adjacency, Rows rows) {
    Hop<Id, Key>{
        graph, config, only, scratch, nodes, nodes, adjacency, table, batch_key, hop, config.fanouts[hop]}
        .run(rows);
  });
  table.nodes_in_use = out.num_nodes;
}

}  // namespace
}  // namespace gb::GB_VARIANT

#include "sampling/sample_constrained.inl"
#include "sampling/sample_together.inl"
#include "sampling/typed_sample.inl"

namespace gb::GB_VARIANT {

void sample_batch(const SampleGraph& graph, const SampleConfig& config, uint64_t batch_key,
                  const int64_t* seeds, int64_t num_seeds, SampleScratch& scratch, SampledBatch& out,
                  const Team* team, const SampleConstraints* constraints) {
  if (graph.types != nullptr && constraints != nullptr)
    (graph.wide ? sample_typed_constrained<int64_t>
                : sample_typed_constrained<int32_t>)(graph, config, batch_key, seeds, num_seeds, scratch, out,
                                                     *constraints);
  else if (graph.types != nullptr && graph.wide)
    sample_typed<int64_t, uint64_t>(graph, config, batch_key, seeds, num_seeds, scratch, scratch.wide_tables,
                                    out);
  else if (graph.types != nullptr)
    sample_typed<int32_t, uint32_t>(graph, config, batch_key, seeds, num_seeds, scratch,
                                    scratch.narrow_tables, out);
  else if (constraints != nullptr)
    (graph.wide ? sample_constrained<int64_t> : sample_constrained<int32_t>)(graph, config, batch_key, seeds,
                                                                             num_seeds, scratch, out,
                                                                             *constraints);
  else if (team != nullptr && graph.lists == nullptr)
    (graph.wide ? sample_together<int64_t> : sample_together<int32_t>)(graph, config, batch_key, seeds,
                                                                       num_seeds, scratch, out, *team);
  else if (graph.wide)
    sample_alone<int64_t, uint64_t>(graph, config, batch_key, seeds, num_seeds, scratch, scratch.wide_table,
                                    out);
  else
    sample_alone<int32_t, uint32_t>(graph, config, batch_key, seeds, num_seeds, scratch, scratch.narrow_table,
                                    out);
}

}  // namespace gb::GB_VARIANT
