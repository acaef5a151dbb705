// The seeds of dropout, the check of the loss, and the early stop.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace program {

// Throws std::runtime_error if the loss is not finite: training cannot go on. `line` is that of the program's
// forward pass.
void require_finite(double loss, int64_t epoch, int line);

// The seeds of dropout's masks: those that PyTorch draws after torch.manual_seed(seed).
class Seeds {
 public:
  explicit Seeds(uint32_t seed) : bits_(seed) {}
  uint64_t draw();

 private:
  std::mt19937 bits_;
};

// Whether a split's accuracy has not become better in the last `patience` evaluations.
bool is_over(const std::vector<double>& accuracies, int64_t patience);

}  // namespace program
