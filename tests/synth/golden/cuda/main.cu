// Train: full-graph training
//
// Written by graphbraid 0.1.0 (format 6). It trains on its own: no Python, no PyTorch.
//
// Every line is a task of graphbraid's full-graph engine, in the same order, on the same places of one
// allocation, by the kernels in runtime_cuda/. The arrays of plan/ are what the engine made of the graph
// before its first step. The decisions of lowering, for the graph in the store that this was written for:
//
// Lowered for the outputs of 30 of 80 nodes on cpu, rows stored in float32
//   weighed by 150 GFLOP/s, 15 GB/s in sequence, 12 at random, 60 in 8 MB of cache; 100% of the features are
//     not zero
// Decisions
//   - symmetry: edges are not stored both ways
//   + prune: 41% of the edges reach the nodes of the loss; rows per level 70 -> 60 -> 30
//   - split: no linear map reads values side by side
//   - input path: dense: 100% of the features are not zero (instead of sparse, 0.0042 ms an epoch)
//   + hoist: features aggregated once, 0.00288 MB; saves 0.00151 ms an epoch
//   - order: every aggregation runs at its narrower side already
//   + fuse: 4 fewer passes over the rows, 2 of them made in the cache by the kernel before; saves 0.00888 MB
//     an epoch that need not leave the cache and come back
//   - storage: float32 rows; storage='bfloat16' halves the bytes read
//   - locality: rows fit in 8 MB of cache in any order
// Program
//   v1_once (60, 12) = constant(x): aggregate gcn weighted + 1 I, computed once
//   v4 (60, 16) = linear(v1_once): 12 -> 16, then bias, relu, dropout 0.5
//   v5 (60, 5) = linear(v4): 16 -> 5
//   v7 (30, 5) = aggregate(v5): gcn weighted + 1 I, then bias
// Levels, their nodes those of the last level first
//   0: 70 nodes, 170 edges to the next
//   1: 60 nodes, 85 edges to the next
//   2: 30 nodes
// GPU
//   - long rows: a row of more than 1,024 edges is summed in parts
//   - memory: 63,232 bytes: arrays 14,336, weights 7,168, arena 8,960, between tasks 0, workspace 32,768
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "following.h"
#include "gpu_memory.h"
#include "gpu_training.h"
#include "options.h"
#include "peak_memory.h"

namespace program {
namespace {

const Command kCommand{"train", true};
constexpr int64_t kEpochs = 20;

// ---- Weights, in the order of the model

enum ParameterOf {
  w_convs_0_bias,
  w_convs_0_lin_weight,
  w_convs_1_bias,
  w_convs_1_lin_weight,
};

Weights make_weights() {
  Weights weights;
  weights.add({.name = "convs.0.bias", .shape = {16}});
  weights.add({.name = "convs.0.lin.weight", .shape = {16, 12}});
  weights.add({.name = "convs.1.bias", .shape = {5}});
  weights.add({.name = "convs.1.lin.weight", .shape = {5, 16}});
  return weights;
}

// ---- Arrays: files of the store, and those that were made of it, each with the digest of its values

struct Plan {
  const DeviceFolder store, plan;

  const DeviceArray rows0 = plan.floats("rows0", {60, 12}, 0x89eca0064d478f3d);
  const DeviceArray nodes1 = plan.int64s("nodes1", {60}, 0x4110e5ef134ef0c1);
  const DeviceArray indptr2 = plan.int64s("indptr2", {31}, 0x3ddb46189e2cbf0c);
  const DeviceArray indices3 = plan.int32s("indices3", {85}, 0x64a2bc10dc2dae7d);
  const DeviceArray src_scale4 = plan.floats("src_scale4", {60}, 0x2b978f883c87afd9);
  const DeviceArray dst_scale5 = plan.floats("dst_scale5", {30}, 0x8b39ee5a08697161);
  const DeviceArray indptr6 = plan.int64s("indptr6", {61}, 0xfddde5a3bcd1fc04);
  const DeviceArray indices7 = plan.int32s("indices7", {85}, 0x5ee80374339bc903);
  const DeviceArray indptr = store.int64s("indptr", {81}, 0xc97e3a567e47281f);
  const DeviceArray indices = store.int32s("indices", {310}, 0xe8175674ea544852);
  const DeviceArray x = store.floats("x", {80, 12}, 0xdc97dad662f7fb68);
  const DeviceArray src_scale11 = plan.floats("src_scale11", {80}, 0xfb644d4f2f1d82d1);
  const DeviceArray train_rows12 = plan.int64s("train_rows12", {30}, 0xdba7da1ce27b2070);
  const DeviceArray train_labels13 = plan.int64s("train_labels13", {30}, 0xc25fa8f6a22a20a3);
  const DeviceArray split_train_rows14 = plan.int64s("split_train_rows14", {30}, 0x237995c46a750821);
  const DeviceArray split_train_labels15 = plan.int64s("split_train_labels15", {30}, 0xc25fa8f6a22a20a3);
  const DeviceArray split_val_rows16 = plan.int64s("split_val_rows16", {20}, 0xe66f41c5e176780f);
  const DeviceArray split_val_labels17 = plan.int64s("split_val_labels17", {20}, 0x6918d58d2f7b02fe);
  const DeviceArray split_test_rows18 = plan.int64s("split_test_rows18", {30}, 0x2d3fda960159b351);
  const DeviceArray split_test_labels19 = plan.int64s("split_test_labels19", {30}, 0x773c4c0c7e580fa5);
};

// ---- The tensors of a training step, each at its place in an arena of 8896 bytes
//
// Tensors that are not needed at the same time share memory.

struct TrainTensors {
  const Arena& arena;

  const Tensor v4 = arena.at(0);                         // 60 x 16, tasks 0 to 8
  const Tensor v5 = arena.at(3840);                      // 60 x 5, tasks 1 to 2
  const Tensor v7 = arena.at(5056);                      // 30 x 5, tasks 2 to 4
  const Tensor gradient_of_the_output = arena.at(3840);  // 30 x 5, tasks 3 to 5
  const Tensor gradient_of_v5 = arena.at(7680);          // 60 x 5, tasks 5 to 7
  const Tensor gradient_of_v4 = arena.at(3840);          // 60 x 16, tasks 7 to 9
};

// ---- The tensors of an evaluation, each at its place in an arena of 8960 bytes
//
// Tensors that are not needed at the same time share memory.

struct EvaluateTensors {
  const Arena& arena;

  const Tensor v1_rows = arena.at(5120);  // 80 x 12, tasks 0 to 1
  const Tensor v3 = arena.at(0);          // 80 x 16, tasks 1 to 2
  const Tensor v4 = arena.at(5120);       // 80 x 5, tasks 2 to 3
  const Tensor v6 = arena.at(0);          // 80 x 5, tasks 3 to 4
};

class Program {
 public:
  Program(const std::string& store, const std::string& folder, const std::string& first_weights)
      : plan{{gpu, store}, {gpu, folder}}, weights(gpu, make_weights()) {
    weights.load(first_weights);
  }

  // The outputs.
  void forward() {
    for (uint64_t& seed : seeds) seed = random.draw();

    // v4 = linear(v1_once): 12 -> 16, then bias, relu, dropout 0.5  [level 1, 16 columns]
    tall_product({
        .a = contiguous(plan.rows0.floats(), 60, 12),
        .b = transposed(contiguous(value(w_convs_0_lin_weight), 16, 12)),
        .out = train.v4(60, 16),
        .after = {.bias = value(w_convs_0_bias),
                  .act = Act::kRelu,
                  .p = 0.5,
                  .seed = seeds[0],
                  .ids = plan.nodes1.int64s()},
    });

    // v5 = linear(v4): 16 -> 5  [level 1, 5 columns]
    tall_product({
        .a = train.v4(60, 16),
        .b = transposed(contiguous(value(w_convs_1_lin_weight), 5, 16)),
        .out = train.v5(60, 5),
    });

    // v7 = aggregate(v5): gcn weighted + 1 I, then bias  [level 2, 5 columns]
    spmm({
        .edges = {.indptr = plan.indptr2.int64s(),
                  .indices = plan.indices3.values(),
                  .num_rows = 30,
                  .num_edges = 85},
        .x = train.v5(60, 5),
        .factors = {.src_scale = plan.src_scale4.floats(), .dst_scale = plan.dst_scale5.floats()},
        .loop_scale = 1.0,
        .num_loops = 30,
        .skip_loops = true,
        .out = train.v7(30, 5),
        .after = {.bias = value(w_convs_1_bias)},
    });
  }

  // The gradients of all parameters, from that of the outputs.
  void backward() {
    // gradient of v6
    epilogue_backward({
        .grad = train.gradient_of_the_output(30, 5),
        .result = train.v7(30, 5),
        .grad_x = train.gradient_of_the_output(30, 5),
        .grad_bias = gradient(w_convs_1_bias),
    });

    // gradient of v5
    spmm({
        .edges = {.indptr = plan.indptr6.int64s(),
                  .indices = plan.indices7.values(),
                  .num_rows = 60,
                  .num_edges = 85},
        .x = train.gradient_of_the_output(30, 5),
        .factors = {.src_scale = plan.dst_scale5.floats(), .dst_scale = plan.src_scale4.floats()},
        .loop_scale = 1.0,
        .num_loops = 30,
        .skip_loops = true,
        .out = train.gradient_of_v5(60, 5),
    });

    // gradient of v5's weight
    tall_gram({
        .a = train.gradient_of_v5(60, 5),
        .b = train.v4(60, 16),
        .out = contiguous(gradient(w_convs_1_lin_weight), 5, 16),
    });

    // gradient of v4
    tall_product({
        .a = train.gradient_of_v5(60, 5),
        .b = contiguous(value(w_convs_1_lin_weight), 5, 16),
        .out = train.gradient_of_v4(60, 16),
    });

    // gradient of v1
    epilogue_backward({
        .grad = train.gradient_of_v4(60, 16),
        .result = train.v4(60, 16),
        .how = {.act = Act::kRelu, .p = 0.5, .seed = seeds[0], .ids = plan.nodes1.int64s()},
        .grad_x = train.gradient_of_v4(60, 16),
        .grad_bias = gradient(w_convs_0_bias),
    });

    // gradient of v4's weight
    tall_gram({
        .a = train.gradient_of_v4(60, 16),
        .b = contiguous(plan.rows0.floats(), 60, 12),
        .out = contiguous(gradient(w_convs_0_lin_weight), 16, 12),
    });
  }

  // The outputs of all nodes, without dropout.
  void predict() {
    // v1_rows = aggregate(x): gcn weighted + 1 I  [level 1, 12 columns]
    spmm({
        .edges = {.indptr = plan.indptr.int64s(),
                  .indices = plan.indices.values(),
                  .num_rows = 80,
                  .num_edges = 310},
        .x = contiguous(plan.x.floats(), 80, 12),
        .factors = {.src_scale = plan.src_scale11.floats(), .dst_scale = plan.src_scale11.floats()},
        .loop_scale = 1.0,
        .num_loops = 80,
        .skip_loops = true,
        .out = evaluate.v1_rows(80, 12),
    });

    // v3 = linear(v1_rows): 12 -> 16, then bias, relu  [level 1, 16 columns]
    tall_product({
        .a = evaluate.v1_rows(80, 12),
        .b = transposed(contiguous(value(w_convs_0_lin_weight), 16, 12)),
        .out = evaluate.v3(80, 16),
        .after = {.bias = value(w_convs_0_bias), .act = Act::kRelu},
    });

    // v4 = linear(v3): 16 -> 5  [level 1, 5 columns]
    tall_product({
        .a = evaluate.v3(80, 16),
        .b = transposed(contiguous(value(w_convs_1_lin_weight), 5, 16)),
        .out = evaluate.v4(80, 5),
    });

    // v6 = aggregate(v4): gcn weighted + 1 I, then bias  [level 2, 5 columns]
    spmm({
        .edges = {.indptr = plan.indptr.int64s(),
                  .indices = plan.indices.values(),
                  .num_rows = 80,
                  .num_edges = 310},
        .x = evaluate.v4(80, 5),
        .factors = {.src_scale = plan.src_scale11.floats(), .dst_scale = plan.src_scale11.floats()},
        .loop_scale = 1.0,
        .num_loops = 80,
        .skip_loops = true,
        .out = evaluate.v6(80, 5),
        .after = {.bias = value(w_convs_1_bias)},
    });
  }

  // The loss of the training nodes, whose gradient starts the backward pass.
  double loss() {
    const double own = cross_entropy({
        .outputs = train.v7(30, 5),
        .nodes = train_nodes,
        .grad = train.gradient_of_the_output(30, 5),
    });
    return own;
  }

  // The update of all parameters by the optimizer.
  void update(double rate) {
    optimizer.learning_rate = rate;
    weights.update(optimizer.next());
    wait_for_gpu();
  }

  // The share of labelled nodes whose largest output is their label.
  double accuracy(const LabelledRows& nodes) {
    const auto found = static_cast<double>(num_right(evaluate.v6(80, 5), nodes));
    return found / static_cast<double>(nodes.total);
  }

  Memory gpu{63232};  // bytes, of all that follows
  Plan plan;
  DeviceWeights weights;
  Optimizer optimizer = {
      .rule = Rule::kAdam,
      .learning_rate = 0.01,
      .momentum = 0.0,
      .beta1 = 0.9,
      .beta2 = 0.999,
      .weight_decay = 0.0,
      .eps = 1e-08,
  };
  const LabelledRows train_nodes = {
      .rows = plan.train_rows12.int64s(),
      .labels = plan.train_labels13.int64s(),
      .count = 30,
      .total = 30,
  };
  const LabelledRows split_train = {
      .rows = plan.split_train_rows14.int64s(),
      .labels = plan.split_train_labels15.int64s(),
      .count = 30,
      .total = 30,
  };
  const LabelledRows split_val = {
      .rows = plan.split_val_rows16.int64s(),
      .labels = plan.split_val_labels17.int64s(),
      .count = 20,
      .total = 20,
  };
  const LabelledRows split_test = {
      .rows = plan.split_test_rows18.int64s(),
      .labels = plan.split_test_labels19.int64s(),
      .count = 30,
      .total = 30,
  };

 private:
  float* value(ParameterOf p) { return weights.value(p); }
  float* gradient(ParameterOf p) { return weights.gradient(p); }

  // An evaluation follows a whole step, so that both have one memory.
  Arena memory{gpu, 8960};  // bytes
  const TrainTensors train{memory};
  const EvaluateTensors evaluate{memory};
  Workspace workspace{gpu, 32768};  // bytes, of one kernel at a time
  Seeds random{0};
  uint64_t seeds[1] = {};  // of the masks of dropout in this step
};

// ---- What the program decides while it trains, statement by statement

void follow(Training<Program>& gnn, [[maybe_unused]] Int totalEpoch) {
  for (Int epoch = 0; epoch < totalEpoch; ++epoch) {
    gnn.forward_pass(7);
    gnn.back_propagation();
    gnn.optimizer(0.01, 13);
    if (epoch % 5 == 4) {
      gnn.evaluate("val", &Program::split_val, 14);
    }
  }
}

void run(const Options& options, double started) {
  const std::string first_weights = options.load.empty() ? options.home + "/weights" : options.load;
  Program program(options.data, options.home + "/plan", first_weights);
  std::printf("memory %s\n", program.gpu.shown().c_str());
  std::printf("seconds to load %.6f\n", seconds() - started);
  Training<Program> training(program);
  follow(training, options.epochs);
  program.predict();
  std::printf("accuracy train %.6f\n", program.accuracy(program.split_train));
  std::printf("accuracy val %.6f\n", program.accuracy(program.split_val));
  std::printf("accuracy test %.6f\n", program.accuracy(program.split_test));
  const double num_epochs = static_cast<double>(training.num_epochs());
  if (num_epochs > 0) std::printf("seconds per epoch %.6f\n", training.total_seconds() / num_epochs);
  std::printf("peak memory %lld bytes of the processor's\n", static_cast<long long>(peak_memory()));
  if (!options.save.empty()) program.weights.save(options.save);
}

void train(const Options& options) {
  const double started = seconds();
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // an epoch is shown when it is over, in a file too
  prepare_folders(options, kCommand);
  run(options, started);
}

}  // namespace
}  // namespace program

int main(int count, char** words) {
  try {
    const program::Options options = program::read_options(count, words, program::kCommand, program::kEpochs);
    if (options.help)
      std::fputs(program::kCommand.usage().c_str(), stdout);
    else
      program::train(options);
    return 0;
  } catch (const program::UsageError& error) {
    std::fprintf(stderr, "train: %s\n%s", error.what(), program::kCommand.usage().c_str());
    return 2;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "train: there is too little memory\n");
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train: %s\n", error.what());
    return 1;
  }
}
