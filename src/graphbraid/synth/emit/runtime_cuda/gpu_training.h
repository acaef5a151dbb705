// What surrounds the kernels in training on a GPU: parameters and their update.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "epochs.h"
#include "gpu_kernels.h"
#include "gpu_memory.h"
#include "weights.h"

namespace program {

// Weights whose values are the GPU's while training runs. Parameters that learn come first, so that one
// kernel updates them all; each begins at kAlign floats.
class DeviceWeights {
 public:
  DeviceWeights(Memory& memory, Weights weights);

  // Both throw std::runtime_error.
  void load(const std::string& folder);
  void save(const std::string& folder);

  float* value(size_t parameter) { return values_ + places_[parameter]; }
  float* gradient(size_t parameter) { return gradients_ + places_[parameter]; }
  int64_t& counter(size_t number) { return weights_.counters[number].value; }

 private:
  friend struct Optimizer;
  Weights weights_;  // the values as they were loaded or saved last
  std::vector<int64_t> places_;
  int64_t num_learning_ = 0, num_all_ = 0;  // floats, with what lies between parameters
  float *values_, *gradients_, *first_, *second_;
};

// The rules of PyTorch's SGD, Adam and AdamW.
struct Optimizer {
  enum Kind { kSgd, kAdam, kAdamW };
  Kind kind;
  double learning_rate = 0, momentum = 0, beta1 = 0, beta2 = 0, weight_decay = 0, eps = 0;
  int64_t num_steps = 0;

  void step(DeviceWeights& weights);
};

}  // namespace program
