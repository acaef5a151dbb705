// What surrounds the kernels in training: parameters, their update, the loss, accuracy and the seeds of
// dropout.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels.h"

namespace program {

// A parameter with its gradient and what its optimizer keeps of earlier gradients; or numbers that are saved
// with the parameters but have no gradient, such as running statistics.
struct Parameter {
  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> value, grad, first, second;  // without a gradient: value alone

  Parameter(std::string name, std::vector<int64_t> shape, bool learns);
  bool learns() const { return !grad.empty(); }
};

// A number of steps that is saved with the parameters.
struct Counter {
  std::string name;
  int64_t value = 0;
};

// All that training changes and a folder of weights holds, with one .npy file each.
struct Weights {
  std::vector<Parameter> parameters;
  std::vector<Counter> counters;

  // Both throw std::runtime_error.
  void load(const std::string& folder);
  void save(const std::string& folder) const;
  // The digest of all values.
  uint64_t digest() const;
};

// The rules of PyTorch's SGD, Adam and AdamW.
struct Optimizer {
  enum Kind { kSgd, kAdam, kAdamW };
  Kind kind;
  double learning_rate, momentum, beta1, beta2, weight_decay, eps;
  int64_t num_steps = 0;

  void step(std::vector<Parameter>& parameters);
};

// The cross entropy of the outputs' `rows`, (count,), with `labels`, (count,), summed and divided by `total`,
// the number of all ranks' rows; writes its gradient, which is 0 elsewhere.
double cross_entropy(ConstMatrix outputs, const int64_t* rows, const int64_t* labels, int64_t count,
                     int64_t total, Matrix grad);

// Throws std::runtime_error if a loss is infinite or no number: training cannot go on from it.
void require_finite(double loss, int64_t epoch);

// The number of the outputs' `rows` whose largest column is their label.
int64_t num_right(ConstMatrix outputs, const int64_t* rows, const int64_t* labels, int64_t count);

// The seeds of dropout's masks, which are those that PyTorch draws after torch.manual_seed(seed).
class Seeds {
 public:
  explicit Seeds(uint32_t seed) : bits_(seed) {}
  uint64_t draw();

 private:
  std::mt19937 bits_;
};

// Whether a split's accuracy has not become better in the last `patience` evaluations.
bool is_over(const std::vector<double>& accuracies, int64_t patience);

// Memory that begins at a page, in large pages where the system has them.
class Arena {
 public:
  explicit Arena(int64_t bytes);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  ~Arena();
  Matrix matrix(int64_t offset, int64_t rows, int64_t columns, int64_t row_stride, int64_t column_stride);
  int32_t* int32s(int64_t offset);

 private:
  char* begin_;
};

}  // namespace program
