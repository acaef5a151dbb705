#include <utility>

#include "gpu.cuh"
#include "gpu_training.h"
#include "loss.cuh"

namespace program {
namespace {

constexpr int64_t kAlign = 64;  // each parameter begins at a multiple of so many floats

int64_t aligned(size_t floats) { return (static_cast<int64_t>(floats) + kAlign - 1) / kAlign * kAlign; }

size_t bytes_of(int64_t floats) { return static_cast<size_t>(floats) * sizeof(float); }

// The sum of the workspace's first `count` floats. The kernel writes it behind them as a double, whose place
// is an even number of floats away from the beginning.
double sum_of_workspace(int64_t count, float* numbers) {
  auto* sum = reinterpret_cast<double*>(numbers + (count + 1) / 2 * 2);
  launch_blocks("add_up", add_up, 1, numbers, count, sum);
  double found = 0;
  require(cudaMemcpy(&found, sum, sizeof found, cudaMemcpyDeviceToHost), "the step before its sum");
  return found;
}

float* workspace_for(int64_t count) {
  return static_cast<float*>(Workspace::begin(static_cast<int64_t>(bytes_of((count + 1) / 2 * 2 + 2))));
}

// The sum of a loss over all outputs of the labelled rows. Its gradient times `share` is written to `grad`.
template <typename Loss>
double sum_of(const LossInput& a, float share) {
  const int64_t all = a.nodes.count * a.outputs.columns;
  float* losses = workspace_for(all);
  launch("lose_elements", lose_elements<Loss>, all, a, share, losses);
  return sum_of_workspace(all, losses);
}

template <typename Loss>
double mean_of(const LossInput& a) {
  set_zero(a.grad);
  const double all = static_cast<double>(a.nodes.total * a.outputs.columns);
  return sum_of<Loss>(a, static_cast<float>(1.0 / all)) / all;
}

}  // namespace

DeviceWeights::DeviceWeights(Memory& memory, Weights weights)
    : weights_(std::move(weights)), places_(weights_.parameters.size()) {
  for (const bool learns : {true, false}) {
    for (size_t p = 0; p < places_.size(); ++p) {
      if (weights_.parameters[p].learns() != learns) continue;
      places_[p] = num_all_;
      num_all_ += aligned(weights_.parameters[p].value.size());
    }
    if (learns) num_learning_ = num_all_;
  }
  const int64_t count = num_all_ + 3 * num_learning_;
  values_ = static_cast<float*>(memory.take(static_cast<int64_t>(bytes_of(count))));
  gradients_ = values_ + num_all_;
  first_ = gradients_ + num_learning_;
  second_ = first_ + num_learning_;
  require(cudaMemset(values_, 0, bytes_of(count)), "the weights' zeros");
}

void DeviceWeights::load(const std::string& folder) {
  weights_.load(folder);
  for (size_t p = 0; p < places_.size(); ++p) {
    const std::vector<float>& from = weights_.parameters[p].value;
    require(cudaMemcpy(value(p), from.data(), from.size() * sizeof(float), cudaMemcpyHostToDevice),
            "the weights' upload");
  }
}

void DeviceWeights::save(const std::string& folder) {
  for (size_t p = 0; p < places_.size(); ++p) {
    std::vector<float>& to = weights_.parameters[p].value;
    require(cudaMemcpy(to.data(), value(p), to.size() * sizeof(float), cudaMemcpyDeviceToHost),
            "the weights' download");
  }
  weights_.save(folder);
}

void DeviceWeights::update(Update step) {
  launch("update", program::update, num_learning_, step, num_learning_, values_, gradients_, first_, second_);
}

double cross_entropy(const LossInput& a) {
  set_zero(a.grad);
  float* losses = workspace_for(a.nodes.count);
  launch("cross_entropy", lose, a.nodes.count * kWarp, a, losses);
  return sum_of_workspace(a.nodes.count, losses) / static_cast<double>(a.nodes.total);
}

int64_t num_right(ConstMatrix outputs, const LabelledRows& nodes) {
  float* right = workspace_for(nodes.count);
  launch("num_right", judge, nodes.count, outputs, nodes, right);
  return static_cast<int64_t>(sum_of_workspace(nodes.count, right));
}

double binary_cross_entropy(const LossInput& a) { return mean_of<BinaryLoss>(a); }

double mean_squared(const LossInput& a) { return mean_of<SquaredLoss>(a); }

int64_t num_right_signs(ConstMatrix outputs, const LabelledRows& nodes) {
  return static_cast<int64_t>(sum_of<RightSign>({outputs, nodes}, 0));
}

double squared_errors(ConstMatrix outputs, const LabelledRows& nodes) {
  return sum_of<SquaredLoss>({outputs, nodes}, 0);
}

}  // namespace program
