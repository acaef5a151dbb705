// The parameters on a GPU, and their update.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "epochs.h"
#include "gpu_memory.h"
#include "kernels.h"
#include "optimizer.h"
#include "weights.h"

namespace program {

// Weights whose values are on the GPU while training runs. Parameters that learn come first, so that one
// kernel updates them all. Each parameter begins at a multiple of kAlign floats.
class DeviceWeights {
 public:
  DeviceWeights(Memory& memory, Weights weights);

  // Both throw std::runtime_error.
  void load(const std::string& folder);
  void save(const std::string& folder);
  // Changes the parameters that learn by their gradients.
  void update(Update step);

  float* value(size_t parameter) { return values_ + places_[parameter]; }
  float* gradient(size_t parameter) { return gradients_ + places_[parameter]; }
  int64_t& counter(size_t number) { return weights_.counters[number].value; }

 private:
  Weights weights_;  // the values as they were loaded or saved last
  std::vector<int64_t> places_;
  int64_t num_learning_ = 0, num_all_ = 0;  // floats, with the gaps between parameters
  float *values_, *gradients_, *first_, *second_;
};

}  // namespace program
