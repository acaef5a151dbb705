#include "disk/neighbor_lists.h"

#include <algorithm>
#include <bit>
#include <string>

namespace gb {
namespace {

constexpr int64_t kBits = 64;
constexpr int64_t kRowsAhead = 24;                   // rows whose ids are fetched before they are copied
constexpr int64_t kFilledAtOnce = int64_t{1} << 17;  // edges
constexpr int64_t kCold = -1;

}  // namespace

NeighborLists::NeighborLists(DiskReader& disk, const int64_t* indptr, int64_t num_nodes, const int64_t* hot,
                             int64_t num_hot)
    : disk_(disk),
      num_nodes_(num_nodes),
      num_hot_(num_hot),
      words_(static_cast<size_t>((num_nodes + kBits - 1) / kBits)),
      starts_(num_hot + 1) {
  mark(hot);
  fill(indptr, hot);
}

void NeighborLists::mark(const int64_t* hot) {
  for (int64_t i = 0; i < num_hot_; ++i)
    words_[static_cast<size_t>(hot[i] / kBits)].is_hot |= uint64_t{1} << (hot[i] % kBits);
  int64_t before = 0;
  for (Word& word : words_) {
    word.before = before;
    before += std::popcount(word.is_hot);
  }
}

void NeighborLists::fill(const int64_t* indptr, const int64_t* hot) {
  starts_[0] = 0;
  for (int64_t i = 0; i < num_hot_; ++i) starts_[i + 1] = starts_[i] + indptr[hot[i] + 1] - indptr[hot[i]];
  const int64_t id_bytes = disk_.table().row_bytes;
  hot_.reserve(hot_edges() * id_bytes);
  std::vector<WantedRow> wanted;
  wanted.reserve(static_cast<size_t>(std::min(kFilledAtOnce, hot_edges())));
  int64_t first = 0;
  const auto read_wanted = [&] {
    const auto count = static_cast<int64_t>(wanted.size());
    disk_.read(wanted, hot_.data() + first * id_bytes);
    first += count;
    wanted.clear();
  };
  for (int64_t i = 0; i < num_hot_; ++i)
    for (int64_t e = indptr[hot[i]]; e < indptr[hot[i] + 1]; ++e) {
      wanted.push_back({e, static_cast<int64_t>(wanted.size())});
      if (static_cast<int64_t>(wanted.size()) == kFilledAtOnce) read_wanted();
    }
  read_wanted();
  const auto check_all = [&]<typename Id>(const Id* ids) {
    for (int64_t i = 0; i < num_hot_; ++i)
      for (int64_t e = starts_[i]; e < starts_[i + 1]; ++e)
        check(static_cast<int64_t>(ids[e]), indptr[hot[i]] + e - starts_[i]);
  };
  wide() ? check_all(reinterpret_cast<const int64_t*>(hot_.data()))
         : check_all(reinterpret_cast<const int32_t*>(hot_.data()));
}

// Which of the hot lists is the node's, or kCold.
int64_t NeighborLists::slot_of(int64_t node) const {
  const Word& word = words_[static_cast<size_t>(node / kBits)];
  const int bit = static_cast<int>(node % kBits);
  if ((word.is_hot >> bit & 1) == 0) return kCold;
  return word.before + std::popcount(word.is_hot & ((uint64_t{1} << bit) - 1));
}

void NeighborLists::read(const int64_t* indptr, const DrawnRows& rows, int64_t* ids) {
  std::vector<int64_t> slots(static_cast<size_t>(rows.num_rows));
  for (int64_t r = 0; r < rows.num_rows; ++r) {
    if (r + kRowsAhead < rows.num_rows)
      __builtin_prefetch(&words_[static_cast<size_t>(rows.nodes[r + kRowsAhead] / kBits)]);
    slots[static_cast<size_t>(r)] = slot_of(rows.nodes[r]);
  }
  wide() ? copy_hot<int64_t>(indptr, rows, slots, ids) : copy_hot<int32_t>(indptr, rows, slots, ids);
  wide() ? read_cold<int64_t>(rows, slots, ids) : read_cold<int32_t>(rows, slots, ids);
}

template <typename Id>
void NeighborLists::copy_hot(const int64_t* indptr, const DrawnRows& rows, const std::vector<int64_t>& slots,
                             int64_t* ids) const {
  const Id* const hot = reinterpret_cast<const Id*>(hot_.data());
  // f(edge, its id's place among the hot ids) for the edges of a row.
  // Inlined: GCC takes a call of what only prefetches for one without effect, and leaves it out.
  const auto for_each_edge = [&](int64_t r, auto&& f) __attribute__((always_inline)) {
    const int64_t slot = slots[static_cast<size_t>(r)];
    if (slot == kCold) return;
    const int64_t shift = starts_[slot] - indptr[rows.nodes[r]];
    for (int64_t e = rows.ends[r] - rows.ends[0]; e < rows.ends[r + 1] - rows.ends[0]; ++e)
      f(e, rows.positions[e] + shift);
  };
  for (int64_t r = 0; r < rows.num_rows; ++r) {
    if (r + kRowsAhead < rows.num_rows)
      for_each_edge(r + kRowsAhead, [&](int64_t, int64_t place)
                                        __attribute__((always_inline)) { __builtin_prefetch(hot + place); });
    for_each_edge(r, [&](int64_t e, int64_t place) { ids[e] = static_cast<int64_t>(hot[place]); });
  }
}

template <typename Id>
void NeighborLists::read_cold(const DrawnRows& rows, const std::vector<int64_t>& slots, int64_t* ids) {
  std::vector<WantedRow> wanted;
  std::vector<int64_t> edges;  // of the wanted ids, in the order of their places
  int64_t cold_lists = 0, lists = 0;
  for (int64_t r = 0; r < rows.num_rows; ++r) {
    const int64_t begin = rows.ends[r] - rows.ends[0], end = rows.ends[r + 1] - rows.ends[0];
    if (begin == end) continue;
    ++lists;
    if (slots[static_cast<size_t>(r)] != kCold) continue;
    ++cold_lists;
    for (int64_t e = begin; e < end; ++e) {
      wanted.push_back({rows.positions[e], static_cast<int64_t>(edges.size())});
      edges.push_back(e);
    }
  }
  const auto num_cold = static_cast<int64_t>(edges.size());
  hot_lists_ += lists - cold_lists;
  hot_edges_ += rows.num_edges() - num_cold;
  cold_lists_ += cold_lists;
  cold_edges_ += num_cold;
  Buffer<Id> found(num_cold);
  disk_.read(wanted, reinterpret_cast<char*>(found.data()));
  for (int64_t i = 0; i < num_cold; ++i) {
    const int64_t e = edges[static_cast<size_t>(i)], id = static_cast<int64_t>(found[i]);
    check(id, rows.positions[e]);
    ids[e] = id;
  }
}

// Ids are used as places in memory, so those of a damaged file without block sums are checked.
void NeighborLists::check(int64_t id, int64_t position) const {
  if (static_cast<uint64_t>(id) < static_cast<uint64_t>(num_nodes_)) return;
  throw FileDamaged(disk_.table().path + " has changed since it was written: the source of edge " +
                    std::to_string(position) + " is " + std::to_string(id) + ", which is no node in [0, " +
                    std::to_string(num_nodes_) + "); store again");
}

int64_t NeighborLists::overhead_bytes() const {
  return static_cast<int64_t>(words_.size() * sizeof(Word)) +
         (num_hot_ + 1) * static_cast<int64_t>(sizeof(int64_t)) + disk_.buffer_bytes();
}

ListCounts NeighborLists::counts() const {
  return {hot_lists_.load(), hot_edges_.load(), cold_lists_.load(), cold_edges_.load()};
}

}  // namespace gb
