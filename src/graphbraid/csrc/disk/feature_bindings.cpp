// Python's view of what lies on disk: DiskRows, which reads rows, RowCache in front of it, and NeighborLists.
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arguments/binding.h"
#include "base/xxh64.h"
#include "disk/disk_reader.h"
#include "disk/neighbor_lists.h"
#include "disk/replacement.h"
#include "disk/row_cache.h"

namespace gb {
namespace {

using Sums = std::optional<Array1<const int64_t>>;
using Ranks = std::optional<Array1<const uint8_t>>;

// Rows that a cache can stand in front of.
struct PyReader {
  virtual ~PyReader() = default;
  virtual RowReader& rows() = 0;
};

struct PyDisk : PyReader {
  PyDisk(const Sums& sums, const DiskTable& table, const DiskOptions& options)
      : sums(sums), reader(table, options) {}
  RowReader& rows() override { return reader; }
  Sums sums;  // kept alive
  DiskReader reader;
};

// Rows that the caller of decide brings and keeps: a cache in front of it has slots alone.
class BroughtReader : public RowReader {
 public:
  explicit BroughtReader(int64_t num_rows) : num_rows_(num_rows) {}
  void read(std::vector<WantedRow>& wanted, char*) override {
    need(wanted.empty(), "rows that the caller brings are not read");
  }
  int64_t num_rows() const override { return num_rows_; }
  int64_t row_bytes() const override { return 0; }

 private:
  const int64_t num_rows_;
};

struct PyBrought : PyReader {
  explicit PyBrought(int64_t num_rows) : reader(num_rows) {}
  RowReader& rows() override { return reader; }
  BroughtReader reader;
};

// A fork while a thread reads would leave the lock held in the child: Python's side makes these anew there.
struct PyCache {
  RowReader& reader;
  Ranks ranks;
  RowCache cache;
};

DiskTable table_of(const std::string& path, int64_t first_byte, int64_t num_rows, int64_t row_bytes,
                   const Sums& sums) {
  need_count(first_byte, 0, kMostItems, "first_byte");
  need_count(num_rows, 0, kMostItems, "num_rows");
  need_count(row_bytes, 1, int64_t{1} << 30, "row_bytes");
  need(num_rows <= kMostItems / row_bytes, "num_rows times row_bytes must be less than 2**56");
  const DiskTable table{path, first_byte, num_rows, row_bytes, data_or_null(sums)};
  need_length(sums, (table.end_byte() + kDiskBlock - 1) / kDiskBlock);
  return table;
}

void init_disk(PyDisk* self, const std::string& path, int64_t first_byte, int64_t num_rows, int64_t row_bytes,
               const Sums& sums, bool uring, bool direct, int depth, int64_t longest, int64_t gap) {
  need_count(depth, 1, 4096, "depth");
  need_count(longest, kDiskBlock, int64_t{1} << 30, "longest");
  need_count(gap, 0, 1 << 20, "gap");
  const DiskTable table = table_of(path, first_byte, num_rows, row_bytes, sums);
  new (self) PyDisk(sums, table, {uring, direct, depth, longest, gap});
}

void init_brought(PyBrought* self, int64_t num_rows) {
  need_count(num_rows, 0, kMostItems, "num_rows");
  new (self) PyBrought(num_rows);
}

void read_rows(PyDisk& self, const Indptr& ids, const Array2<uint8_t>& out) {
  const DiskTable& table = self.reader.table();
  need_shape(out, ids.length(), table.row_bytes);
  nb::gil_scoped_release release;
  std::vector<WantedRow> wanted;
  wanted.reserve(static_cast<size_t>(ids.length()));
  for (int64_t i = 0; i < ids.length(); ++i) {
    const int64_t id = ids.data()[i];
    if (id < 0 || id >= table.num_rows)
      throw std::invalid_argument("ids must be rows in [0, " + std::to_string(table.num_rows) + "); ids[" +
                                  std::to_string(i) + "] is " + std::to_string(id));
    wanted.push_back({id, i});
  }
  self.reader.read(wanted, reinterpret_cast<char*>(out.data()));
}

nb::tuple disk_counts(PyDisk& self) {
  const DiskCounts counts = self.reader.counts();
  return nb::make_tuple(counts.rows, counts.requests, counts.bytes);
}

nb::tuple how_read(PyDisk& self) {
  const bool uring = self.reader.uses_uring();
  return nb::make_tuple(uring, self.reader.is_direct(), self.reader.why_threads());
}

void init_cache(PyCache* self, PyReader& disk, int64_t capacity, const std::string& policy,
                const Ranks& ranks) {
  RowReader& reader = disk.rows();
  need_count(capacity, 0, std::numeric_limits<int32_t>::max(), "capacity");
  need_length(ranks, reader.num_rows());
  std::unique_ptr<Replacement> replacement = make_replacement(policy, capacity, data_or_null(ranks));
  if (replacement == nullptr) refuse("policy must be static, sieve or belady; got " + policy);
  new (self) PyCache{reader, ranks, RowCache(reader, capacity, std::move(replacement), policy == "belady")};
}

void fill_cache(PyCache& self, const Indptr& ids) {
  nb::gil_scoped_release release;
  self.cache.fill(ids.data(), ids.length());
}

int64_t announce_batch(PyCache& self, const Indptr& ids) {
  nb::gil_scoped_release release;
  return self.cache.announce(ids.data(), ids.length());
}

void gather_cached(PyCache& self, const Indptr& ids, const Array2<uint8_t>& out, int64_t batch) {
  need_shape(out, ids.length(), self.reader.row_bytes());
  nb::gil_scoped_release release;
  self.cache.gather(ids.data(), ids.length(), reinterpret_cast<char*>(out.data()), batch);
}

void decide_cached(PyCache& self, const Indptr& ids, int64_t batch, const Array1<int32_t>& slots,
                   const Array1<int32_t>& fills) {
  need_length(slots, ids.length());
  need_length(fills, ids.length());
  nb::gil_scoped_release release;
  self.cache.decide(ids.data(), ids.length(), batch, slots.data(), fills.data());
}

// Another thread may hold the cache's lock while it reads a file; the others run meanwhile.
nb::tuple cache_counts(PyCache& self) {
  CacheCounts counts;
  {
    const nb::gil_scoped_release release;
    counts = self.cache.counts();
  }
  return nb::make_tuple(counts.reads, counts.hits, counts.filled, counts.kept);
}

void init_lists(NeighborLists* self, PyDisk& disk, const Indptr& indptr, const Indptr& hot) {
  const DiskTable& table = disk.reader.table();
  need(table.row_bytes == sizeof(int32_t) || table.row_bytes == sizeof(int64_t),
       "disk must have one id of 4 or 8 bytes in a row");
  const int64_t num_nodes = rows_between(indptr, table.num_rows), num_hot = hot.length();
  const int64_t* node = hot.data();
  for (int64_t i = 0; i < num_hot; ++i)
    need((i == 0 ? node[i] >= 0 : node[i] > node[i - 1]) && node[i] < num_nodes,
         "hot must be nodes in rising order");
  const int64_t* ptr = indptr.data();
  nb::gil_scoped_release release;
  new (self) NeighborLists(disk.reader, ptr, num_nodes, node, num_hot);
}

void read_lists(NeighborLists& self, const Indptr& indptr, const Indptr& nodes, const Indptr& ends,
                const Indptr& positions, const Array1<int64_t>& out) {
  const int64_t num_rows = nodes.length(), num_edges = positions.length();
  need(rows_between(indptr, self.num_edges()) == self.num_nodes(), "indptr must be that of the lists");
  need(rows_between(ends, num_edges) == num_rows, "ends must be those of the nodes' edges");
  need_length(out, num_edges);
  for (int64_t r = 0; r < num_rows; ++r) {
    const int64_t node = nodes.data()[r];
    need(node >= 0 && node < self.num_nodes(), "nodes must be nodes");
    need(ends.data()[r] <= ends.data()[r + 1], "ends must rise");
    for (int64_t e = ends.data()[r]; e < ends.data()[r + 1]; ++e)
      need(indptr.data()[node] <= positions.data()[e] && positions.data()[e] < indptr.data()[node + 1],
           "positions must be those of in-edges of their nodes");
  }
  nb::gil_scoped_release release;
  self.read(indptr.data(), {nodes.data(), ends.data(), num_rows, positions.data()}, out.data());
}

nb::tuple list_counts(NeighborLists& self) {
  const ListCounts counts = self.counts();
  return nb::make_tuple(counts.hot_lists, counts.hot_edges, counts.cold_lists, counts.cold_edges);
}

int64_t sum_of(const Array1<const uint8_t>& block) {
  return static_cast<int64_t>(xxh64(reinterpret_cast<const char*>(block.data()), block.length()));
}

}  // namespace

void bind_features(nb::module_& m) {
  using namespace nb::literals;
  def_native(m, "xxh64", &sum_of, "block"_a);

  nb::class_<PyReader> reader(m, "RowReader");
  nb::class_<PyBrought, PyReader> brought(m, "BroughtRows");
  def_init(brought, &init_brought, "num_rows"_a);

  nb::class_<PyDisk, PyReader> disk(m, "DiskRows");
  def_init(disk, &init_disk, "path"_a, "first_byte"_a, "num_rows"_a, "row_bytes"_a, "sums"_a, "uring"_a,
           "direct"_a, "depth"_a, "longest"_a, "gap"_a);
  disk.def("read", with_names(&read_rows, "ids"_a, "out"_a), "ids"_a, "out"_a)
      .def("counts", &disk_counts)
      .def("how", &how_read)
      .def("buffer_bytes", [](PyDisk& self) { return self.reader.buffer_bytes(); });

  nb::class_<PyCache> cache(m, "RowCache");
  def_init(cache, &init_cache, nb::keep_alive<1, 2>(), "disk"_a, "capacity"_a, "policy"_a, "ranks"_a);
  cache.def("fill", with_names(&fill_cache, "ids"_a), "ids"_a)
      .def("announce", with_names(&announce_batch, "ids"_a), "ids"_a)
      .def(
          "forget", [](PyCache& self) { self.cache.forget(); }, nb::call_guard<nb::gil_scoped_release>())
      .def("gather", with_names(&gather_cached, "ids"_a, "out"_a, "batch"_a), "ids"_a, "out"_a, "batch"_a)
      .def("decide", with_names(&decide_cached, "ids"_a, "batch"_a, "slots"_a, "fills"_a), "ids"_a, "batch"_a,
           "slots"_a, "fills"_a)
      .def("counts", &cache_counts)
      .def("overhead_bytes", [](PyCache& self) { return self.cache.overhead_bytes(); });

  nb::class_<NeighborLists> lists(m, "NeighborLists");
  def_init(lists, &init_lists, nb::keep_alive<1, 2>(), "disk"_a, "indptr"_a, "hot"_a);
  lists
      .def("read", with_names(&read_lists, "indptr"_a, "nodes"_a, "ends"_a, "positions"_a, "out"_a),
           "indptr"_a, "nodes"_a, "ends"_a, "positions"_a, "out"_a)
      .def("counts", &list_counts)
      .def("hot_edges", &NeighborLists::hot_edges)
      .def("overhead_bytes", &NeighborLists::overhead_bytes);
}

}  // namespace gb
