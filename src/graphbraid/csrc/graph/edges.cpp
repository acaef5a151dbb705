// Rewriting adjacency lists row by row: symmetrise, remove duplicates, add or remove self-loops.
//
// Each is a function that hands a row's new edges to a sink. It runs twice. The first sink counts, which
// gives the new indptr and the exact sizes to allocate. The second sink writes.
// Bound by memory bandwidth, not by instructions: no variants. One thread does a row, so results do not
// depend on the number of threads.
#include <algorithm>
#include <optional>

#include "arguments/binding.h"
#include "base/hugepages.h"
#include "threads/parallel.h"

namespace gb {
namespace {

constexpr int64_t kRowsPerTask = 1024;  // small enough that the rows of hubs spread over the threads

// An adjacency to rewrite, and the arrays for the result. The first call gets out_indptr alone and fills it.
// The second also gets arrays of the sizes in it, and writes these.
struct Rewrite {
  const Indptr& indptr;
  const Ids& indices;
  const std::optional<Array1<const float>>& weight;
  const OptionalIds& edge_id;
  const Array1<int64_t>& out_indptr;
  const std::optional<Array1<Id>>& out_indices;
  const std::optional<Array1<float>>& out_weight;
  const std::optional<Array1<int64_t>>& out_id;

  // Checks that the arrays fit each other; returns the number of rows.
  int64_t num_rows() const {
    const int64_t num_edges = indices.length(), rows = rows_between(indptr, num_edges);
    need_length(weight, num_edges);
    if (edge_id && edge_id->length() != 0) need_length(edge_id, num_edges);
    need_length(out_indptr, rows + 1);
    if (!out_indices) {
      need(!out_weight && !out_id, "out_weight and out_id need out_indices");
      return rows;
    }
    need_dtype_of(*out_indices, indices);
    const int64_t num_kept = out_indices->length();
    rows_between(out_indptr, num_kept);
    need_length(out_weight, num_kept);
    need_length(out_id, num_kept);
    return rows;
  }
};

// The way to combine the weights of edges that become one.
enum class Reduce : int { kSum = 0, kMean = 1, kMax = 2, kFirst = 3 };

class CountingSink {
 public:
  explicit CountingSink(int64_t) {}
  void emit(int64_t, int64_t, float) { ++count_; }
  int64_t count() const { return count_; }

 private:
  int64_t count_ = 0;
};

// The arrays that a rewrite writes. weight and id may be null. id gets, for each edge, the edge_id of the
// edge that it came from, or that edge's position if edge_id is null; -1 for a new edge.
template <typename Node>
struct Edges {
  Node* indices;
  float* weight;
  int64_t* id;
  const int64_t* edge_id;
};

template <typename Node>
class WritingSink {
 public:
  WritingSink(const Edges<Node>& out, int64_t place) : out_(out), place_(place) {}
  void emit(int64_t source, int64_t origin, float weight) {
    out_.indices[place_] = static_cast<Node>(source);
    if (out_.weight != nullptr) out_.weight[place_] = weight;
    if (out_.id != nullptr)
      out_.id[place_] = origin < 0 || out_.edge_id == nullptr ? origin : out_.edge_id[origin];
    ++place_;
  }

 private:
  const Edges<Node>& out_;
  int64_t place_;
};

// Runs row(v, sink) for each row. If out.indices is null, it counts edges into indptr; else it writes them to
// the places that indptr gives.
template <typename Node, typename Row>
void rewrite_rows(int64_t num_rows, int64_t* indptr, const Edges<Node>& out, const Row& row) {
  if (out.indices != nullptr) {
    use_huge_pages(out.indices, indptr[num_rows]);
    use_huge_pages(out.weight, out.weight != nullptr ? indptr[num_rows] : 0);
    use_huge_pages(out.id, out.id != nullptr ? indptr[num_rows] : 0);
    parallel_dynamic(num_rows, kRowsPerTask, [&](int64_t begin, int64_t end) {
      WritingSink<Node> sink(out, indptr[begin]);
      for (int64_t v = begin; v < end; ++v) row(v, sink);
    });
    return;
  }
  parallel_dynamic(num_rows, kRowsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t v = begin; v < end; ++v) {
      CountingSink sink(v);
      row(v, sink);
      indptr[v + 1] = sink.count();
    }
  });
  indptr[0] = 0;
  for (int64_t v = 0; v < num_rows; ++v) indptr[v + 1] += indptr[v];
}

// Rewrites by row(sources)(v, sink), with the sources in their own dtype.
template <typename MakeRow>
void run(const Rewrite& rewrite, const MakeRow& make_row) {
  const int64_t num_rows = rewrite.num_rows();
  nb::gil_scoped_release release;
  with_ids(rewrite.indices, [&]<typename Node>(const Node* source) {
    const Edges<Node> out{static_cast<Node*>(data_or_null(rewrite.out_indices)),
                          data_or_null(rewrite.out_weight), data_or_null(rewrite.out_id),
                          data_or_null(rewrite.edge_id)};
    rewrite_rows(num_rows, rewrite.out_indptr.data(), out, make_row(source));
  });
}

// Combines the weights of a run of equal edges; sums are in double.
class Weights {
 public:
  explicit Weights(Reduce how) : how_(how) {}
  void add(float weight) {
    max_ = count_ == 0 ? weight : std::max(max_, weight);
    if (count_++ == 0) first_ = weight;
    sum_ += weight;
  }
  // Combines two runs. Their order matters to kFirst alone.
  static float combine(const Weights& a, const Weights& b) {
    const double sum = a.sum_ + b.sum_;
    switch (a.how_) {
      case Reduce::kSum:
        return static_cast<float>(sum);
      case Reduce::kMean:
        return static_cast<float>(sum / static_cast<double>(a.count_ + b.count_));
      case Reduce::kMax:
        return a.count_ == 0 ? b.max_ : b.count_ == 0 ? a.max_ : std::max(a.max_, b.max_);
      default:
        return a.count_ != 0 ? a.first_ : b.first_;
    }
  }

 private:
  Reduce how_;
  int64_t count_ = 0;
  double sum_ = 0;
  float max_ = 0, first_ = 0;
};

// Checks that a transpose, if there is one, fits the adjacency.
void need_back(const Rewrite& rewrite, const OptionalIds& back_indptr, const std::optional<Ids>& back_indices,
               const std::optional<Ids>& back_perm) {
  const int64_t num_edges = rewrite.indices.length();
  need(back_indptr.has_value() == back_indices.has_value(), "back_indptr and back_indices go together");
  need_length(back_perm, num_edges);
  if (!back_indptr) return;
  need(!rewrite.weight || back_perm, "weights of both directions need back_perm");
  need_length(back_indptr, rewrite.indptr.length());
  need_length(back_indices, num_edges);
  need_dtype_of(*back_indices, rewrite.indices);
  rows_between(*back_indptr, num_edges);
}

// Merges row v of two adjacencies, equal sources becoming one edge.
//
// indptr, indices, weight      rows in rising order of source; weight may be None
// back_indptr, back_indices    the transpose, or None: then only duplicates are removed
// back_perm (num_edges,)       where each edge of the transpose stands in `indices`; None if neither weights
//                              nor origins are asked for
// A self-loop is its own transpose. So the self-loops of the transpose are left out: each counts once.
void merge_rows(const Indptr& indptr, const Ids& indices, const std::optional<Array1<const float>>& weight,
                const OptionalIds& edge_id, const OptionalIds& back_indptr,
                const std::optional<Ids>& back_indices, const std::optional<Ids>& back_perm, int reduce,
                const Array1<int64_t>& out_indptr, const std::optional<Array1<Id>>& out_indices,
                const std::optional<Array1<float>>& out_weight,
                const std::optional<Array1<int64_t>>& out_id) {
  const Rewrite rewrite{indptr, indices, weight, edge_id, out_indptr, out_indices, out_weight, out_id};
  need_back(rewrite, back_indptr, back_indices, back_perm);
  need_count(reduce, 0, static_cast<int>(Reduce::kFirst), "reduce");
  const int64_t *ptr = indptr.data(), *back_ptr = data_or_null(back_indptr);
  const AnyIds perm = back_perm ? any_ids(*back_perm) : AnyIds{};
  const float* w = data_or_null(weight);
  const void* back_data = data_or_null(back_indices);
  run(rewrite, [=]<typename Node>(const Node* source) {
    const Node* back = static_cast<const Node*>(back_data);
    return [=](int64_t v, auto& sink) {
      int64_t i = ptr[v], j = back_ptr != nullptr ? back_ptr[v] : 0;
      const int64_t i_end = ptr[v + 1], j_end = back_ptr != nullptr ? back_ptr[v + 1] : 0;
      while (i < i_end || j < j_end) {
        const Node u = j >= j_end || (i < i_end && source[i] <= back[j]) ? source[i] : back[j];
        const bool forward = i < i_end && source[i] == u;
        const int64_t origin = forward ? i : perm ? perm[j] : -1;
        Weights a(static_cast<Reduce>(reduce)), b(static_cast<Reduce>(reduce));
        for (; i < i_end && source[i] == u; ++i)
          if (w != nullptr) a.add(w[i]);
        for (; j < j_end && back[j] == u; ++j)
          if (w != nullptr && u != v) b.add(w[perm[j]]);
        sink.emit(u, origin, w != nullptr ? Weights::combine(a, b) : 1.0f);
      }
    };
  });
}

// Writes the rows without their self-loops.
void drop_loops(const Indptr& indptr, const Ids& indices, const std::optional<Array1<const float>>& weight,
                const OptionalIds& edge_id, const Array1<int64_t>& out_indptr,
                const std::optional<Array1<Id>>& out_indices, const std::optional<Array1<float>>& out_weight,
                const std::optional<Array1<int64_t>>& out_id) {
  const int64_t* ptr = indptr.data();
  const float* w = data_or_null(weight);
  run({indptr, indices, weight, edge_id, out_indptr, out_indices, out_weight, out_id},
      [=](const auto* source) {
        return [=](int64_t v, auto& sink) {
          for (int64_t e = ptr[v]; e < ptr[v + 1]; ++e)
            if (source[e] != v) sink.emit(source[e], e, w != nullptr ? w[e] : 1.0f);
        };
      });
}

// Writes rows in rising order of source, each with a self-loop. If a row has none, one of weight loop_weight
// is put in its place.
void add_loops(const Indptr& indptr, const Ids& indices, const std::optional<Array1<const float>>& weight,
               const OptionalIds& edge_id, float loop_weight, const Array1<int64_t>& out_indptr,
               const std::optional<Array1<Id>>& out_indices, const std::optional<Array1<float>>& out_weight,
               const std::optional<Array1<int64_t>>& out_id) {
  const int64_t* ptr = indptr.data();
  const float* w = data_or_null(weight);
  run({indptr, indices, weight, edge_id, out_indptr, out_indices, out_weight, out_id},
      [=]<typename Node>(const Node* source) {
        return [=](int64_t v, auto& sink) {
          int64_t e = ptr[v];
          const auto copy_while = [&](auto&& take) {
            for (; e < ptr[v + 1] && take(source[e]); ++e)
              sink.emit(source[e], e, w != nullptr ? w[e] : 1.0f);
          };
          copy_while([=](Node u) { return u < v; });
          if (e == ptr[v + 1] || source[e] != v) sink.emit(v, -1, loop_weight);
          copy_while([](Node) { return true; });
        };
      });
}

}  // namespace

void bind_edges(nb::module_& m) {
  using namespace nb::literals;
  def_native(m, "merge_rows", &merge_rows, "indptr"_a, "indices"_a, "weight"_a, "edge_id"_a, "back_indptr"_a,
             "back_indices"_a, "back_perm"_a, "reduce"_a, "out_indptr"_a, "out_indices"_a, "out_weight"_a,
             "out_id"_a);
  def_native(m, "drop_loops", &drop_loops, "indptr"_a, "indices"_a, "weight"_a, "edge_id"_a, "out_indptr"_a,
             "out_indices"_a, "out_weight"_a, "out_id"_a);
  def_native(m, "add_loops", &add_loops, "indptr"_a, "indices"_a, "weight"_a, "edge_id"_a, "loop_weight"_a,
             "out_indptr"_a, "out_indices"_a, "out_weight"_a, "out_id"_a);
}

}  // namespace gb
