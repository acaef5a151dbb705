// Local ids in the order of first appearance, of nodes whose neighbours came from other ranks.
//
//   known  (num_known,)  ids that have the local ids 0, 1, ...; of equal ones the first counts
//   found  (num_found,)  ids  --->  local (num_found,), and all ids: known ones, then new ones as they come
//
// Bound by the misses of a table of open addressing. sampling/reference.py has the twin.
//
// Places among a rank's own nodes, which are numbered in the order of their ids:
//
//   words   (num_words,)  bit id % 64 of words[id / 64] says whether the rank owns id
//   before  (num_words,)  number of bits set in the words before
//   ids     (num_ids,)  --->  out (num_ids,): the place of each; -1: another rank's
//
// A binary search of the list of own nodes misses the cache several times for each id; this reads two lines.
#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "arguments/binding.h"
#include "base/rng.h"

namespace gb {
namespace {

constexpr int64_t kMostIds = std::numeric_limits<int32_t>::max();
constexpr int64_t kSlotsAhead = 16;

struct Slot {
  int64_t id;
  int64_t local;  // -1: the slot is free
};

nb::tuple relabel(const Indptr& known, const Indptr& found) {
  const int64_t num_known = known.length(), num_found = found.length();
  need_count(num_known + num_found, 0, kMostIds, "the number of ids");
  std::vector<int64_t> ids, local(static_cast<size_t>(num_found));
  {
    nb::gil_scoped_release release;
    const int bits = std::bit_width(static_cast<uint64_t>(2 * (num_known + num_found))) + 1;
    const uint64_t mask = (uint64_t{1} << bits) - 1;
    std::vector<Slot> slots(size_t{1} << bits, Slot{0, -1});
    // The high bits of the product depend on all bits of the id; its low bits only on the id's low bits.
    const auto place = [&](int64_t id) { return (static_cast<uint64_t>(id) * kPhi) >> (64 - bits); };
    ids.reserve(static_cast<size_t>(num_known + num_found));
    ids.assign(known.data(), known.data() + num_known);
    // Returns the local id of `id`. If the table did not have it, it gets `next`.
    const auto find_or_insert = [&](int64_t id, int64_t next) {
      uint64_t at = place(id);
      while (slots[at].local >= 0 && slots[at].id != id) at = (at + 1) & mask;
      if (slots[at].local < 0) slots[at] = {id, next};
      return slots[at].local;
    };
    for (int64_t i = 0; i < num_known; ++i) find_or_insert(known.data()[i], i);
    for (int64_t i = 0; i < num_found; ++i) {
      if (i + kSlotsAhead < num_found) __builtin_prefetch(&slots[place(found.data()[i + kSlotsAhead])]);
      const int64_t id = found.data()[i], next = static_cast<int64_t>(ids.size());
      local[static_cast<size_t>(i)] = find_or_insert(id, next);
      if (local[static_cast<size_t>(i)] == next) ids.push_back(id);
    }
  }
  return nb::make_tuple(as_tensor(std::move(ids)), as_tensor(std::move(local)));
}

void own_places(const Indptr& words, const Indptr& before, const Indptr& ids, const Array1<int64_t>& out) {
  const int64_t num_words = words.length(), num_ids = ids.length();
  need_length(before, num_words);
  need_length(out, num_ids);
  const int64_t *word = words.data(), *first = before.data(), *id = ids.data();
  int64_t* place = out.data();
  nb::gil_scoped_release release;
  for (int64_t i = 0; i < num_ids; ++i) {
    need(static_cast<uint64_t>(id[i]) < static_cast<uint64_t>(64 * num_words), "ids must be nodes");
    const uint64_t bits = static_cast<uint64_t>(word[id[i] / 64]), bit = uint64_t{1} << (id[i] % 64);
    place[i] = (bits & bit) != 0 ? first[id[i] / 64] + std::popcount(bits & (bit - 1)) : -1;
  }
}

}  // namespace

void bind_relabel(nb::module_& m) {
  using namespace nb::literals;
  def_native(m, "relabel", &relabel, "known"_a, "found"_a);
  def_native(m, "own_places", &own_places, "words"_a, "before"_a, "ids"_a, "out"_a);
}

}  // namespace gb
