// Python's view of the sampler: Pipeline, Run, and the counter RNG for tests.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <limits>
#include <memory>
#include <utility>

#include "arrays.h"
#include "gather.h"
#include "parallel.h"
#include "pipeline.h"
#include "rng.h"
#include "threads.h"
#include "topology.h"

namespace gb {
namespace {

constexpr int64_t kMostFanout = std::numeric_limits<int32_t>::max();

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
        pipeline_(
            std::make_unique<Pipeline>(graph(), std::move(config), features(), num_threads, depth, refill)) {}
  ~PyPipeline() {
    // Its threads stayed in the parent: nobody would wake what waits for them.
    if (is_forked()) static_cast<void>(pipeline_.release());
  }
  PyPipeline(const PyPipeline&) = delete;
  // Throws in a forked process.
  Pipeline& pipeline() const {
    if (is_forked())
      throw ThreadsRefused(
          "these batches were begun in the process that was forked, where their threads stayed; iterate "
          "anew");
    return *pipeline_;
  }
  bool is_forked() const { return getpid() != process_; }
  const Inputs& inputs() const { return inputs_; }

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
  const pid_t process_ = getpid();
  std::unique_ptr<Pipeline> pipeline_;
};

// What the threads read by index must be there; the values of indptr and indices were seen when the graph was
// made.
void check_inputs(const Inputs& inputs, const SampleConfig& config) {
  const nb::dlpack::dtype ids = inputs.indices.dtype();
  need(inputs.indices.ndim() == 1 && ids.code == static_cast<uint8_t>(nb::dlpack::dtype_code::Int) &&
           (ids.bits == 32 || ids.bits == 64),
       "indices must be 1-d int32 or int64");
  const int64_t num_edges = static_cast<int64_t>(inputs.indices.shape(0));
  const int64_t num_nodes = rows_between(inputs.indptr, num_edges);
  need_length(inputs.weight, num_edges, "weight");
  if (inputs.x) {
    need(inputs.x->ndim() == 2, "x must be a matrix");
    need_length(*inputs.x, num_nodes, "x");
  }
  need(!config.fanouts.empty(), "fanouts must name a hop");
  for (const int64_t fanout : config.fanouts) need_count(fanout, -1, kMostFanout, "a fanout");
}

class PyRun {
 public:
  PyRun(PyPipeline& owner, Array1<const int64_t> seeds, const Schedule& schedule, int64_t first_step,
        int64_t last_step)
      : owner(owner),
        seeds(seeds),
        run(std::make_unique<Run>(owner.pipeline(), schedule, first_step, last_step)) {}
  ~PyRun() {
    if (owner.is_forked()) {  // nobody builds the batches that it would wait for
      static_cast<void>(run.release());
      return;
    }
    nb::gil_scoped_release release;  // waits for batches under way
    run.reset();
  }
  PyRun(const PyRun&) = delete;

  PyPipeline& owner;
  Array1<const int64_t> seeds;
  std::unique_ptr<Run> run;
};

// Steps that exist, and seeds that are nodes.
void check_run(const Inputs& inputs, const Array1<const int64_t>& seeds, int64_t batch_size,
               int64_t first_step, int64_t last_step) {
  const int64_t num_seeds = static_cast<int64_t>(seeds.shape(0));
  need_count(batch_size, 1, kMostItems, "batch_size");
  const int64_t num_steps = num_seeds / batch_size + (num_seeds % batch_size != 0);
  need_count(last_step, 0, num_steps, "last_step");
  need_count(first_step, 0, last_step, "first_step");
  const int64_t num_nodes = static_cast<int64_t>(inputs.indptr.shape(0)) - 1;
  const int64_t* nodes = seeds.data();
  int64_t outside;
  {
    nb::gil_scoped_release release;
    outside = first_where_fast(num_seeds, [=](int64_t i) {
      return static_cast<uint64_t>(nodes[i]) >= static_cast<uint64_t>(num_nodes);
    });
  }
  if (outside >= 0)
    refuse("seeds must be nodes in [0, " + std::to_string(num_nodes) + "); seeds[" + std::to_string(outside) +
           "] is " + std::to_string(nodes[outside]));
}

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
  self.owner.pipeline();  // throws in a forked process
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
  need_shape(out, static_cast<int64_t>(ids.shape(0)), row, "out");
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
          need_count(count, 0, int64_t{1} << 32, "count");
          std::vector<int64_t> out(static_cast<size_t>(count));
          const uint64_t key = row_key(batch_key(seed, epoch, step), hop, node);
          for (int64_t i = 0; i < count; ++i)
            out[static_cast<size_t>(i)] = draw(key, static_cast<uint64_t>(i));
          return as_tensor(std::move(out));
        });
  m.def("permuted", [](int64_t n, uint64_t key, int64_t begin, int64_t end) {
    need_count(n, 0, kMostItems, "n");
    need_count(end, 0, n, "end");
    need_count(begin, 0, end, "begin");
    const KeyedPermutation permutation(static_cast<uint64_t>(n), key);
    std::vector<int64_t> out;
    for (int64_t i = begin; i < end; ++i)
      out.push_back(static_cast<int64_t>(permutation(static_cast<uint64_t>(i))));
    return as_tensor(std::move(out));
  });
  m.def("gather_rows", &gather, array_arg("table"), array_arg("ids"), array_arg("out"));

  nb::class_<PyPipeline>(m, "Pipeline")
      .def(
          "__init__",
          [](PyPipeline* self, Array1<const int64_t> indptr, AnyArray indices,
             std::optional<Array1<const float>> weight, std::optional<AnyArray> x,
             std::vector<int64_t> fanouts, bool replace, bool blocks, bool keep_edges, int num_threads,
             int depth, int refill) {
            Inputs inputs{indptr, indices, weight, x};
            SampleConfig config{std::move(fanouts), replace, blocks, keep_edges};
            check_inputs(inputs, config);
            need_count(num_threads, 1, kMostThreads, "num_threads");
            need_count(depth, 1, std::numeric_limits<int>::max() - 2, "depth");
            need_count(refill, 0, depth, "refill");
            new (self) PyPipeline(std::move(inputs), std::move(config), num_threads, depth, refill);
          },
          array_arg("indptr"), array_arg("indices"), array_arg("weight").none(), array_arg("x").none(),
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
            check_run(owner.inputs(), seeds, batch_size, first_step, last_step);
            const Schedule schedule{
                seeds.data(), static_cast<int64_t>(seeds.shape(0)), batch_size, shuffle, seed, epoch};
            new (self) PyRun(owner, seeds, schedule, first_step, last_step);
          },
          nb::keep_alive<1, 2>(), nb::arg("pipeline"), array_arg("seeds"), nb::arg("batch_size"),
          nb::arg("shuffle"), nb::arg("seed"), nb::arg("epoch"), nb::arg("first_step"), nb::arg("last_step"))
      .def("next", &next_batch);
}

}  // namespace gb
