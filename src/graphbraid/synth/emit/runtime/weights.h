// What training changes: parameters and counters, in folders of .npy files.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "optimizer.h"

namespace program {

// A parameter with its gradient and what its optimizer keeps of earlier gradients; or numbers that are saved
// with the parameters but have no gradient, such as running statistics.
struct Parameter {
  // What a program says of it.
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

// A number of steps that is saved with the parameters.
struct Counter {
  std::string name;
  int64_t value = 0;
};

// All that training changes and a folder of weights holds, with one .npy file each.
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
