// Python's view of the sampler: Pipeline, Run, and the counter RNG for tests.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays.h"
#include "gather.h"
#include "parallel.h"
#include "pipeline.h"
#include "rng.h"

namespace gb {
namespace {

using Tensor = nb::ndarray<nb::pytorch>;

// The arrays a pipeline reads, kept alive with it.
struct Inputs {
  Array1<const int64_t> indptr;
  AnyArray indices;
  std::optional<Array1<const float>> weight;
  std::optional<AnyArray> x;
};

class PyPipeline {
 public:
  PyPipeline(Inputs inputs, SampleConfig config, int num_threads, int depth, int refill)
      : inputs_(std::move(inputs)),
        pipeline_(graph(), std::move(config), features(), num_threads, depth, refill) {}
  Pipeline& pipeline() { return pipeline_; }
  const Inputs& inputs() const { return inputs_; }
  const Pipeline& pipeline() const { return pipeline_; }

 private:
  SampleGraph graph() const {
    SampleGraph graph;
    graph.indptr = inputs_.indptr.data();
    graph.indices = inputs_.indices.data();
    graph.weight = inputs_.weight ? inputs_.weight->data() : nullptr;
    graph.num_nodes = static_cast<int64_t>(inputs_.indptr.shape(0)) - 1;
    graph.num_edges = static_cast<int64_t>(inputs_.indices.shape(0));
    graph.wide = inputs_.indices.itemsize() == 8;
    return graph;
  }
  FeatureRows features() const {
    if (!inputs_.x) return {};
    const int64_t columns = static_cast<int64_t>(inputs_.x->shape(1));
    return {static_cast<const char*>(inputs_.x->data()),
            columns * static_cast<int64_t>(inputs_.x->itemsize())};
  }

  Inputs inputs_;
  Pipeline pipeline_;
};

class PyRun {
 public:
  PyRun(PyPipeline& owner, Array1<const int64_t> seeds, const Schedule& schedule, int64_t first_step,
        int64_t last_step)
      : owner(owner), seeds(seeds), run(std::in_place, owner.pipeline(), schedule, first_step, last_step) {}
  ~PyRun() {
    nb::gil_scoped_release release;  // waits for batches under way
    run.reset();
  }

  PyPipeline& owner;
  Array1<const int64_t> seeds;
  std::optional<Run> run;
};

// Tensors over a batch's memory; the memory goes back to the pool when the last of them is gone.
class Exporter {
 public:
  explicit Exporter(const std::shared_ptr<Batch>& batch)
      : owner_(new std::shared_ptr<Batch>(batch),
               [](void* p) noexcept { delete static_cast<std::shared_ptr<Batch>*>(p); }) {}

  template <typename T>
  nb::object vector(T* data, int64_t size) const {
    return nb::cast(nb::ndarray<nb::pytorch, T, nb::ndim<1>>(data, {static_cast<size_t>(size)}, owner_));
  }
  nb::object matrix(void* data, int64_t rows, int64_t columns, nb::dlpack::dtype dtype) const {
    const size_t shape[2] = {static_cast<size_t>(rows), static_cast<size_t>(columns)};
    return nb::cast(Tensor(data, 2, shape, owner_, nullptr, dtype));
  }

 private:
  nb::capsule owner_;
};

nb::tuple export_batch(const PyPipeline& owner, const std::shared_ptr<Batch>& batch) {
  SampledBatch& sampled = batch->sampled;
  const Exporter tensors(batch);
  nb::list adjacencies;
  for (Adjacency& adjacency : sampled.adjacencies) {
    nb::object edges = nb::none();
    if (owner.pipeline().config().keep_edges)
      edges = tensors.vector(adjacency.edges.data(), adjacency.num_edges);
    adjacencies.append(nb::make_tuple(tensors.vector(adjacency.indptr.data(), adjacency.num_rows + 1),
                                      tensors.vector(adjacency.indices.data(), adjacency.num_edges), edges));
  }
  nb::object x = nb::none();
  if (const auto& source = owner.inputs().x)
    x = tensors.matrix(batch->x.data(), sampled.num_nodes, static_cast<int64_t>(source->shape(1)),
                       source->dtype());
  return nb::make_tuple(batch->step, tensors.vector(sampled.n_id.data(), sampled.num_nodes),
                        tensors.vector(batch->input_id.data(), sampled.num_seeds), adjacencies,
                        sampled.nodes_per_hop, sampled.edges_per_hop, x);
}

// Waits in slices, so that Ctrl-C is seen while the threads work.
nb::object next_batch(PyRun& self) {
  for (;;) {
    std::optional<std::shared_ptr<Batch>> batch;
    {
      nb::gil_scoped_release release;
      batch = self.run->next(0.1);
    }
    if (batch) return *batch ? nb::object(export_batch(self.owner, *batch)) : nb::none();
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }
}

nb::object gather(Array2<const uint8_t> table, Array1<const int64_t> ids,
                  nb::ndarray<uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu> out) {
  const int64_t row = static_cast<int64_t>(table.shape(1));
  nb::gil_scoped_release release;
  parallel_static(static_cast<int64_t>(ids.shape(0)), 256, [&](int64_t begin, int64_t end) {
    gather_rows(reinterpret_cast<const char*>(table.data()), row, ids.data() + begin, end - begin,
                reinterpret_cast<char*>(out.data()) + begin * row);
  });
  return nb::none();
}

}  // namespace

void bind_sampling(nb::module_& m) {
  m.def("mix", &mix);
  m.def("draws",
        [](uint64_t seed, uint64_t epoch, uint64_t step, uint64_t hop, uint64_t node, int64_t count) {
          std::vector<int64_t> out(static_cast<size_t>(count));
          const uint64_t key = row_key(batch_key(seed, epoch, step), hop, node);
          for (int64_t i = 0; i < count; ++i)
            out[static_cast<size_t>(i)] = draw(key, static_cast<uint64_t>(i));
          return as_tensor(std::move(out));
        });
  m.def("permuted", [](int64_t n, uint64_t key, int64_t begin, int64_t end) {
    const KeyedPermutation permutation(static_cast<uint64_t>(n), key);
    std::vector<int64_t> out;
    for (int64_t i = begin; i < end; ++i)
      out.push_back(static_cast<int64_t>(permutation(static_cast<uint64_t>(i))));
    return as_tensor(std::move(out));
  });
  m.def("gather_rows", &gather, nb::arg("table"), nb::arg("ids"), nb::arg("out"));

  nb::class_<PyPipeline>(m, "Pipeline")
      .def(
          "__init__",
          [](PyPipeline* self, Array1<const int64_t> indptr, AnyArray indices,
             std::optional<Array1<const float>> weight, std::optional<AnyArray> x,
             std::vector<int64_t> fanouts, bool replace, bool blocks, bool keep_edges, int num_threads,
             int depth, int refill) {
            new (self) PyPipeline(Inputs{indptr, indices, weight, x},
                                  SampleConfig{std::move(fanouts), replace, blocks, keep_edges}, num_threads,
                                  depth, refill);
          },
          nb::arg("indptr"), nb::arg("indices"), nb::arg("weight").none(), nb::arg("x").none(),
          nb::arg("fanouts"), nb::arg("replace"), nb::arg("blocks"), nb::arg("keep_edges"),
          nb::arg("num_threads"), nb::arg("depth"), nb::arg("refill"))
      .def("busy_threads", [](PyPipeline& self) { return self.pipeline().busy_threads(); })
      .def("stage_seconds", [](PyPipeline& self) {
        const StageSeconds seconds = self.pipeline().stage_seconds();
        return nb::make_tuple(seconds.sample, seconds.gather, seconds.batches);
      });

  nb::class_<PyRun>(m, "Run")
      .def(
          "__init__",
          [](PyRun* self, PyPipeline& owner, Array1<const int64_t> seeds, int64_t batch_size, bool shuffle,
             uint64_t seed, uint64_t epoch, int64_t first_step, int64_t last_step) {
            const Schedule schedule{
                seeds.data(), static_cast<int64_t>(seeds.shape(0)), batch_size, shuffle, seed, epoch};
            new (self) PyRun(owner, seeds, schedule, first_step, last_step);
          },
          nb::keep_alive<1, 2>(), nb::arg("pipeline"), nb::arg("seeds"), nb::arg("batch_size"),
          nb::arg("shuffle"), nb::arg("seed"), nb::arg("epoch"), nb::arg("first_step"), nb::arg("last_step"))
      .def("next", &next_batch);
}

}  // namespace gb
