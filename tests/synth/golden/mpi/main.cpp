// Train: full-graph training
//
// Written by graphbraid 0.1.0 (format 6). It trains on its own: no Python, no PyTorch.
//
// Every line is a task of graphbraid's full-graph engine: the same kernels (csrc/), in the same order, on the
// same places of one allocation. The arrays of plan/ are what the engine made of the graph before its first
// step, for each of 2 ranks. A rank computes the rows of its own nodes and exchanges those that others
// read (runtime_mpi/). All ranks run this program. Numbers that differ from rank to rank are sizes[i], which
// each reads from its folder in plan/. The decisions of lowering, for the graph that this was written for:
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
// Divided among 2 ranks by by hand
//   rank 0: 17 training nodes; rows per level 64 -> 33 -> 47 -> 17
//   rank 1: 13 training nodes; rows per level 57 -> 27 -> 43 -> 13
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "arrays.h"
#include "exchange.h"
#include "following.h"
#include "options.h"
#include "peak_memory.h"
#include "ranks.h"
#include "training.h"

namespace program {
namespace {

const Command kCommand{"mpirun -n 2 train", false};
constexpr int kRanks = 2;
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

// ---- What differs from rank to rank: sizes, and the digests of the rank's arrays

struct Numbers {
  // Of all numbers of a rank.
  static constexpr uint64_t kDigests[kRanks] = {
      0x81b37f65f0712ccd,
      0x6d3eed471b18c41e,
  };
  static constexpr int64_t kSizes = 32, kArrays = 41;

  Array file;
  const int64_t* sizes;
  std::vector<uint64_t> digests;

  Numbers(const std::string& plan, int rank)
      : file(plan + "/numbers.npy", "<i8", {kSizes + kArrays}, kDigests[rank]),
        sizes(file.int64s()),
        digests(sizes + kSizes, sizes + kSizes + kArrays) {}
};

// ---- The rank's arrays

struct Plan {
  const Folder plan;
  const int64_t* sizes;
  const std::vector<uint64_t>& digests;

  const Array send0 = plan.int64s("send0", {sizes[8]}, digests[0]);
  const Array send_rows1 = plan.int64s("send_rows1", {2}, digests[1]);
  const Array receive_rows2 = plan.int64s("receive_rows2", {2}, digests[2]);
  const Array rows3 = plan.floats("rows3", {sizes[9], 12}, digests[3]);
  const Array nodes4 = plan.int64s("nodes4", {sizes[9]}, digests[4]);
  const Array indptr5 = plan.int64s("indptr5", {sizes[11]}, digests[5]);
  const Array indices6 = plan.int32s("indices6", {sizes[12]}, digests[6]);
  const Array src_scale7 = plan.floats("src_scale7", {sizes[9]}, digests[7]);
  const Array dst_scale8 = plan.floats("dst_scale8", {sizes[13]}, digests[8]);
  const Array indptr9 = plan.int64s("indptr9", {sizes[11]}, digests[9]);
  const Array indices10 = plan.int32s("indices10", {sizes[14]}, digests[10]);
  const Array src_scale11 = plan.floats("src_scale11", {sizes[10]}, digests[11]);
  const Array indptr12 = plan.int64s("indptr12", {sizes[15]}, digests[12]);
  const Array indices13 = plan.int32s("indices13", {sizes[14]}, digests[13]);
  const Array indptr14 = plan.int64s("indptr14", {sizes[16]}, digests[14]);
  const Array indices15 = plan.int32s("indices15", {sizes[12]}, digests[15]);
  const Array indptr16 = plan.int64s("indptr16", {sizes[16]}, digests[16]);
  const Array indices17 = plan.int32s("indices17", {sizes[8]}, digests[17]);
  const Array send18 = plan.int64s("send18", {sizes[21]}, digests[18]);
  const Array send_rows19 = plan.int64s("send_rows19", {2}, digests[19]);
  const Array receive_rows20 = plan.int64s("receive_rows20", {2}, digests[20]);
  const Array indptr21 = plan.int64s("indptr21", {sizes[22]}, digests[21]);
  const Array indices22 = plan.int32s("indices22", {sizes[23]}, digests[22]);
  const Array rows23 = plan.floats("rows23", {sizes[25], 12}, digests[23]);
  const Array src_scale24 = plan.floats("src_scale24", {sizes[25]}, digests[24]);
  const Array dst_scale25 = plan.floats("dst_scale25", {sizes[24]}, digests[25]);
  const Array indptr26 = plan.int64s("indptr26", {sizes[22]}, digests[26]);
  const Array indices27 = plan.int32s("indices27", {sizes[27]}, digests[27]);
  const Array src_scale28 = plan.floats("src_scale28", {sizes[24]}, digests[28]);
  const Array dst_scale29 = plan.floats("dst_scale29", {sizes[24]}, digests[29]);
  const Array indptr30 = plan.int64s("indptr30", {sizes[22]}, digests[30]);
  const Array indices31 = plan.int32s("indices31", {sizes[28]}, digests[31]);
  const Array src_scale32 = plan.floats("src_scale32", {sizes[26]}, digests[32]);
  const Array train_rows33 = plan.int64s("train_rows33", {sizes[13]}, digests[33]);
  const Array train_labels34 = plan.int64s("train_labels34", {sizes[13]}, digests[34]);
  const Array split_train_rows35 = plan.int64s("split_train_rows35", {sizes[13]}, digests[35]);
  const Array split_train_labels36 = plan.int64s("split_train_labels36", {sizes[13]}, digests[36]);
  const Array split_val_rows37 = plan.int64s("split_val_rows37", {sizes[30]}, digests[37]);
  const Array split_val_labels38 = plan.int64s("split_val_labels38", {sizes[30]}, digests[38]);
  const Array split_test_rows39 = plan.int64s("split_test_rows39", {sizes[31]}, digests[39]);
  const Array split_test_labels40 = plan.int64s("split_test_labels40", {sizes[31]}, digests[40]);
};

// ---- The tensors of a training step, each at its place in an arena
//
// Tensors that are not needed at the same time share memory.

struct TrainTensors {
  const Arena& arena;
  const int64_t* sizes;

  const Tensor v4 = arena.at(0);                              // n x 16, tasks 0 to 14
  const Tensor v5 = arena.at(sizes[0]);                       // n x 5, tasks 1 to 3
  const Tensor v7_rows_to_send = arena.at(sizes[1]);          // n x 5, tasks 2 to 4
  const Tensor v7_halo = arena.at(sizes[2]);                  // n x 5, tasks 2 to 5
  const Tensor v7 = arena.at(sizes[3]);                       // n x 5, tasks 3 to 7
  const Tensor gradient_of_the_output = arena.at(sizes[0]);   // n x 5, tasks 6 to 10
  const Tensor v7_gradient_of_the_halo = arena.at(sizes[4]);  // n x 5, tasks 8 to 11
  const Tensor v7_returned_gradients = arena.at(sizes[5]);    // n x 5, tasks 9 to 11
  const Tensor gradient_of_v5 = arena.at(sizes[6]);           // n x 5, tasks 10 to 13
  const Tensor gradient_of_v4 = arena.at(sizes[0]);           // n x 16, tasks 13 to 15
};

// ---- The tensors of an evaluation, each at its place in an arena
//
// Tensors that are not needed at the same time share memory.

struct EvaluateTensors {
  const Arena& arena;
  const int64_t* sizes;

  const Tensor v1_rows = arena.at(sizes[17]);          // n x 12, tasks 0 to 1
  const Tensor v3 = arena.at(0);                       // n x 16, tasks 1 to 2
  const Tensor v4 = arena.at(sizes[17]);               // n x 5, tasks 2 to 4
  const Tensor v6_rows_to_send = arena.at(sizes[18]);  // n x 5, tasks 3 to 5
  const Tensor v6_halo = arena.at(sizes[19]);          // n x 5, tasks 3 to 6
  const Tensor v6 = arena.at(0);                       // n x 5, tasks 4 to 7
};

class Program {
 public:
  Program(Ranks& ranks_, const std::string& folder, const std::string& first_weights)
      : ranks(ranks_),
        numbers(folder, ranks.rank()),
        sizes(numbers.sizes),
        plan{{folder}, sizes, numbers.digests} {
    weights.load(first_weights);
    ranks.require_alike(weights.digest(), "first weights");
  }

  // The outputs.
  void forward() {
    for (uint64_t& seed : seeds) seed = random.draw();

    // v4 = linear(v1_once): 12 -> 16, then bias, relu, dropout 0.5  [level 1, 16 columns]
    tall_product({
        .a = contiguous(plan.rows3.floats(), sizes[9], 12),
        .b = transposed(contiguous(value(w_convs_0_lin_weight), 16, 12)),
        .out = train.v4(sizes[9], 16),
        .after = {.bias = value(w_convs_0_bias),
                  .act = Act::kRelu,
                  .p = 0.5,
                  .seed = seeds[0],
                  .ids = plan.nodes4.int64s()},
    });

    // v5 = linear(v4): 16 -> 5  [level 1, 5 columns]
    tall_product({
        .a = train.v4(sizes[9], 16),
        .b = transposed(contiguous(value(w_convs_1_lin_weight), 5, 16)),
        .out = train.v5(sizes[9], 5),
    });

    // v7: rows depart
    train_exchange0.begin({
        .own = train.v5(sizes[9], 5),
        .packed = train.v7_rows_to_send(sizes[8], 5),
        .halo = train.v7_halo(sizes[10], 5),
    });

    // v7: own rows
    spmm({
        .edges = {.indptr = plan.indptr5.int64s(),
                  .indices = plan.indices6.values(),
                  .num_rows = sizes[13],
                  .num_edges = sizes[12]},
        .x = train.v5(sizes[9], 5),
        .factors = {.src_scale = plan.src_scale7.floats(), .dst_scale = plan.dst_scale8.floats()},
        .loop_scale = 1.0,
        .num_loops = sizes[13],
        .skip_loops = true,
        .out = train.v7(sizes[13], 5),
    });

    // v7: wait
    train_exchange0.wait();

    // v7 = aggregate(v5 and halo): gcn weighted + 1 I, then bias  [level 3, 5 columns]
    spmm({
        .edges = {.indptr = plan.indptr9.int64s(),
                  .indices = plan.indices10.values(),
                  .num_rows = sizes[13],
                  .num_edges = sizes[14]},
        .x = train.v7_halo(sizes[10], 5),
        .factors = {.src_scale = plan.src_scale11.floats(), .dst_scale = plan.dst_scale8.floats()},
        .addend = train.v7(sizes[13], 5),
        .out = train.v7(sizes[13], 5),
        .after = {.bias = value(w_convs_1_bias)},
    });
  }

  // The gradients of all parameters, from that of the outputs.
  void backward() {
    // gradient of v6
    epilogue_backward({
        .grad = train.gradient_of_the_output(sizes[13], 5),
        .result = train.v7(sizes[13], 5),
        .grad_x = train.gradient_of_the_output(sizes[13], 5),
        .grad_bias = gradient(w_convs_1_bias),
    });
    ranks.begin_sum(weights.parameters[w_convs_1_bias].grad);

    // gradient of v5: halo
    spmm({
        .edges = {.indptr = plan.indptr12.int64s(),
                  .indices = plan.indices13.values(),
                  .num_rows = sizes[10],
                  .num_edges = sizes[14]},
        .x = train.gradient_of_the_output(sizes[13], 5),
        .factors = {.src_scale = plan.dst_scale8.floats(), .dst_scale = plan.src_scale11.floats()},
        .out = train.v7_gradient_of_the_halo(sizes[10], 5),
    });

    // gradient of v5: depart
    train_exchange0.begin_back({
        .halo = train.v7_gradient_of_the_halo(sizes[10], 5),
        .returned = train.v7_returned_gradients(sizes[8], 5),
    });

    // gradient of v5: own
    spmm({
        .edges = {.indptr = plan.indptr14.int64s(),
                  .indices = plan.indices15.values(),
                  .num_rows = sizes[9],
                  .num_edges = sizes[12]},
        .x = train.gradient_of_the_output(sizes[13], 5),
        .factors = {.src_scale = plan.dst_scale8.floats(), .dst_scale = plan.src_scale7.floats()},
        .loop_scale = 1.0,
        .num_loops = sizes[13],
        .skip_loops = true,
        .out = train.gradient_of_v5(sizes[9], 5),
    });

    // gradient of v5
    train_exchange0.wait();
    spmm({
        .edges = {.indptr = plan.indptr16.int64s(),
                  .indices = plan.indices17.values(),
                  .num_rows = sizes[9],
                  .num_edges = sizes[8]},
        .x = train.v7_returned_gradients(sizes[8], 5),
        .addend = train.gradient_of_v5(sizes[9], 5),
        .out = train.gradient_of_v5(sizes[9], 5),
    });

    // gradient of v5's weight
    tall_gram({
        .a = train.gradient_of_v5(sizes[9], 5),
        .b = train.v4(sizes[9], 16),
        .out = contiguous(gradient(w_convs_1_lin_weight), 5, 16),
    });
    ranks.begin_sum(weights.parameters[w_convs_1_lin_weight].grad);

    // gradient of v4
    tall_product({
        .a = train.gradient_of_v5(sizes[9], 5),
        .b = contiguous(value(w_convs_1_lin_weight), 5, 16),
        .out = train.gradient_of_v4(sizes[9], 16),
    });

    // gradient of v1
    epilogue_backward({
        .grad = train.gradient_of_v4(sizes[9], 16),
        .result = train.v4(sizes[9], 16),
        .how = {.act = Act::kRelu, .p = 0.5, .seed = seeds[0], .ids = plan.nodes4.int64s()},
        .grad_x = train.gradient_of_v4(sizes[9], 16),
        .grad_bias = gradient(w_convs_0_bias),
    });
    ranks.begin_sum(weights.parameters[w_convs_0_bias].grad);

    // gradient of v4's weight
    tall_gram({
        .a = train.gradient_of_v4(sizes[9], 16),
        .b = contiguous(plan.rows3.floats(), sizes[9], 12),
        .out = contiguous(gradient(w_convs_0_lin_weight), 16, 12),
    });
    ranks.begin_sum(weights.parameters[w_convs_0_lin_weight].grad);

    ranks.finish_sums();
  }

  // The outputs of all nodes, without dropout.
  void predict() {
    // v1_rows = aggregate(x): gcn weighted + 1 I  [level 1, 12 columns]
    spmm({
        .edges = {.indptr = plan.indptr21.int64s(),
                  .indices = plan.indices22.values(),
                  .num_rows = sizes[24],
                  .num_edges = sizes[23]},
        .x = contiguous(plan.rows23.floats(), sizes[25], 12),
        .factors = {.src_scale = plan.src_scale24.floats(), .dst_scale = plan.dst_scale25.floats()},
        .loop_scale = 1.0,
        .num_loops = sizes[24],
        .skip_loops = true,
        .out = evaluate.v1_rows(sizes[24], 12),
    });

    // v3 = linear(v1_rows): 12 -> 16, then bias, relu  [level 1, 16 columns]
    tall_product({
        .a = evaluate.v1_rows(sizes[24], 12),
        .b = transposed(contiguous(value(w_convs_0_lin_weight), 16, 12)),
        .out = evaluate.v3(sizes[24], 16),
        .after = {.bias = value(w_convs_0_bias), .act = Act::kRelu},
    });

    // v4 = linear(v3): 16 -> 5  [level 1, 5 columns]
    tall_product({
        .a = evaluate.v3(sizes[24], 16),
        .b = transposed(contiguous(value(w_convs_1_lin_weight), 5, 16)),
        .out = evaluate.v4(sizes[24], 5),
    });

    // v6: rows depart
    evaluate_exchange0.begin({
        .own = evaluate.v4(sizes[24], 5),
        .packed = evaluate.v6_rows_to_send(sizes[21], 5),
        .halo = evaluate.v6_halo(sizes[26], 5),
    });

    // v6: own rows
    spmm({
        .edges = {.indptr = plan.indptr26.int64s(),
                  .indices = plan.indices27.values(),
                  .num_rows = sizes[24],
                  .num_edges = sizes[27]},
        .x = evaluate.v4(sizes[24], 5),
        .factors = {.src_scale = plan.src_scale28.floats(), .dst_scale = plan.dst_scale29.floats()},
        .loop_scale = 1.0,
        .num_loops = sizes[24],
        .skip_loops = true,
        .out = evaluate.v6(sizes[24], 5),
    });

    // v6: wait
    evaluate_exchange0.wait();

    // v6 = aggregate(v4 and halo): gcn weighted + 1 I, then bias  [level 3, 5 columns]
    spmm({
        .edges = {.indptr = plan.indptr30.int64s(),
                  .indices = plan.indices31.values(),
                  .num_rows = sizes[24],
                  .num_edges = sizes[28]},
        .x = evaluate.v6_halo(sizes[26], 5),
        .factors = {.src_scale = plan.src_scale32.floats(), .dst_scale = plan.dst_scale29.floats()},
        .addend = evaluate.v6(sizes[24], 5),
        .out = evaluate.v6(sizes[24], 5),
        .after = {.bias = value(w_convs_1_bias)},
    });
  }

  // The loss of the training nodes, whose gradient starts the backward pass.
  double loss() {
    const double own = cross_entropy({
        .outputs = train.v7(sizes[13], 5),
        .nodes = train_nodes,
        .grad = train.gradient_of_the_output(sizes[13], 5),
    });
    return ranks.sum(own);
  }

  // The update of all parameters by the optimizer.
  void update(double rate) {
    optimizer.learning_rate = rate;
    weights.update(optimizer.next());
  }

  // The share of labelled nodes whose largest output is their label.
  double accuracy(const LabelledRows& nodes) {
    const auto found = static_cast<double>(num_right(evaluate.v6(sizes[24], 5), nodes));
    return ranks.sum(found) / static_cast<double>(nodes.total);
  }

  Ranks& ranks;
  Numbers numbers;
  const int64_t* sizes;
  Plan plan;
  Weights weights = make_weights();
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
      .rows = plan.train_rows33.int64s(),
      .labels = plan.train_labels34.int64s(),
      .count = sizes[13],
      .total = 30,
  };
  const LabelledRows split_train = {
      .rows = plan.split_train_rows35.int64s(),
      .labels = plan.split_train_labels36.int64s(),
      .count = sizes[13],
      .total = 30,
  };
  const LabelledRows split_val = {
      .rows = plan.split_val_rows37.int64s(),
      .labels = plan.split_val_labels38.int64s(),
      .count = sizes[30],
      .total = 20,
  };
  const LabelledRows split_test = {
      .rows = plan.split_test_rows39.int64s(),
      .labels = plan.split_test_labels40.int64s(),
      .count = sizes[31],
      .total = 30,
  };

 private:
  float* value(ParameterOf p) { return weights.parameters[p].value.data(); }
  float* gradient(ParameterOf p) { return weights.parameters[p].grad.data(); }

  // An evaluation follows a whole step, so that both have one memory.
  Arena memory{sizes[29]};  // bytes
  const TrainTensors train{memory, sizes};
  const EvaluateTensors evaluate{memory, sizes};
  Exchange train_exchange0{{
      .ranks = &ranks,
      .tag = 0,
      .rows = plan.send0.int64s(),
      .send_rows = plan.send_rows1.int64s(),
      .receive_rows = plan.receive_rows2.int64s(),
      .num_sent = sizes[8],
  }};
  Exchange evaluate_exchange0{{
      .ranks = &ranks,
      .tag = 1,
      .rows = plan.send18.int64s(),
      .send_rows = plan.send_rows19.int64s(),
      .receive_rows = plan.receive_rows20.int64s(),
      .num_sent = sizes[21],
  }};
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

void run(Ranks& ranks, const Options& options, double started) {
  const std::string first_weights = options.load.empty() ? options.home + "/weights" : options.load;
  Program program(ranks, options.home + "/plan/rank-" + std::to_string(ranks.rank()), first_weights);
  std::printf("seconds to load %.6f\n", seconds() - started);
  Training<Program> training(program);
  follow(training, options.epochs);
  program.predict();
  std::printf("accuracy train %.6f\n", program.accuracy(program.split_train));
  std::printf("accuracy val %.6f\n", program.accuracy(program.split_val));
  std::printf("accuracy test %.6f\n", program.accuracy(program.split_test));
  const double num_epochs = static_cast<double>(training.num_epochs());
  if (num_epochs > 0) std::printf("seconds per epoch %.6f\n", training.total_seconds() / num_epochs);
  const double sent = ranks.sum(static_cast<double>(training.sent_bytes()));
  const double peak = ranks.sum(static_cast<double>(peak_memory()));
  if (num_epochs > 0) std::printf("bytes sent per epoch %.0f\n", sent / num_epochs);
  std::printf("peak memory %.0f bytes of all ranks\n", peak);
  ranks.require_alike(program.weights.digest(), "weights after training");
  if (!options.save.empty() && ranks.rank() == 0) program.weights.save(options.save);
}

void train(Ranks& ranks, const Options& options) {
  const double started = seconds();
  ranks.let_one_speak();
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // an epoch is shown when it is over, in a file too
  prepare_folders(options, kCommand);
  choose_variant();
  run(ranks, options, started);
}

}  // namespace
}  // namespace program

int main(int count, char** words) {
  program::Ranks ranks(&count, &words);
  const bool speaks = ranks.rank() == 0;
  try {
    const program::Options options = program::read_options(count, words, program::kCommand, program::kEpochs);
    if (options.help) {
      if (speaks) std::fputs(program::kCommand.usage().c_str(), stdout);
      return 0;
    }
    if (ranks.size() != program::kRanks)
      throw program::UsageError("it was written for " + std::to_string(program::kRanks) +
                                " ranks and started on " + std::to_string(ranks.size()) +
                                "; another number of ranks needs another program: graphbraid synth --ranks");
    program::train(ranks, options);
    return 0;
  } catch (const program::UsageError& error) {  // on all ranks alike
    if (speaks) std::fprintf(stderr, "train: %s\n%s", error.what(), program::kCommand.usage().c_str());
    return 2;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "train: rank %d: there is too little memory\n", ranks.rank());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "train: rank %d: %s\n", ranks.rank(), error.what());
  }
  program::Ranks::end_all(1);
}
