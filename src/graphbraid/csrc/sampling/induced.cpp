// The edges of a graph between the nodes of a sample, which subgraph_type="induced" adds to the drawn edges.
// sampling/subgraph.py describes it and has the twin.
//
// Each in-edge of each node is looked up among the sample's sources, in a table of open addressing. Bound by
// the table's misses and by reading the adjacency lists twice, to count and to write. Disjoint trees count a
// node once in each tree, so the table's keys are pairs of a node and its tree.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "arguments/binding.h"
#include "base/rng.h"
#include "threads/parallel.h"

namespace gb {
namespace {

constexpr int64_t kRowsPerChunk = 64;
constexpr int64_t kMostNodes = std::numeric_limits<int32_t>::max();

// Finds the first source that is a given node in a given tree.
class SourceTable {
 public:
  SourceTable(const int64_t* node, const int64_t* tree, int64_t num_nodes)
      : node_(node),
        tree_(tree),
        slots_(std::bit_ceil(static_cast<uint64_t>(2 * num_nodes + 1)), -1),
        mask_(slots_.size() - 1) {
    for (int64_t i = 0; i < num_nodes; ++i) {
      int32_t& slot = slots_[place_of(node[i], tree_at(i))];
      if (slot < 0) slot = static_cast<int32_t>(i);
    }
  }

  // The position of the source, or -1.
  int32_t find(int64_t node, int64_t tree) const { return slots_[place_of(node, tree)]; }

 private:
  int64_t tree_at(int64_t i) const { return tree_ == nullptr ? 0 : tree_[i]; }
  // The slot that has the node, or a free one for it. Half of the slots are free, so one is found.
  uint64_t place_of(int64_t node, int64_t tree) const {
    const uint64_t key = static_cast<uint64_t>(node) + static_cast<uint64_t>(tree) * kPhi;
    for (uint64_t at = mix(key) & mask_;; at = (at + 1) & mask_) {
      const int32_t i = slots_[at];
      if (i < 0 || (node_[i] == node && tree_at(i) == tree)) return at;
    }
  }

  const int64_t* node_;
  const int64_t* tree_;
  std::vector<int32_t> slots_;
  uint64_t mask_;
};

// Calls f(row, edge, source's position) for the edges of rows [begin, end) that come from a source.
template <typename Source, typename F>
void for_each_edge(const int64_t* indptr, const Source* indices, const int64_t* rows, const int64_t* trees,
                   const SourceTable& table, int64_t begin, int64_t end, const F& f) {
  for (int64_t i = begin; i < end; ++i) {
    const int64_t tree = trees == nullptr ? 0 : trees[i];
    for (int64_t e = indptr[rows[i]]; e < indptr[rows[i] + 1]; ++e) {
      const int32_t source = table.find(static_cast<int64_t>(indices[e]), tree);
      if (source >= 0) f(i, e, source);
    }
  }
}

bool all_below(const int64_t* ids, int64_t count, int64_t limit) {
  std::atomic<bool> fits{true};
  parallel_static(count, int64_t{1} << 14, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      if (static_cast<uint64_t>(ids[i]) >= static_cast<uint64_t>(limit))
        fits.store(false, std::memory_order_relaxed);
  });
  return fits.load();
}

// The edges of some rows of a CSC that come from given sources.
//
//   indptr, indices  (num_rows + 1,), (num_edges,)  the CSC
//   rows             (num_dst,)  rows of the CSC, any number of times
//   row_trees        (num_dst,)  the tree of each, or None: one tree
//   sources          (num_src,)  ids in indices; of equal ones in a tree, edges name the first
//   source_trees     (num_src,)  the tree of each, given with row_trees
//
// Returns (num_dst + 1,) int64 ends of the rows, and for each edge in the CSC's order its source's position,
// int32, and its place in the CSC, int64.
nb::tuple induced_edges(const Indptr& indptr, const Ids& indices, const Indptr& rows,
                        const OptionalIds& row_trees, const Indptr& sources,
                        const OptionalIds& source_trees) {
  const int64_t num_rows = rows_between(indptr, indices.length()), num_dst = rows.length();
  need_length(row_trees, num_dst);
  need_length(source_trees, sources.length());
  need(row_trees.has_value() == source_trees.has_value(), "row_trees must be given with source_trees");
  need_count(sources.length(), 0, kMostNodes, "the number of sources");
  const int64_t *ptr = indptr.data(), *row = rows.data(), *tree = data_or_null(row_trees);
  std::vector<int64_t> ends(static_cast<size_t>(num_dst) + 1, 0), positions;
  std::vector<int32_t> found;
  bool fits = false;
  {
    nb::gil_scoped_release release;
    fits = all_below(row, num_dst, num_rows);
    if (fits) {
      const SourceTable table(sources.data(), data_or_null(source_trees), sources.length());
      with_ids(indices, [&](const auto* source) {
        parallel_dynamic(num_dst, kRowsPerChunk, [&](int64_t begin, int64_t end) {
          for_each_edge(ptr, source, row, tree, table, begin, end,
                        [&](int64_t i, int64_t, int32_t) { ++ends[static_cast<size_t>(i) + 1]; });
        });
        for (size_t i = 1; i < ends.size(); ++i) ends[i] += ends[i - 1];
        positions.resize(static_cast<size_t>(ends.back()));
        found.resize(positions.size());
        parallel_dynamic(num_dst, kRowsPerChunk, [&](int64_t begin, int64_t end) {
          auto to = static_cast<size_t>(ends[static_cast<size_t>(begin)]);
          for_each_edge(ptr, source, row, tree, table, begin, end, [&](int64_t, int64_t e, int32_t local) {
            found[to] = local;
            positions[to++] = e;
          });
        });
      });
    }
  }
  need(fits, "rows must be rows that indptr has");
  return nb::make_tuple(as_tensor(std::move(ends)), as_tensor(std::move(found)),
                        as_tensor(std::move(positions)));
}

}  // namespace

void bind_induced(nb::module_& m) {
  using namespace nb::literals;
  def_native(m, "induced_edges", &induced_edges, "indptr"_a, "indices"_a, "rows"_a, "row_trees"_a,
             "sources"_a, "source_trees"_a);
}

}  // namespace gb
