#include "pipeline/typed_bindings.h"

#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>
#include <string>

namespace gb {
namespace {

constexpr int64_t kMostFanout = std::numeric_limits<int32_t>::max();
constexpr int64_t kMostNodes = int64_t{1} << 40;  // a draw's key has room for so many
constexpr int64_t kMostRelations = int64_t{1} << 16;

// Where the rows of each relation stand: type by type and node by node, one row for each relation into the
// node. Until the types' first rows are known, first_row counts the earlier relations into its type. Returns
// the number of rows.
int64_t place_relations(TypedGraph& graph) {
  std::vector<int64_t> stride(graph.num_nodes.size(), 0), first_row, first_source;
  for (TypedRelation& relation : graph.relations) relation.first_row = stride[relation.destination]++;
  int64_t rows = 0, nodes = 0;
  for (size_t type = 0; type < graph.num_nodes.size(); ++type) {
    first_row.push_back(rows);
    first_source.push_back(nodes);
    rows += graph.num_nodes[type] * stride[type];
    nodes += graph.num_nodes[type];
  }
  for (TypedRelation& relation : graph.relations) {
    relation.first_row += first_row[relation.destination];
    relation.stride = stride[relation.destination];
    relation.first_source = first_source[relation.source];
  }
  return rows;
}

void init_types(PyTypes* self, const Indptr& indptr, const std::vector<int64_t>& num_nodes,
                const std::vector<std::vector<int64_t>>& relations,
                const std::vector<std::vector<int64_t>>& fanouts, std::optional<int64_t> seed_type,
                const std::vector<int64_t>& untimed, const std::vector<std::vector<int64_t>>& num_samples) {
  new (self) PyTypes(indptr, num_nodes, relations, fanouts, seed_type, untimed, num_samples);
}

void gather(PyTypes& self, int64_t type, const Array<const Anything, 2>& x) { self.gather(type, x); }

}  // namespace

PyTypes::PyTypes(const Indptr& indptr, const std::vector<int64_t>& num_nodes,
                 const std::vector<std::vector<int64_t>>& relations,
                 const std::vector<std::vector<int64_t>>& fanouts, std::optional<int64_t> seed_type,
                 const std::vector<int64_t>& untimed, const std::vector<std::vector<int64_t>>& num_samples)
    : indptr_(indptr), rows_(num_nodes.size()) {
  const int64_t num_types = static_cast<int64_t>(num_nodes.size());
  if (seed_type) need_count(*seed_type, 0, num_types - 1, "seed_type");
  need_count(static_cast<int64_t>(relations.size()), 0, kMostRelations, "the number of relations");
  need(fanouts.size() == relations.size(), "fanouts must be those of each relation");
  for (const int64_t count : num_nodes) need_count(count, 0, kMostNodes, "a number of nodes");
  graph_.num_nodes = num_nodes;
  for (int64_t first = 0; const int64_t count : num_nodes) {
    graph_.first_ids.push_back(first);
    first += count;
  }
  if (seed_type) graph_.seed_type = static_cast<size_t>(*seed_type);
  graph_.features.resize(num_nodes.size());
  for (size_t number = 0; number < relations.size(); ++number) {
    need(relations[number].size() == 2, "a relation is a pair of types");
    for (const int64_t type : relations[number]) need_count(type, 0, num_types - 1, "a type");
    for (const int64_t fanout : fanouts[number]) need_count(fanout, -1, kMostFanout, "a fanout");
    TypedRelation relation;
    relation.number = number;
    relation.source = static_cast<size_t>(relations[number][0]);
    relation.destination = static_cast<size_t>(relations[number][1]);
    relation.fanouts = fanouts[number];
    relation.timed = std::find(untimed.begin(), untimed.end(), static_cast<int64_t>(number)) == untimed.end();
    graph_.relations.push_back(std::move(relation));
  }
  need(num_samples.empty() || (num_samples.size() == num_nodes.size() && seed_type),
       "num_samples must be those of each type, for seeds of one type");
  if (!num_samples.empty())  // draws by budget have keys after those of relations
    need_count(static_cast<int64_t>(relations.size() + num_nodes.size()), 0, kMostRelations, "their sum");
  for (const std::vector<int64_t>& counts : num_samples)
    for (const int64_t count : counts) need_count(count, 0, kMostFanout, "a number of samples");
  graph_.num_samples = num_samples;
  graph_.indptr = indptr_.data();
  graph_.num_rows = place_relations(graph_);
  need_length(indptr_, graph_.num_rows + 1);
}

void PyTypes::gather(int64_t type, const Array<const Anything, 2>& x) {
  need_count(type, 0, static_cast<int64_t>(rows_.size()) - 1, "type");
  const size_t place = static_cast<size_t>(type);
  need_length(x, graph_.num_nodes[place]);
  rows_[place] = x;
  graph_.features[place] = {static_cast<const char*>(x.data()), x.num_columns() * x.element_bytes()};
}

int64_t PyTypes::num_nodes() const {
  int64_t sum = 0;
  for (const int64_t count : graph_.num_nodes) sum += count;
  return sum;
}

int64_t PyTypes::most_nodes() const {
  int64_t most = 0;
  for (const int64_t count : graph_.num_nodes) most = std::max(most, count);
  return most;
}

void PyTypes::check(int64_t num_edges, size_t num_hops) const {
  rows_between(indptr_, num_edges);
  for (const TypedRelation& relation : graph_.relations)
    need(relation.fanouts.size() == num_hops, "each relation needs a fanout per hop");
  for (const std::vector<int64_t>& counts : graph_.num_samples)
    need(counts.size() == num_hops, "each type needs a number of samples per hop");
}

void bind_types(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<PyTypes> types(m, "Types");
  def_init(types, &init_types, "indptr"_a, "num_nodes"_a, "relations"_a, "fanouts"_a, "seed_type"_a.none(),
           "untimed"_a = std::vector<int64_t>(), "num_samples"_a = std::vector<std::vector<int64_t>>());
  types.def("gather", with_names(&gather, "type"_a, "x"_a), "type"_a, "x"_a);
}

}  // namespace gb
