// Neighbour sampling: what goes in, what comes out, and what one worker keeps between batches.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/buffer.h"

namespace gb {

class NeighborLists;
struct TypedGraph;

// The graph, borrowed. indices are int32, or int64 when `wide`.
struct SampleGraph {
  const int64_t* indptr = nullptr;  // (num_nodes + 1,)
  const void* indices = nullptr;    // (num_edges,)
  const float* weight = nullptr;    // (num_edges,) or null: every neighbour alike
  int64_t num_nodes = 0;
  int64_t num_edges = 0;
  bool wide = false;
  NeighborLists* lists = nullptr;  // gives the ids in place of indices, which may not be in memory; or null
  const int64_t* time = nullptr;   // (num_edges,) when each edge arose, rising within each row; or null
  const TypedGraph* types = nullptr;  // types of nodes and edges, with the rows to read; or null
};

struct SampleConfig {
  std::vector<int64_t> fanouts;  // per hop from the seeds; -1 takes all
  bool replace = false;
  bool blocks = false;      // layout `blocks`: every known node draws at every hop; else only the last hop's
  bool keep_edges = false;  // also write each sampled edge's position in the graph
  bool last = false;        // of the edges up to a seed's time, draw among the latest only
};

// The constraints of one batch's draws, beside the fanouts. Borrowed.
struct SampleConstraints {
  bool disjoint = false;              // each seed has a tree of its own, which shares no node with another's
  const int64_t* times = nullptr;     // (num_seeds,) a tree has edges up to its seed's time; or null
  const int64_t* excluded = nullptr;  // (num_excluded,) positions of edges that are not drawn, rising
  int64_t num_excluded = 0;
};

// A CSC whose destinations are the batch's first nodes, in local ids.
struct SampledEdges {
  Buffer<int64_t> indptr;   // (rows + 1,)
  Buffer<int32_t> indices;  // (edges,) local source ids
  Buffer<int64_t> edges;    // (edges,) position of each edge in the graph; only with keep_edges
  int64_t num_rows = 0;
  int64_t num_edges = 0;
};

// The ids of one type's nodes: seeds, then by first appearance.
struct NodeIds {
  Buffer<int64_t> ids;    // (count,) ids of the type
  Buffer<int64_t> trees;  // (count,) the tree of each node, as the number of its seed; only if disjoint
  int64_t count = 0;
};

// One mini-batch. Layout `subgraph` has one SampledEdges that every hop extends, `blocks` has one per hop.
struct SampledBatch {
  Buffer<int64_t> n_id;  // (num_nodes,) global ids: seeds, then by first appearance
  int64_t num_nodes = 0;
  int64_t num_seeds = 0;
  std::vector<SampledEdges> adjacencies;
  std::vector<NodeIds> by_type;        // in place of n_id where nodes have types
  std::vector<int64_t> nodes_per_hop;  // new nodes: seeds first, then per hop
  // Where there are types: of each type, or of each relation, after the other.
  std::vector<int64_t> edges_per_hop;
  Buffer<int64_t> trees;  // (num_nodes,) as those of NodeIds; only if disjoint
  bool disjoint = false;
};

// Threads that share one batch's work. run(count, task) calls task(i) for i in [0, count) and returns when
// all are done.
struct Team {
  int num_threads = 1;
  std::function<void(int64_t count, const std::function<void(int64_t)>& task)> run;
};

// Global id -> local id by open addressing. A slot is in use when its value is at least `base`, which moves
// up from batch to batch: nothing is ever cleared (until the 32-bit values run out).
template <typename Key>
struct IdTable {
  struct Slot {
    Key key;
    uint32_t value;
  };
  Buffer<Slot> slots;
  int bits = 0;
  uint32_t base = 0;
  int64_t nodes_in_use = -1;  // of the last batch; -1: unknown
};

// The ids of one share of the id space, with their values in order of arrival.
struct IdShard {
  IdTable<uint64_t> table;
  Buffer<int64_t> keys;
  Buffer<uint32_t> values;
  int64_t count = 0;
  int64_t first_new = 0;  // of this hop
};

// The memory that one worker keeps from batch to batch: O(batch), nothing of the graph's size.
struct SampleScratch {
  IdTable<uint32_t> narrow_table;
  IdTable<uint64_t> wide_table;
  std::vector<IdTable<uint32_t>> narrow_tables;  // one per type, where nodes have types
  std::vector<IdTable<uint64_t>> wide_tables;
  Buffer<int64_t> positions[3];  // of the edges of the last blocks of rows; see sample.inl
  Buffer<int64_t> ids[3];
  Buffer<double> race;  // weighted rows
  Buffer<int64_t> order;
  Buffer<uint32_t> set;  // Floyd's set where it is large
  // Only where draws are constrained:
  Buffer<int64_t> keys;  // (num_nodes,) what the table knows each node by
  std::vector<Buffer<int64_t>> keys_by_type;
  Buffer<float> row_weight;  // of the edges of one row that may be drawn
  // Only where several threads share a batch:
  std::vector<IdShard> shards;
  Buffer<int64_t> drawn;
  Buffer<int32_t> rank;
  SampledBatch whole;  // only where a batch is a share of one: that one
};

// Samples one batch into `out`, with the threads of a team if there is one; the bits are the same. One thread
// samples a batch with constraints.
void sample_batch(const SampleGraph& graph, const SampleConfig& config, uint64_t batch_key,
                  const int64_t* seeds, int64_t num_seeds, SampleScratch& scratch, SampledBatch& out,
                  const Team* team, const SampleConstraints* constraints);

}  // namespace gb
