// The input path: the form of the features, dense rows, CSR or bits, whose products with the first weights
// take the least time. It is chosen by a trial of a few milliseconds on some of the rows.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace program {

// The features' product with a (channels, width) weight, and the product that is the weight's gradient.
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

// A path, and the seconds that its products take in an epoch.
struct InputPath {
  std::string name;
  double seconds;
};

// Seconds of both products for all rows, from those for as many rows of the sample as take a few
// milliseconds.
double dense_seconds(const InputShape& shape, const InputSample& sample);
double csr_seconds(const InputShape& shape, const InputSample& sample);
double bits_seconds(const InputShape& shape, const InputSample& sample);

// Seconds of aggregations, forward and backward, that read `floats` numbers each: rows of `width` numbers,
// taken at random from `sources`.
double aggregation_seconds(int64_t sources, int64_t width, int64_t floats);

// The name of the path that takes the least time; prints the time of each.
std::string fastest_input(std::vector<InputPath> paths, double density);

// The least seconds of some runs, after one that is not counted.
double least_seconds(const std::function<void()>& run);

}  // namespace program
