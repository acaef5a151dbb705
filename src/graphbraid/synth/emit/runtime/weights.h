// The numbers that training changes: parameters and counters, kept in folders of .npy files.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "optimizer.h"

namespace program {

// A parameter with its gradient and the optimizer's averages of earlier gradients. Or numbers without a
// gradient that are saved with the parameters, such as running statistics.
struct Parameter {
  // Its description in the program.
  struct Described {
    std::string name;
    std::vector<int64_t> shape;
    bool learns = true;
  };

  std::string name;
  std::vector<int64_t> shape;
  std::vector<float> value, grad, first, second;  // without a gradient: value alone

  explicit Parameter(Described described);
  bool learns() const { return !grad.empty(); }
};

// A count of steps that is saved with the parameters.
struct Counter {
  std::string name;
  int64_t value = 0;
};

// All parameters and counters. A folder of weights has a .npy file for each.
struct Weights {
  std::vector<Parameter> parameters;
  std::vector<Counter> counters;

  void add(Parameter::Described described) { parameters.emplace_back(std::move(described)); }
  void add_counter(const char* name) { counters.push_back({name, 0}); }
  // Both throw std::runtime_error.
  void load(const std::string& folder);
  void save(const std::string& folder) const;
  // Changes the parameters that learn by their gradients.
  void update(Update step);
  // The digest of all values.
  uint64_t digest() const;
};

}  // namespace program
