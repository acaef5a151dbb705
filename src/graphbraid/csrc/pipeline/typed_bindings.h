// Python's view of node types and relations, which a Pipeline of a typed graph gets beside its topology.
#pragma once

#include <optional>
#include <vector>

#include "arguments/binding.h"
#include "sampling/typed_sample.h"

namespace gb {

// A TypedGraph and the arrays that it points into, kept alive with it.
class PyTypes {
 public:
  // relations: type of the sources and of the destinations of each; fanouts: per relation and hop; seed_type:
  // of all seeds, or none where seeds are ids in the whole graph; untimed: numbers of the relations whose
  // edges have no times where others have; num_samples: nodes drawn by budget per type and hop, or none.
  PyTypes(const Indptr& indptr, const std::vector<int64_t>& num_nodes,
          const std::vector<std::vector<int64_t>>& relations,
          const std::vector<std::vector<int64_t>>& fanouts, std::optional<int64_t> seed_type,
          const std::vector<int64_t>& untimed, const std::vector<std::vector<int64_t>>& num_samples);
  PyTypes(const PyTypes&) = delete;

  // Lets pipelines made from now on gather the rows of a type.
  void gather(int64_t type, const Array<const Anything, 2>& x);
  const TypedGraph& graph() const { return graph_; }
  int64_t num_nodes() const;  // nodes of all types
  int64_t num_seed_nodes() const {
    return graph_.seed_type ? graph_.num_nodes[*graph_.seed_type] : num_nodes();
  }
  int64_t most_nodes() const;  // nodes of the largest type
  const std::vector<std::optional<Array<const Anything, 2>>>& rows() const { return rows_; }
  // Refuses rows with another number of edges, and fanouts with another number of hops.
  void check(int64_t num_edges, size_t num_hops) const;

 private:
  Indptr indptr_;
  TypedGraph graph_;
  std::vector<std::optional<Array<const Anything, 2>>> rows_;
};

void bind_types(nb::module_& m);

}  // namespace gb
