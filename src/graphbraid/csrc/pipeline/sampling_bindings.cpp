// Python's view of the sampler: Pipeline, Run, and the counter RNG for tests.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <tuple>
#include <utility>

#include "arguments/binding.h"
#include "base/rng.h"
#include "disk/neighbor_lists.h"
#include "gather/gather.h"
#include "graph/topology.h"
#include "pipeline/pipeline.h"
#include "pipeline/typed_bindings.h"
#include "threads/parallel.h"
#include "threads/threads.h"

namespace gb {
namespace {

constexpr int64_t kMostFanout = std::numeric_limits<int32_t>::max();

using Tensor = nb::ndarray<nb::pytorch>;

// The arrays a pipeline reads, kept alive with it.
struct Inputs {
  Indptr indptr;
  Ids indices;
  std::optional<Array1<const float>> weight;
  std::optional<Array<const Anything, 2>> x;
  NeighborLists* lists;  // kept alive by Python
  std::optional<Array1<const int64_t>> time;
  const PyTypes* types;  // kept alive by Python
};

class PyPipeline {
 public:
  PyPipeline(Inputs inputs, SampleConfig config, int num_threads, int depth, int refill)
      : inputs_(std::move(inputs)),
        pipeline_(
            std::make_unique<Pipeline>(graph(), std::move(config), features(), num_threads, depth, refill)) {}
  ~PyPipeline() {
    // The threads stayed in the parent process, so waiting for them here would never end.
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
    graph.weight = data_or_null(inputs_.weight);
    graph.num_nodes = inputs_.indptr.length() - 1;
    graph.num_edges = inputs_.indices.length();
    graph.wide = is_wide(inputs_.indices);
    graph.lists = inputs_.lists;
    graph.time = data_or_null(inputs_.time);
    if (inputs_.types != nullptr) graph.types = &inputs_.types->graph();
    return graph;
  }
  FeatureRows features() const {
    if (!inputs_.x) return {};
    return {static_cast<const char*>(inputs_.x->data()),
            inputs_.x->num_columns() * inputs_.x->element_bytes()};
  }

  Inputs inputs_;
  const pid_t process_ = getpid();
  std::unique_ptr<Pipeline> pipeline_;
};

// Arrays that the threads read by index must be long enough. The values of indptr and indices were checked
// when the graph was made.
void check_inputs(const Inputs& inputs, const SampleConfig& config) {
  const int64_t num_nodes = rows_between(inputs.indptr, inputs.indices.length());
  if (const PyTypes* types = inputs.types) {
    need(types->num_nodes() == num_nodes && !inputs.x && inputs.lists == nullptr,
         "types must be those of indptr; with types, x and lists must be None");
    types->check(inputs.indices.length(), config.fanouts.size());
  }
  need_length(inputs.weight, inputs.indices.length());
  need_length(inputs.x, num_nodes);
  need_length(inputs.time, inputs.indices.length());
  if (const NeighborLists* lists = inputs.lists)
    need(lists->num_nodes() == num_nodes && lists->num_edges() == inputs.indices.length() &&
             lists->wide() == is_wide(inputs.indices),
         "lists must be those of indptr and indices");
  need(!config.blocks || !config.fanouts.empty(), "layout blocks needs a hop");
  for (const int64_t fanout : config.fanouts) need_count(fanout, -1, kMostFanout, "a fanout");
}

// The arrays of a run that is constrained or a share, kept alive with it.
struct Limits {
  bool disjoint = false;
  std::optional<Array1<const int64_t>> times, excluded, own;
  std::optional<int64_t> reach;

  std::optional<ShareOf> share() const {
    if (!reach) return std::nullopt;
    return ShareOf{*reach, data_or_null(own), own ? own->length() : 0};
  }

  std::optional<SampleConstraints> constraints() const {
    if (!disjoint && !times && !excluded) return std::nullopt;
    return SampleConstraints{disjoint, data_or_null(times), data_or_null(excluded),
                             excluded ? excluded->length() : 0};
  }
};

class PyRun {
 public:
  PyRun(PyPipeline& owner, const Indptr& seeds, Limits limits, const Schedule& schedule, int64_t first_step,
        int64_t last_step)
      : owner(owner),
        seeds(seeds),
        limits(std::move(limits)),
        run(std::make_unique<Run>(owner.pipeline(), schedule, first_step, last_step,
                                  this->limits.constraints(), this->limits.share())) {}
  ~PyRun() {
    if (owner.is_forked()) {  // no thread builds the batches that it would wait for
      static_cast<void>(run.release());
      return;
    }
    nb::gil_scoped_release release;  // waits for batches under way
    run.reset();
  }
  PyRun(const PyRun&) = delete;

  PyPipeline& owner;
  Indptr seeds;
  Limits limits;
  std::unique_ptr<Run> run;
};

constexpr int64_t kMostParts = 1 << 16;

// The number of steps in which a part has seeds. It may have none in a last step of few seeds.
int64_t steps_of_part(const Schedule& schedule) {
  const int64_t rest = schedule.num_seeds % schedule.batch_size;
  const int64_t num_steps = schedule.num_seeds / schedule.batch_size + (rest != 0);
  return num_steps - (rest != 0 && schedule.batch_count(num_steps - 1) == 0);
}

// Steps that exist and have seeds, and seeds that are nodes.
void check_run(const Inputs& inputs, const Indptr& seeds, const Schedule& schedule, int64_t first_step,
               int64_t last_step) {
  const int64_t num_seeds = seeds.length();
  need_count(schedule.batch_size, 1, kMostItems, "batch_size");
  need_count(schedule.num_parts, 1, std::min(schedule.batch_size, kMostParts), "num_parts");
  need_count(schedule.part, 0, schedule.num_parts - 1, "part");
  const int64_t num_steps = steps_of_part(schedule);
  need_count(last_step, 0, num_steps, "last_step");
  need_count(first_step, 0, last_step, "first_step");
  const int64_t num_nodes =
      inputs.types != nullptr ? inputs.types->num_seed_nodes() : inputs.indptr.length() - 1;
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

constexpr int64_t kMostReach = 1 << 10;

// A share is cut from edges that are drawn by fanouts, in layout `subgraph`. Own seeds are seeds of one step.
void check_share(const SampleConfig& config, const Inputs& inputs, const Limits& limits, int64_t num_seeds,
                 int64_t num_steps) {
  need(limits.reach || !limits.own, "own seeds need a reach");
  if (!limits.reach) return;
  need_count(*limits.reach, 1, kMostReach, "reach");
  need(!config.blocks && (inputs.types == nullptr || inputs.types->graph().num_samples.empty()),
       "a share is cut from edges that are drawn by fanouts, in layout subgraph");
  if (!limits.own) return;
  need(num_steps <= 1, "a run whose share names seeds has one step");
  int64_t before = -1;
  for (int64_t i = 0; i < limits.own->length(); before = limits.own->data()[i++])
    need(limits.own->data()[i] > before && limits.own->data()[i] < num_seeds,
         "own must be positions of seeds, rising");
}

// Constraints name the seeds of one batch, so the run has one step. Excluded edges must exist and rise.
void check_limits(const Inputs& inputs, const Limits& limits, int64_t num_seeds, int64_t num_steps) {
  if (!limits.constraints()) return;
  const int64_t num_edges = inputs.indices.length();
  const int64_t num_nodes = inputs.types != nullptr ? inputs.types->most_nodes() : inputs.indptr.length() - 1;
  need(num_steps <= 1, "a run that is constrained has one step");
  need(!limits.disjoint || num_seeds <= kMostItems / std::max<int64_t>(num_nodes, 1),
       "the trees of so many seeds have more nodes than can be numbered");
  need(!limits.times || (limits.disjoint && inputs.time), "times need disjoint trees, and the edges' time");
  need_length(limits.times, num_seeds);
  if (!limits.excluded) return;
  const int64_t* excluded = limits.excluded->data();
  int64_t before = -1;
  for (int64_t i = 0; i < limits.excluded->length(); before = excluded[i++])
    need(excluded[i] > before && excluded[i] < num_edges, "excluded must be positions of edges, rising");
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

// Ids, rows and trees by type, where nodes have types.
std::tuple<nb::object, nb::object, nb::object> export_by_type(const PyTypes& types, Batch& batch,
                                                              const Exporter& tensors) {
  nb::list ids, rows, trees;
  for (size_t type = 0; type < batch.sampled.by_type.size(); ++type) {
    NodeIds& nodes = batch.sampled.by_type[type];
    ids.append(tensors.vector(nodes.ids.data(), nodes.count));
    if (batch.sampled.disjoint) trees.append(tensors.vector(nodes.trees.data(), nodes.count));
    nb::object x = nb::none();
    if (const auto& source = types.rows()[type])
      x = tensors.matrix(batch.x_by_type[type].data(), nodes.count, source->num_columns(), source->element());
    rows.append(x);
  }
  return {ids, rows, batch.sampled.disjoint ? nb::object(trees) : nb::none()};
}

nb::tuple export_batch(const PyPipeline& owner, const std::shared_ptr<Batch>& batch) {
  SampledBatch& sampled = batch->sampled;
  const Exporter tensors(batch);
  nb::list adjacencies;
  for (SampledEdges& adjacency : sampled.adjacencies) {
    nb::object edges = nb::none();
    if (owner.pipeline().config().keep_edges)
      edges = tensors.vector(adjacency.edges.data(), adjacency.num_edges);
    adjacencies.append(nb::make_tuple(tensors.vector(adjacency.indptr.data(), adjacency.num_rows + 1),
                                      tensors.vector(adjacency.indices.data(), adjacency.num_edges), edges));
  }
  nb::object n_id, x = nb::none(), trees = nb::none();
  if (const PyTypes* types = owner.inputs().types) {
    std::tie(n_id, x, trees) = export_by_type(*types, *batch, tensors);
  } else {
    n_id = tensors.vector(sampled.n_id.data(), sampled.num_nodes);
    if (sampled.disjoint) trees = tensors.vector(sampled.trees.data(), sampled.num_nodes);
  }
  if (const auto& source = owner.inputs().x)
    x = tensors.matrix(batch->x.data(), sampled.num_nodes, source->num_columns(), source->element());
  return nb::make_tuple(batch->step, n_id, tensors.vector(batch->input_id.data(), sampled.num_seeds),
                        adjacencies, sampled.nodes_per_hop, sampled.edges_per_hop, x, trees);
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

constexpr int64_t kRowsWorthAThread = 256;

void gather(const Array2<const uint8_t>& table, const Indptr& ids, const Array2<uint8_t>& out) {
  const int64_t row = table.num_columns(), num_ids = ids.length();
  need_shape(out, num_ids, row);
  const char* from = reinterpret_cast<const char*>(table.data());
  char* to = reinterpret_cast<char*>(out.data());
  nb::gil_scoped_release release;
  parallel_static(num_ids, kRowsWorthAThread, [&](int64_t begin, int64_t end) {
    gather_rows(from, row, ids.data() + begin, end - begin, to + begin * row);
  });
}

void gather_float(const Array2<const Floating>& table, const Indptr& ids, const Array2<float>& out) {
  const int64_t width = table.num_columns();
  need_shape(out, ids.length(), width);
  const DType dtype = dtype_of(table);
  need(dtype != DType::kFloat64, "table must be float32, bfloat16 or float16");
  const void* from = table.data();
  float* to = out.data();
  nb::gil_scoped_release release;
  parallel_static(ids.length(), kRowsWorthAThread, [&](int64_t begin, int64_t end) {
    gather_as_float(from, dtype, width, ids.data() + begin, end - begin, to + begin * width);
  });
}

void gather_multiples(const Array2<const int8_t>& table, const Array1<const float>& scale, const Indptr& ids,
                      const Array2<float>& out) {
  const int64_t width = table.num_columns();
  need_length(scale, table.num_rows());
  need_shape(out, ids.length(), width);
  const int8_t* from = table.data();
  float* to = out.data();
  nb::gil_scoped_release release;
  parallel_static(ids.length(), kRowsWorthAThread, [&](int64_t begin, int64_t end) {
    gather_scaled(from, scale.data(), width, ids.data() + begin, end - begin, to + begin * width);
  });
}

void init_pipeline(PyPipeline* self, const Indptr& indptr, const Ids& indices,
                   const std::optional<Array1<const float>>& weight,
                   const std::optional<Array<const Anything, 2>>& x, const std::vector<int64_t>& fanouts,
                   bool replace, bool blocks, bool keep_edges, int num_threads, int depth, int refill,
                   NeighborLists* lists, const std::optional<Array1<const int64_t>>& time, bool last,
                   PyTypes* types) {
  Inputs inputs{indptr, indices, weight, x, lists, time, types};
  SampleConfig config{fanouts, replace, blocks, keep_edges, last};
  check_inputs(inputs, config);
  need_count(num_threads, 1, kMostThreads, "num_threads");
  need_count(depth, 1, std::numeric_limits<int>::max() - 2, "depth");
  need_count(refill, 0, depth, "refill");
  new (self) PyPipeline(std::move(inputs), std::move(config), num_threads, depth, refill);
}

void init_run(PyRun* self, PyPipeline& pipeline, const Indptr& seeds, int64_t batch_size, bool shuffle,
              uint64_t seed, uint64_t epoch, int64_t first_step, int64_t last_step, bool disjoint,
              const std::optional<Array1<const int64_t>>& times,
              const std::optional<Array1<const int64_t>>& excluded, int64_t part, int64_t num_parts,
              std::optional<int64_t> reach, const std::optional<Array1<const int64_t>>& own) {
  const Schedule schedule{seeds.data(), seeds.length(), batch_size, shuffle, seed, epoch, part, num_parts};
  check_run(pipeline.inputs(), seeds, schedule, first_step, last_step);
  Limits limits{disjoint, times, excluded, own, reach};
  check_share(pipeline.pipeline().config(), pipeline.inputs(), limits, seeds.length(),
              last_step - first_step);
  check_limits(pipeline.inputs(), limits, seeds.length(), last_step - first_step);
  new (self) PyRun(pipeline, seeds, std::move(limits), schedule, first_step, last_step);
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
  using namespace nb::literals;
  def_native(m, "gather_rows", &gather, "table"_a, "ids"_a, "out"_a);
  def_native(m, "gather_as_float", &gather_float, "table"_a, "ids"_a, "out"_a);
  def_native(m, "gather_scaled", &gather_multiples, "table"_a, "scale"_a, "ids"_a, "out"_a);

  nb::class_<PyPipeline> pipeline(m, "Pipeline");
  def_init(pipeline, &init_pipeline, nb::keep_alive<1, 13>(), nb::keep_alive<1, 16>(), "indptr"_a,
           "indices"_a, "weight"_a, "x"_a, "fanouts"_a, "replace"_a, "blocks"_a, "keep_edges"_a,
           "num_threads"_a, "depth"_a, "refill"_a, "lists"_a.none() = nb::none(),
           "time"_a.none() = nb::none(), "last"_a = false, "types"_a.none() = nb::none());
  pipeline.def("busy_threads", [](PyPipeline& self) { return self.pipeline().busy_threads(); })
      .def("stage_seconds", [](PyPipeline& self) {
        const StageSeconds seconds = self.pipeline().stage_seconds();
        return nb::make_tuple(seconds.sample, seconds.gather, seconds.batches);
      });

  nb::class_<PyRun> run(m, "Run");
  def_init(run, &init_run, nb::keep_alive<1, 2>(), "pipeline"_a, "seeds"_a, "batch_size"_a, "shuffle"_a,
           "seed"_a, "epoch"_a, "first_step"_a, "last_step"_a, "disjoint"_a = false,
           "times"_a.none() = nb::none(), "excluded"_a.none() = nb::none(), "part"_a = 0, "num_parts"_a = 1,
           "reach"_a.none() = nb::none(), "own"_a.none() = nb::none());
  run.def("next", &next_batch);
}

}  // namespace gb
