// Train: full-graph training
//
// Written by graphbraid 0.1.0 (format 5). It trains on its own: no Python, no PyTorch.
//
// Every line is a task of graphbraid's full-graph engine: the same kernels (csrc/), in the same order, on the
// same places of one allocation. The arrays of plan/ are what the engine made of the graph before its first
// step, for each of 2 ranks. A rank computes the rows of its own nodes and exchanges those that others
// read (runtime_mpi/). All ranks run this program. Numbers that differ from rank to rank are sizes[i], which
// each reads from its folder in plan/. What was decided before, for the graph that this was written for:
//
// clang-format off
// Lowered for the outputs of 30 of 80 nodes on cpu, rows stored in float32
//   weighed by 150 GFLOP/s, 15 GB/s in sequence, 12 at random, 60 in 8 MB of cache; 1 of the features are not zero
// Decisions
//   - symmetry: edges are not stored both ways
//   + prune: 41% of the edges reach the nodes of the loss; rows per level 70 -> 60 -> 30
//   - split: no linear map reads values side by side
//   - input path: dense: 1 of the features are not zero (instead of sparse, 0.0042 ms an epoch)
//   + hoist: features aggregated once, 0.00288 MB; saves 0.00151 ms an epoch
//   - order: every aggregation runs at its narrower side already
//   + fuse: 4 fewer passes over the rows, 2 of them made in the cache by the kernel before; saves 0.00888 MB an epoch that need not leave the cache and come back
//   - storage: float32 rows; storage='bfloat16' halves what edges read
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
// clang-format on
#include <chrono>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "arrays.h"
#include "exchange.h"
#include "options.h"
#include "peak_memory.h"
#include "ranks.h"
#include "training.h"

namespace program {
namespace {

const Command kCommand{"mpirun -n 2 train", false};
constexpr int kRanks = 2;
constexpr int64_t kEpochs = 20;
// clang-format off

// ---- Weights, in the order of the model

enum ParameterOf { w_convs_0_bias, w_convs_0_lin_weight, w_convs_1_bias, w_convs_1_lin_weight };

Weights make_weights() {
  Weights weights;
  weights.parameters.emplace_back("convs.0.bias", std::vector<int64_t>{16}, true);
  weights.parameters.emplace_back("convs.0.lin.weight", std::vector<int64_t>{16, 12}, true);
  weights.parameters.emplace_back("convs.1.bias", std::vector<int64_t>{5}, true);
  weights.parameters.emplace_back("convs.1.lin.weight", std::vector<int64_t>{5, 16}, true);
  return weights;
}

// ---- What differs from rank to rank: sizes, and the digests of the rank's arrays

struct Numbers {
  static constexpr uint64_t kDigests[kRanks] = {0x440629c97b66d62c, 0xa0eb7a424d18f91c};  // of all numbers of a rank
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
  Array send0;
  Array send_rows1;
  Array receive_rows2;
  Array nodes3;
  Array rows4;
  Array indptr5;
  Array indices6;
  Array src_scale7;
  Array dst_scale8;
  Array indptr9;
  Array indices10;
  Array src_scale11;
  Array indptr12;
  Array indices13;
  Array indptr14;
  Array indices15;
  Array indptr16;
  Array indices17;
  Array send18;
  Array send_rows19;
  Array receive_rows20;
  Array indptr21;
  Array indices22;
  Array rows23;
  Array src_scale24;
  Array dst_scale25;
  Array indptr26;
  Array indices27;
  Array src_scale28;
  Array dst_scale29;
  Array indptr30;
  Array indices31;
  Array src_scale32;
  Array train_rows33;
  Array train_labels34;
  Array split_train_rows35;
  Array split_train_labels36;
  Array split_val_rows37;
  Array split_val_labels38;
  Array split_test_rows39;
  Array split_test_labels40;

  Plan(const std::string& plan, [[maybe_unused]] const int64_t* sizes, const std::vector<uint64_t>& digests)
      : send0(plan + "/send0.npy", "<i8", {sizes[8]}, digests[0]),
        send_rows1(plan + "/send_rows1.npy", "<i8", {2}, digests[1]),
        receive_rows2(plan + "/receive_rows2.npy", "<i8", {2}, digests[2]),
        nodes3(plan + "/nodes3.npy", "<i8", {sizes[9]}, digests[3]),
        rows4(plan + "/rows4.npy", "<f4", {sizes[9], 12}, digests[4]),
        indptr5(plan + "/indptr5.npy", "<i8", {sizes[11]}, digests[5]),
        indices6(plan + "/indices6.npy", "<i4", {sizes[12]}, digests[6]),
        src_scale7(plan + "/src_scale7.npy", "<f4", {sizes[9]}, digests[7]),
        dst_scale8(plan + "/dst_scale8.npy", "<f4", {sizes[13]}, digests[8]),
        indptr9(plan + "/indptr9.npy", "<i8", {sizes[11]}, digests[9]),
        indices10(plan + "/indices10.npy", "<i4", {sizes[14]}, digests[10]),
        src_scale11(plan + "/src_scale11.npy", "<f4", {sizes[10]}, digests[11]),
        indptr12(plan + "/indptr12.npy", "<i8", {sizes[15]}, digests[12]),
        indices13(plan + "/indices13.npy", "<i4", {sizes[14]}, digests[13]),
        indptr14(plan + "/indptr14.npy", "<i8", {sizes[16]}, digests[14]),
        indices15(plan + "/indices15.npy", "<i4", {sizes[12]}, digests[15]),
        indptr16(plan + "/indptr16.npy", "<i8", {sizes[16]}, digests[16]),
        indices17(plan + "/indices17.npy", "<i4", {sizes[8]}, digests[17]),
        send18(plan + "/send18.npy", "<i8", {sizes[21]}, digests[18]),
        send_rows19(plan + "/send_rows19.npy", "<i8", {2}, digests[19]),
        receive_rows20(plan + "/receive_rows20.npy", "<i8", {2}, digests[20]),
        indptr21(plan + "/indptr21.npy", "<i8", {sizes[22]}, digests[21]),
        indices22(plan + "/indices22.npy", "<i4", {sizes[23]}, digests[22]),
        rows23(plan + "/rows23.npy", "<f4", {sizes[25], 12}, digests[23]),
        src_scale24(plan + "/src_scale24.npy", "<f4", {sizes[25]}, digests[24]),
        dst_scale25(plan + "/dst_scale25.npy", "<f4", {sizes[24]}, digests[25]),
        indptr26(plan + "/indptr26.npy", "<i8", {sizes[22]}, digests[26]),
        indices27(plan + "/indices27.npy", "<i4", {sizes[27]}, digests[27]),
        src_scale28(plan + "/src_scale28.npy", "<f4", {sizes[24]}, digests[28]),
        dst_scale29(plan + "/dst_scale29.npy", "<f4", {sizes[24]}, digests[29]),
        indptr30(plan + "/indptr30.npy", "<i8", {sizes[22]}, digests[30]),
        indices31(plan + "/indices31.npy", "<i4", {sizes[28]}, digests[31]),
        src_scale32(plan + "/src_scale32.npy", "<f4", {sizes[26]}, digests[32]),
        train_rows33(plan + "/train_rows33.npy", "<i8", {sizes[13]}, digests[33]),
        train_labels34(plan + "/train_labels34.npy", "<i8", {sizes[13]}, digests[34]),
        split_train_rows35(plan + "/split_train_rows35.npy", "<i8", {sizes[13]}, digests[35]),
        split_train_labels36(plan + "/split_train_labels36.npy", "<i8", {sizes[13]}, digests[36]),
        split_val_rows37(plan + "/split_val_rows37.npy", "<i8", {sizes[30]}, digests[37]),
        split_val_labels38(plan + "/split_val_labels38.npy", "<i8", {sizes[30]}, digests[38]),
        split_test_rows39(plan + "/split_test_rows39.npy", "<i8", {sizes[31]}, digests[39]),
        split_test_labels40(plan + "/split_test_labels40.npy", "<i8", {sizes[31]}, digests[40]) {}
};

// ---- The training step's arena: where each buffer begins

struct TrainPlaces {
  const int64_t* sizes;
  int64_t kV4 = 0;  // v4: n x 16, tasks 0 to 14
  int64_t kV5 = sizes[0];  // v5: n x 5, tasks 1 to 3
  int64_t kV7RowsToSend = sizes[1];  // v7: rows to send: n x 5, tasks 2 to 4
  int64_t kV7Halo = sizes[2];  // v7: halo: n x 5, tasks 2 to 5
  int64_t kV7 = sizes[3];  // v7: n x 5, tasks 3 to 7
  int64_t kGradientOfTheOutput = sizes[0];  // gradient of the output: n x 5, tasks 6 to 10
  int64_t kV7GradientOfTheHalo = sizes[4];  // v7: gradient of the halo: n x 5, tasks 8 to 11
  int64_t kV7ReturnedGradients = sizes[5];  // v7: returned gradients: n x 5, tasks 9 to 11
  int64_t kGradientOfV5 = sizes[6];  // gradient of v5: n x 5, tasks 10 to 13
  int64_t kGradientOfV4 = sizes[0];  // gradient of v4: n x 16, tasks 13 to 15
};

// ---- The arena of an evaluation: where each buffer begins

struct EvaluatePlaces {
  const int64_t* sizes;
  int64_t kV1Rows = sizes[17];  // v1_rows: n x 12, tasks 0 to 1
  int64_t kV3 = 0;  // v3: n x 16, tasks 1 to 2
  int64_t kV4 = sizes[17];  // v4: n x 5, tasks 2 to 4
  int64_t kV6RowsToSend = sizes[18];  // v6: rows to send: n x 5, tasks 3 to 5
  int64_t kV6Halo = sizes[19];  // v6: halo: n x 5, tasks 3 to 6
  int64_t kV6 = 0;  // v6: n x 5, tasks 4 to 7
};

class Program {
 public:
  Program(Ranks& ranks_, const std::string& plan_folder, const std::string& first_weights)
      : ranks(ranks_),
        numbers(plan_folder, ranks.rank()),
        sizes(numbers.sizes),
        plan(plan_folder, sizes, numbers.digests),
        weights(make_weights()) {
    weights.load(first_weights);
    ranks.require_alike(weights.digest(), "first weights");
  }

  // The outputs.
  void forward() {
    for (uint64_t& seed : seeds) seed = random.draw();
    {  // v4 = linear(v1_once): 12 -> 16, then bias, relu, dropout 0.5  [level 1, 16 columns]
      const gb::Epilogue after = row_epilogue(value(w_convs_0_bias), 1, 0.01, 0.5, seeds[0], plan.nodes3.int64s());
      tall_product(ConstMatrix{plan.rows4.floats(), sizes[9], 12, 12}, ConstMatrix{value(w_convs_0_lin_weight), 12, 16, 1, 12}, train.matrix(train_at.kV4, sizes[9], 16, 16, 1), false, nullptr, &after);
    }
    {  // v5 = linear(v4): 16 -> 5  [level 1, 5 columns]
      tall_product(train.matrix(train_at.kV4, sizes[9], 16, 16, 1), ConstMatrix{value(w_convs_1_lin_weight), 16, 5, 1, 16}, train.matrix(train_at.kV5, sizes[9], 5, 5, 1), false, nullptr, nullptr);
    }
    {  // v7: rows depart
      train_exchange0.begin(train.matrix(train_at.kV5, sizes[9], 5, 5, 1), train.matrix(train_at.kV7RowsToSend, sizes[8], 5, 5, 1), train.matrix(train_at.kV7Halo, sizes[10], 5, 5, 1));
    }
    {  // v7: own rows
      spmm(Edges{plan.indptr5.int64s(), plan.indices6.values(), false, sizes[13], sizes[12]}, train.matrix(train_at.kV5, sizes[9], 5, 5, 1), Factors{nullptr, plan.src_scale7.floats(), plan.dst_scale8.floats(), nullptr}, 1.0, sizes[13], true, false, {}, train.matrix(train_at.kV7, sizes[13], 5, 5, 1), nullptr);
    }
    {  // v7: wait
      train_exchange0.wait();
    }
    {  // v7 = aggregate(v5 and halo): gcn weighted + 1 I, then bias  [level 3, 5 columns]
      const gb::Epilogue after = row_epilogue(value(w_convs_1_bias), 0, 0.01, 0.0, 0, nullptr);
      spmm(Edges{plan.indptr9.int64s(), plan.indices10.values(), false, sizes[13], sizes[14]}, train.matrix(train_at.kV7Halo, sizes[10], 5, 5, 1), Factors{nullptr, plan.src_scale11.floats(), plan.dst_scale8.floats(), nullptr}, 0.0, 0, false, false, train.matrix(train_at.kV7, sizes[13], 5, 5, 1), train.matrix(train_at.kV7, sizes[13], 5, 5, 1), &after);
    }
  }

  // The gradients of all parameters, from that of the outputs.
  void backward() {
    {  // gradient of v6
      epilogue_backward(train.matrix(train_at.kGradientOfTheOutput, sizes[13], 5, 5, 1), train.matrix(train_at.kV7, sizes[13], 5, 5, 1), row_epilogue(nullptr, 0, 0.01, 0.0, 0, nullptr), train.matrix(train_at.kGradientOfTheOutput, sizes[13], 5, 5, 1), gradient(w_convs_1_bias));
    }
    ranks.begin_sum(weights.parameters[w_convs_1_bias].grad);
    {  // gradient of v5: halo
      spmm(Edges{plan.indptr12.int64s(), plan.indices13.values(), false, sizes[10], sizes[14]}, train.matrix(train_at.kGradientOfTheOutput, sizes[13], 5, 5, 1), Factors{nullptr, plan.dst_scale8.floats(), plan.src_scale11.floats(), nullptr}, 0.0, 0, false, false, {}, train.matrix(train_at.kV7GradientOfTheHalo, sizes[10], 5, 5, 1), nullptr);
    }
    {  // gradient of v5: depart
      train_exchange0.begin_back(train.matrix(train_at.kV7GradientOfTheHalo, sizes[10], 5, 5, 1), train.matrix(train_at.kV7ReturnedGradients, sizes[8], 5, 5, 1));
    }
    {  // gradient of v5: own
      spmm(Edges{plan.indptr14.int64s(), plan.indices15.values(), false, sizes[9], sizes[12]}, train.matrix(train_at.kGradientOfTheOutput, sizes[13], 5, 5, 1), Factors{nullptr, plan.dst_scale8.floats(), plan.src_scale7.floats(), nullptr}, 1.0, sizes[13], true, false, {}, train.matrix(train_at.kGradientOfV5, sizes[9], 5, 5, 1), nullptr);
    }
    {  // gradient of v5
      train_exchange0.wait();
      spmm(Edges{plan.indptr16.int64s(), plan.indices17.values(), false, sizes[9], sizes[8]}, train.matrix(train_at.kV7ReturnedGradients, sizes[8], 5, 5, 1), Factors{nullptr, nullptr, nullptr, nullptr}, 0.0, 0, false, false, train.matrix(train_at.kGradientOfV5, sizes[9], 5, 5, 1), train.matrix(train_at.kGradientOfV5, sizes[9], 5, 5, 1), nullptr);
    }
    {  // gradient of v5's weight
      tall_gram(train.matrix(train_at.kGradientOfV5, sizes[9], 5, 5, 1), train.matrix(train_at.kV4, sizes[9], 16, 16, 1), Matrix{gradient(w_convs_1_lin_weight), 5, 16, 16}, nullptr);
    }
    ranks.begin_sum(weights.parameters[w_convs_1_lin_weight].grad);
    {  // gradient of v4
      tall_product(train.matrix(train_at.kGradientOfV5, sizes[9], 5, 5, 1), ConstMatrix{value(w_convs_1_lin_weight), 5, 16, 16}, train.matrix(train_at.kGradientOfV4, sizes[9], 16, 16, 1), false, nullptr, nullptr);
    }
    {  // gradient of v1
      epilogue_backward(train.matrix(train_at.kGradientOfV4, sizes[9], 16, 16, 1), train.matrix(train_at.kV4, sizes[9], 16, 16, 1), row_epilogue(nullptr, 1, 0.01, 0.5, seeds[0], plan.nodes3.int64s()), train.matrix(train_at.kGradientOfV4, sizes[9], 16, 16, 1), gradient(w_convs_0_bias));
    }
    ranks.begin_sum(weights.parameters[w_convs_0_bias].grad);
    {  // gradient of v4's weight
      tall_gram(train.matrix(train_at.kGradientOfV4, sizes[9], 16, 16, 1), ConstMatrix{plan.rows4.floats(), sizes[9], 12, 12}, Matrix{gradient(w_convs_0_lin_weight), 16, 12, 12}, nullptr);
    }
    ranks.begin_sum(weights.parameters[w_convs_0_lin_weight].grad);
    ranks.finish_sums();
  }

  // The outputs of all nodes, without dropout.
  void predict() {
    {  // v1_rows
      spmm(Edges{plan.indptr21.int64s(), plan.indices22.values(), false, sizes[24], sizes[23]}, ConstMatrix{plan.rows23.floats(), sizes[25], 12, 12}, Factors{nullptr, plan.src_scale24.floats(), plan.dst_scale25.floats(), nullptr}, 1.0, sizes[24], true, false, {}, evaluate.matrix(evaluate_at.kV1Rows, sizes[24], 12, 12, 1), nullptr);
    }
    {  // v3
      const gb::Epilogue after = row_epilogue(value(w_convs_0_bias), 1, 0.01, 0.0, 0, nullptr);
      tall_product(evaluate.matrix(evaluate_at.kV1Rows, sizes[24], 12, 12, 1), ConstMatrix{value(w_convs_0_lin_weight), 12, 16, 1, 12}, evaluate.matrix(evaluate_at.kV3, sizes[24], 16, 16, 1), false, nullptr, &after);
    }
    {  // v4
      tall_product(evaluate.matrix(evaluate_at.kV3, sizes[24], 16, 16, 1), ConstMatrix{value(w_convs_1_lin_weight), 16, 5, 1, 16}, evaluate.matrix(evaluate_at.kV4, sizes[24], 5, 5, 1), false, nullptr, nullptr);
    }
    {  // v6: rows depart
      evaluate_exchange0.begin(evaluate.matrix(evaluate_at.kV4, sizes[24], 5, 5, 1), evaluate.matrix(evaluate_at.kV6RowsToSend, sizes[21], 5, 5, 1), evaluate.matrix(evaluate_at.kV6Halo, sizes[26], 5, 5, 1));
    }
    {  // v6: own rows
      spmm(Edges{plan.indptr26.int64s(), plan.indices27.values(), false, sizes[24], sizes[27]}, evaluate.matrix(evaluate_at.kV4, sizes[24], 5, 5, 1), Factors{nullptr, plan.src_scale28.floats(), plan.dst_scale29.floats(), nullptr}, 1.0, sizes[24], true, false, {}, evaluate.matrix(evaluate_at.kV6, sizes[24], 5, 5, 1), nullptr);
    }
    {  // v6: wait
      evaluate_exchange0.wait();
    }
    {  // v6
      const gb::Epilogue after = row_epilogue(value(w_convs_1_bias), 0, 0.01, 0.0, 0, nullptr);
      spmm(Edges{plan.indptr30.int64s(), plan.indices31.values(), false, sizes[24], sizes[28]}, evaluate.matrix(evaluate_at.kV6Halo, sizes[26], 5, 5, 1), Factors{nullptr, plan.src_scale32.floats(), plan.dst_scale29.floats(), nullptr}, 0.0, 0, false, false, evaluate.matrix(evaluate_at.kV6, sizes[24], 5, 5, 1), evaluate.matrix(evaluate_at.kV6, sizes[24], 5, 5, 1), &after);
    }
  }

  // The loss of the training nodes, whose gradient starts the backward pass.
  double loss() {
    return ranks.sum(cross_entropy(train.matrix(train_at.kV7, sizes[13], 5, 5, 1), plan.train_rows33.int64s(), plan.train_labels34.int64s(), sizes[13], 30, train.matrix(train_at.kGradientOfTheOutput, sizes[13], 5, 5, 1)));
  }

  double accuracy_train() {
    const int64_t right = num_right(evaluate.matrix(evaluate_at.kV6, sizes[24], 5, 5, 1), plan.split_train_rows35.int64s(), plan.split_train_labels36.int64s(), sizes[13]);
    return ranks.sum(static_cast<double>(right)) / 30;
  }

  double accuracy_val() {
    const int64_t right = num_right(evaluate.matrix(evaluate_at.kV6, sizes[24], 5, 5, 1), plan.split_val_rows37.int64s(), plan.split_val_labels38.int64s(), sizes[30]);
    return ranks.sum(static_cast<double>(right)) / 20;
  }

  double accuracy_test() {
    const int64_t right = num_right(evaluate.matrix(evaluate_at.kV6, sizes[24], 5, 5, 1), plan.split_test_rows39.int64s(), plan.split_test_labels40.int64s(), sizes[31]);
    return ranks.sum(static_cast<double>(right)) / 30;
  }

  Ranks& ranks;
  Numbers numbers;
  const int64_t* sizes;
  Plan plan;
  Weights weights;
  Optimizer optimizer{Optimizer::kAdam, 0.01, 0.0, 0.9, 0.999, 0.0, 1e-08};

 private:
  float* value(ParameterOf p) { return weights.parameters[p].value.data(); }
  float* gradient(ParameterOf p) { return weights.parameters[p].grad.data(); }

  // An evaluation follows a whole step, so that both have one memory.
  Arena memory{sizes[29]};  // bytes
  Arena &train = memory, &evaluate = memory;
  const TrainPlaces train_at{sizes};
  Exchange train_exchange0{ranks, 0, plan.send0.int64s(), plan.send_rows1.int64s(), plan.receive_rows2.int64s(), sizes[8]};
  const EvaluatePlaces evaluate_at{sizes};
  Exchange evaluate_exchange0{ranks, 1, plan.send18.int64s(), plan.send_rows19.int64s(), plan.receive_rows20.int64s(), sizes[21]};
  Seeds random{0};
  uint64_t seeds[1] = {};  // of the masks of dropout in this step
};

// clang-format on

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void run(Ranks& ranks, const Options& options, double started) {
  const std::string first_weights = options.load.empty() ? options.home + "/weights" : options.load;
  Program program(ranks, options.home + "/plan/rank-" + std::to_string(ranks.rank()), first_weights);
  std::printf("seconds to load %.6f\n", seconds() - started);
  double total = 0;
  int64_t num_epochs = 0, num_sent = 0;
  for (int64_t epoch = 0; epoch < options.epochs; ++epoch) {
    ranks.forget_sent();
    const double begin = seconds();
    program.forward();
    const double loss = program.loss();
    require_finite(loss, epoch);
    program.backward();
    program.optimizer.step(program.weights.parameters);
    const double taken = seconds() - begin;
    total += taken;
    ++num_epochs;
    num_sent += ranks.sent_bytes();
    std::printf("epoch %lld loss %.9g seconds %.6f\n", static_cast<long long>(epoch), loss, taken);
    if (epoch % 5 == 4) {
      program.predict();
      const double of_val = program.accuracy_val();
      std::printf("epoch %lld val %.6f\n", static_cast<long long>(epoch), of_val);
    }
  }
  program.predict();
  std::printf("accuracy train %.6f\n", program.accuracy_train());
  std::printf("accuracy val %.6f\n", program.accuracy_val());
  std::printf("accuracy test %.6f\n", program.accuracy_test());
  if (num_epochs > 0) std::printf("seconds per epoch %.6f\n", total / static_cast<double>(num_epochs));
  const double sent = ranks.sum(static_cast<double>(num_sent));
  const double peak = ranks.sum(static_cast<double>(peak_memory()));
  if (num_epochs > 0) std::printf("bytes sent per epoch %.0f\n", sent / static_cast<double>(num_epochs));
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
                                " ranks and started on " + std::to_string(ranks.size()));
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
