// The input path is the form of the features: dense rows, CSR or bits. The program takes the one whose
// products with the first weights take the least time, in a trial of a few milliseconds on some of the rows.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "options.h"

namespace program {

// The shape of two products: the features times a (channels, width) weight, and the weight's gradient.
struct InputShape {
  int64_t rows, channels, width;
};

// Some of the rows in CSR.
struct InputSample {
  int64_t rows;
  const int64_t* indptr;
  const int32_t* indices;
  const float* values;
};

// An input path: its trial, and the program that trains on it.
struct InputPath {
  const char* name;
  InputShape shape;
  double (*seconds)(const InputShape&, const InputSample&);  // of both products in an epoch
  int64_t sources;                                           // rows that its first aggregation reads
  int64_t aggregated_floats;  // numbers that a step's aggregations read forward beyond the dense path's
  void (*run)(const Options& options, double started);
};

// Seconds of both products for all rows, estimated from as many rows of the sample as take a few
// milliseconds.
double dense_seconds(const InputShape& shape, const InputSample& sample);
double csr_seconds(const InputShape& shape, const InputSample& sample);
double bits_seconds(const InputShape& shape, const InputSample& sample);

// The path that takes the least time; prints the time of each.
const InputPath& fastest_input(std::span<const InputPath> paths, const InputSample& sample, double density);
// The path with this name, which must be one of them.
const InputPath& named_input(std::span<const InputPath> paths, const std::string& name);

// Seconds of the shortest of some runs, after a first one that is not counted.
double least_seconds(const std::function<void()>& run);

}  // namespace program
