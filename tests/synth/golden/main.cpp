// Train: full-graph training
//
// Written by graphbraid 0.1.0 (format 5). It trains on its own: no Python, no PyTorch.
//
// Every line is a task of graphbraid's full-graph engine: the same kernels (csrc/), in the same order, on the
// same places of one allocation. The arrays of plan/ are what the engine made of the graph before its first
// step. What was decided before, for the graph in the store that this was written for:
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
// clang-format on
#include <chrono>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "arrays.h"
#include "options.h"
#include "peak_memory.h"
#include "training.h"

namespace program {
namespace {

const Command kCommand{"train", true, {"dense"}};
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

// ---- Arrays: files of the store, and those that were made of it, each with the digest of its values

struct Plan {
  Array nodes0;
  Array rows1;
  Array src_scale2;
  Array dst_scale3;
  Array indptr4;
  Array indices5;
  Array indptr6;
  Array indices7;
  Array src_scale8;
  Array indptr;
  Array indices;
  Array x;
  Array train_rows12;
  Array train_labels13;
  Array split_train_rows14;
  Array split_train_labels15;
  Array split_val_rows16;
  Array split_val_labels17;
  Array split_test_rows18;
  Array split_test_labels19;

  Plan([[maybe_unused]] const std::string& store, const std::string& plan)
      : nodes0(plan + "/nodes0.npy", "<i8", {60}, 0x4110e5ef134ef0c1),
        rows1(plan + "/rows1.npy", "<f4", {60, 12}, 0x89eca0064d478f3d),
        src_scale2(plan + "/src_scale2.npy", "<f4", {60}, 0x2b978f883c87afd9),
        dst_scale3(plan + "/dst_scale3.npy", "<f4", {30}, 0x8b39ee5a08697161),
        indptr4(plan + "/indptr4.npy", "<i8", {31}, 0x3ddb46189e2cbf0c),
        indices5(plan + "/indices5.npy", "<i4", {85}, 0x64a2bc10dc2dae7d),
        indptr6(plan + "/indptr6.npy", "<i8", {61}, 0xfddde5a3bcd1fc04),
        indices7(plan + "/indices7.npy", "<i4", {85}, 0x5ee80374339bc903),
        src_scale8(plan + "/src_scale8.npy", "<f4", {80}, 0xfb644d4f2f1d82d1),
        indptr(store + "/indptr.npy", "<i8", {81}, 0xc97e3a567e47281f),
        indices(store + "/indices.npy", "<i4", {310}, 0xe8175674ea544852),
        x(store + "/x.npy", "<f4", {80, 12}, 0xdc97dad662f7fb68),
        train_rows12(plan + "/train_rows12.npy", "<i8", {30}, 0xdba7da1ce27b2070),
        train_labels13(plan + "/train_labels13.npy", "<i8", {30}, 0xc25fa8f6a22a20a3),
        split_train_rows14(plan + "/split_train_rows14.npy", "<i8", {30}, 0x237995c46a750821),
        split_train_labels15(plan + "/split_train_labels15.npy", "<i8", {30}, 0xc25fa8f6a22a20a3),
        split_val_rows16(plan + "/split_val_rows16.npy", "<i8", {20}, 0xe66f41c5e176780f),
        split_val_labels17(plan + "/split_val_labels17.npy", "<i8", {20}, 0x6918d58d2f7b02fe),
        split_test_rows18(plan + "/split_test_rows18.npy", "<i8", {30}, 0x2d3fda960159b351),
        split_test_labels19(plan + "/split_test_labels19.npy", "<i8", {30}, 0x773c4c0c7e580fa5) {}
};

// ---- The training step's arena: where each buffer begins, of 8896 bytes

namespace train_places {
[[maybe_unused]] constexpr int64_t kV4 = 0;  // v4: 60 x 16, tasks 0 to 8
[[maybe_unused]] constexpr int64_t kV5 = 3840;  // v5: 60 x 5, tasks 1 to 2
[[maybe_unused]] constexpr int64_t kV7 = 5056;  // v7: 30 x 5, tasks 2 to 4
[[maybe_unused]] constexpr int64_t kGradientOfTheOutput = 3840;  // gradient of the output: 30 x 5, tasks 3 to 5
[[maybe_unused]] constexpr int64_t kGradientOfV5 = 7680;  // gradient of v5: 60 x 5, tasks 5 to 7
[[maybe_unused]] constexpr int64_t kGradientOfV4 = 3840;  // gradient of v4: 60 x 16, tasks 7 to 9
}  // namespace train_places

// ---- The arena of an evaluation: where each buffer begins, of 8960 bytes

namespace evaluate_places {
[[maybe_unused]] constexpr int64_t kV1Rows = 5120;  // v1_rows: 80 x 12, tasks 0 to 1
[[maybe_unused]] constexpr int64_t kV3 = 0;  // v3: 80 x 16, tasks 1 to 2
[[maybe_unused]] constexpr int64_t kV4 = 5120;  // v4: 80 x 5, tasks 2 to 3
[[maybe_unused]] constexpr int64_t kV6 = 0;  // v6: 80 x 5, tasks 3 to 4
}  // namespace evaluate_places

class Program {
 public:
  Program(const std::string& store, const std::string& plan_folder, const std::string& first_weights)
      : plan(store, plan_folder), weights(make_weights()) {
    weights.load(first_weights);
  }

  // The outputs.
  void forward() {
    using namespace train_places;
    for (uint64_t& seed : seeds) seed = random.draw();
    {  // v4 = linear(v1_once): 12 -> 16, then bias, relu, dropout 0.5  [level 1, 16 columns]
      const gb::Epilogue after = row_epilogue(value(w_convs_0_bias), 1, 0.01, 0.5, seeds[0], plan.nodes0.int64s());
      tall_product(ConstMatrix{plan.rows1.floats(), 60, 12, 12}, ConstMatrix{value(w_convs_0_lin_weight), 12, 16, 1, 12}, train.matrix(kV4, 60, 16, 16, 1), false, nullptr, &after);
    }
    {  // v5 = linear(v4): 16 -> 5  [level 1, 5 columns]
      tall_product(train.matrix(kV4, 60, 16, 16, 1), ConstMatrix{value(w_convs_1_lin_weight), 16, 5, 1, 16}, train.matrix(kV5, 60, 5, 5, 1), false, nullptr, nullptr);
    }
    {  // v7 = aggregate(v5): gcn weighted + 1 I, then bias  [level 2, 5 columns]
      const gb::Epilogue after = row_epilogue(value(w_convs_1_bias), 0, 0.01, 0.0, 0, nullptr);
      spmm(Edges{plan.indptr4.int64s(), plan.indices5.values(), false, 30, 85}, train.matrix(kV5, 60, 5, 5, 1), Factors{nullptr, plan.src_scale2.floats(), plan.dst_scale3.floats(), nullptr}, 1.0, 30, true, false, {}, train.matrix(kV7, 30, 5, 5, 1), &after);
    }
  }

  // The gradients of all parameters, from that of the outputs.
  void backward() {
    using namespace train_places;
    {  // gradient of v6
      epilogue_backward(train.matrix(kGradientOfTheOutput, 30, 5, 5, 1), train.matrix(kV7, 30, 5, 5, 1), row_epilogue(nullptr, 0, 0.01, 0.0, 0, nullptr), train.matrix(kGradientOfTheOutput, 30, 5, 5, 1), gradient(w_convs_1_bias));
    }
    {  // gradient of v5
      spmm(Edges{plan.indptr6.int64s(), plan.indices7.values(), false, 60, 85}, train.matrix(kGradientOfTheOutput, 30, 5, 5, 1), Factors{nullptr, plan.dst_scale3.floats(), plan.src_scale2.floats(), nullptr}, 1.0, 30, true, false, {}, train.matrix(kGradientOfV5, 60, 5, 5, 1), nullptr);
    }
    {  // gradient of v5's weight
      tall_gram(train.matrix(kGradientOfV5, 60, 5, 5, 1), train.matrix(kV4, 60, 16, 16, 1), Matrix{gradient(w_convs_1_lin_weight), 5, 16, 16}, nullptr);
    }
    {  // gradient of v4
      tall_product(train.matrix(kGradientOfV5, 60, 5, 5, 1), ConstMatrix{value(w_convs_1_lin_weight), 5, 16, 16}, train.matrix(kGradientOfV4, 60, 16, 16, 1), false, nullptr, nullptr);
    }
    {  // gradient of v1
      epilogue_backward(train.matrix(kGradientOfV4, 60, 16, 16, 1), train.matrix(kV4, 60, 16, 16, 1), row_epilogue(nullptr, 1, 0.01, 0.5, seeds[0], plan.nodes0.int64s()), train.matrix(kGradientOfV4, 60, 16, 16, 1), gradient(w_convs_0_bias));
    }
    {  // gradient of v4's weight
      tall_gram(train.matrix(kGradientOfV4, 60, 16, 16, 1), ConstMatrix{plan.rows1.floats(), 60, 12, 12}, Matrix{gradient(w_convs_0_lin_weight), 16, 12, 12}, nullptr);
    }
  }

  // The outputs of all nodes, without dropout.
  void predict() {
    using namespace evaluate_places;
    {  // v1_rows
      spmm(Edges{plan.indptr.int64s(), plan.indices.values(), false, 80, 310}, ConstMatrix{plan.x.floats(), 80, 12, 12}, Factors{nullptr, plan.src_scale8.floats(), plan.src_scale8.floats(), nullptr}, 1.0, 80, true, false, {}, evaluate.matrix(kV1Rows, 80, 12, 12, 1), nullptr);
    }
    {  // v3
      const gb::Epilogue after = row_epilogue(value(w_convs_0_bias), 1, 0.01, 0.0, 0, nullptr);
      tall_product(evaluate.matrix(kV1Rows, 80, 12, 12, 1), ConstMatrix{value(w_convs_0_lin_weight), 12, 16, 1, 12}, evaluate.matrix(kV3, 80, 16, 16, 1), false, nullptr, &after);
    }
    {  // v4
      tall_product(evaluate.matrix(kV3, 80, 16, 16, 1), ConstMatrix{value(w_convs_1_lin_weight), 16, 5, 1, 16}, evaluate.matrix(kV4, 80, 5, 5, 1), false, nullptr, nullptr);
    }
    {  // v6
      const gb::Epilogue after = row_epilogue(value(w_convs_1_bias), 0, 0.01, 0.0, 0, nullptr);
      spmm(Edges{plan.indptr.int64s(), plan.indices.values(), false, 80, 310}, evaluate.matrix(kV4, 80, 5, 5, 1), Factors{nullptr, plan.src_scale8.floats(), plan.src_scale8.floats(), nullptr}, 1.0, 80, true, false, {}, evaluate.matrix(kV6, 80, 5, 5, 1), &after);
    }
  }

  // The loss of the training nodes, whose gradient starts the backward pass.
  double loss() {
    using namespace train_places;
    return cross_entropy(train.matrix(kV7, 30, 5, 5, 1), plan.train_rows12.int64s(), plan.train_labels13.int64s(), 30, 30, train.matrix(kGradientOfTheOutput, 30, 5, 5, 1));
  }

  double accuracy_train() {
    using namespace evaluate_places;
    return static_cast<double>(num_right(evaluate.matrix(kV6, 80, 5, 5, 1), plan.split_train_rows14.int64s(), plan.split_train_labels15.int64s(), 30)) / 30;
  }

  double accuracy_val() {
    using namespace evaluate_places;
    return static_cast<double>(num_right(evaluate.matrix(kV6, 80, 5, 5, 1), plan.split_val_rows16.int64s(), plan.split_val_labels17.int64s(), 20)) / 20;
  }

  double accuracy_test() {
    using namespace evaluate_places;
    return static_cast<double>(num_right(evaluate.matrix(kV6, 80, 5, 5, 1), plan.split_test_rows18.int64s(), plan.split_test_labels19.int64s(), 30)) / 30;
  }

  Plan plan;
  Weights weights;
  Optimizer optimizer{Optimizer::kAdam, 0.01, 0.0, 0.9, 0.999, 0.0, 1e-08};

 private:
  float* value(ParameterOf p) { return weights.parameters[p].value.data(); }
  float* gradient(ParameterOf p) { return weights.parameters[p].grad.data(); }

  // An evaluation follows a whole step, so that both have one memory.
  Arena memory{8960};  // bytes
  Arena &train = memory, &evaluate = memory;
  Seeds random{0};
  uint64_t seeds[1] = {};  // of the masks of dropout in this step
};

// clang-format on

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void run(const Options& options, double started) {
  const std::string first_weights = options.load.empty() ? options.home + "/weights" : options.load;
  Program program(options.data, options.home + "/plan", first_weights);
  std::printf("seconds to load %.6f\n", seconds() - started);
  double total = 0;
  int64_t num_epochs = 0;
  for (int64_t epoch = 0; epoch < options.epochs; ++epoch) {
    const double begin = seconds();
    program.forward();
    const double loss = program.loss();
    require_finite(loss, epoch);
    program.backward();
    program.optimizer.step(program.weights.parameters);
    const double taken = seconds() - begin;
    total += taken;
    ++num_epochs;
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
  std::printf("peak memory %lld bytes\n", static_cast<long long>(peak_memory()));
  if (!options.save.empty()) program.weights.save(options.save);
}

void train(const Options& options) {
  const double started = seconds();
  std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);  // an epoch is shown when it is over, in a file too
  prepare_folders(options, kCommand);
  choose_variant();
  std::printf("input path dense: 100%% of the features are not zero\n");
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
