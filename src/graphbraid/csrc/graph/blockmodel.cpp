// The generator of the embedded datasets: a degree-corrected stochastic block model (datasets/synthetic.py
// says what it draws, and holds the twin). Bits depend on the key alone, not on threads or variant.
#include <algorithm>
#include <atomic>
#include <limits>

#include "arguments/binding.h"
#include "base/hugepages.h"
#include "base/rng.h"
#include "threads/parallel.h"
#include "variants/variants.h"

#define GB_KERNEL_FILE "graph/blockmodel.inl"
#include "variants/for_each_variant.h"

namespace gb {
namespace {

// Where edges come from. Position p of the stubs belongs to node owner[p]; nodes stand block by block, so a
// block, a class (blocks_per_class blocks in a row) and the whole graph are each one range of positions.
struct Stubs {
  const int32_t* owner;        // (num_stubs,)
  const int64_t* block_start;  // (num_blocks + 1,) first position of each block
  int64_t num_stubs;
  int64_t num_blocks;
  int64_t blocks_per_class;
  uint64_t in_block;  // thresholds on 32 bits: below in_block the edge stays in its block,
  uint64_t in_class;  // below in_class in its class, else it may go anywhere
  uint64_t key;
};

// Calls edge(u, v) for the undirected edge of each stub in [first, last), self-loops left out. The other end
// is the owner of a uniformly drawn stub: a node is hit in proportion to its own number of stubs.
template <typename Edge>
void for_each_edge(const Stubs& s, int64_t first, int64_t last, const Edge& edge) {
  const int64_t* starts = s.block_start;
  int64_t block = std::upper_bound(starts, starts + s.num_blocks + 1, first) - starts - 1;
  for (int64_t p = first; p < last; ++p) {
    while (p >= starts[block + 1]) ++block;
    const uint64_t counter = 2 * static_cast<uint64_t>(p);
    const uint32_t where = draw(s.key, counter);
    int64_t low = 0, high = s.num_stubs;
    if (where < s.in_block) {
      low = starts[block], high = starts[block + 1];
    } else if (where < s.in_class) {
      const int64_t first_block = block / s.blocks_per_class * s.blocks_per_class;
      low = starts[first_block], high = starts[first_block + s.blocks_per_class];
    }
    const int64_t q =
        low + static_cast<int64_t>(bounded(draw(s.key, counter + 1), static_cast<uint64_t>(high - low)));
    const int32_t u = s.owner[p], v = s.owner[q];
    if (u != v) edge(u, v);
  }
}

template <typename T>
T add_one(T& counter) {
  return std::atomic_ref<T>(counter).fetch_add(1, std::memory_order_relaxed);
}

// CSC of the edges, both directions stored, sources rising, without duplicates. The edges are drawn twice, to
// count and to fill, rather than kept: the peak is the result and num_nodes counters. Rows are filled in any
// order and sorted after, which makes the result independent of the threads. Bound by random access to owner
// and rows.
std::pair<std::vector<int64_t>, std::vector<int32_t>> draw_csc(const Stubs& s, int64_t num_nodes) {
  constexpr int64_t kStubsPerChunk = 1 << 15, kNodesPerChunk = 1 << 9;
  std::vector<int64_t> cursor;
  cursor.reserve(static_cast<size_t>(num_nodes) + 1);
  use_huge_pages(cursor.data(), num_nodes + 1);
  cursor.resize(static_cast<size_t>(num_nodes) + 1, 0);
  parallel_dynamic(s.num_stubs, kStubsPerChunk, [&](int64_t first, int64_t last) {
    for_each_edge(s, first, last, [&](int32_t u, int32_t v) { add_one(cursor[u]), add_one(cursor[v]); });
  });
  std::vector<int64_t> indptr(static_cast<size_t>(num_nodes) + 1);
  int64_t total = 0;
  for (int64_t v = 0; v <= num_nodes; ++v) {
    indptr[v] = total;
    total += cursor[v];
    cursor[v] = indptr[v];
  }
  std::vector<int32_t> indices;
  indices.reserve(static_cast<size_t>(total));
  use_huge_pages(indices.data(), total);
  indices.resize(static_cast<size_t>(total));
  parallel_dynamic(s.num_stubs, kStubsPerChunk, [&](int64_t first, int64_t last) {
    for_each_edge(s, first, last, [&](int32_t u, int32_t v) {
      indices[add_one(cursor[u])] = v;
      indices[add_one(cursor[v])] = u;
    });
  });
  parallel_dynamic(num_nodes, kNodesPerChunk, [&](int64_t first, int64_t last) {
    for (int64_t v = first; v < last; ++v) {
      int32_t* begin = indices.data() + indptr[v];
      int32_t* end = indices.data() + indptr[v + 1];
      std::sort(begin, end);
      cursor[v] = std::unique(begin, end) - begin;
    }
  });
  int64_t kept = 0;
  for (int64_t v = 0; v < num_nodes; ++v) {  // rows only move towards the front, so in place
    const auto row = indices.begin() + indptr[v];
    indptr[v] = kept;
    std::copy(row, row + cursor[v], indices.begin() + kept);
    kept += cursor[v];
  }
  indptr[num_nodes] = kept;
  indices.resize(static_cast<size_t>(kept));
  return {std::move(indptr), std::move(indices)};
}

nb::tuple block_model_csc(const Array1<const int32_t>& owner, const Indptr& block_start,
                          int64_t blocks_per_class, uint64_t in_block, uint64_t in_class, uint64_t key,
                          int64_t num_nodes) {
  const int64_t num_stubs = owner.length();
  need_count(num_stubs, 0, std::numeric_limits<uint32_t>::max(), "the length of owner");
  const int64_t num_blocks = rows_between(block_start, num_stubs);
  need(num_blocks > 0 && blocks_per_class > 0 && num_blocks % blocks_per_class == 0,
       "block_start must hold a whole number of classes");
  need_count(num_nodes, 0, std::numeric_limits<int32_t>::max(), "num_nodes");
  const Stubs stubs{owner.data(),     block_start.data(), num_stubs, num_blocks,
                    blocks_per_class, in_block,           in_class,  key};
  std::pair<std::vector<int64_t>, std::vector<int32_t>> csc;
  {
    nb::gil_scoped_release release;
    csc = draw_csc(stubs, num_nodes);
  }
  return nb::make_tuple(as_tensor(std::move(csc.first)), as_tensor(std::move(csc.second)));
}

void block_model_features(const Array1<const int32_t>& class_of, const Array2<const int32_t>& centre,
                          uint64_t key, const Array2<float>& out) {
  const int64_t num_nodes = out.num_rows(), num_features = out.num_columns();
  need_length(class_of, num_nodes);
  need_columns(centre, num_features);
  nb::gil_scoped_release release;
  use_huge_pages(out.data(), num_nodes * num_features);
  const auto fill = GB_PICK(block_model_features);
  parallel_dynamic(num_nodes, 1 << 10, [&](int64_t first, int64_t last) {
    fill(class_of.data(), centre.data(), key, out.data(), first, last, num_features);
  });
}

}  // namespace

void bind_blockmodel(nb::module_& m) {
  using namespace nb::literals;
  def_native(m, "block_model_csc", &block_model_csc, "owner"_a, "block_start"_a, "blocks_per_class"_a,
             "in_block"_a, "in_class"_a, "key"_a, "num_nodes"_a);
  def_native(m, "block_model_features", &block_model_features, "class_of"_a, "centre"_a, "key"_a, "out"_a);
}

}  // namespace gb
