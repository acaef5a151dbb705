// Batch normalisation of rows that are divided among ranks.
#include <algorithm>
#include <vector>

#include "ranks.h"
#include "threads/parallel.h"

namespace program {

void Ranks::batch_statistics(const BatchStatistics& a) {
  const ConstMatrix x = a.x;
  const size_t width = static_cast<size_t>(x.columns), line = 2 * width + 1;
  // Each rank fills its own line of zeros, so that the sum of all tables has the lines of all ranks.
  std::vector<double> table(static_cast<size_t>(size()) * line);
  if (x.rows > 0) {
    column_moments(x, a.mean, a.rstd);
    double* own = table.data() + static_cast<size_t>(rank()) * line;
    std::copy_n(a.mean, width, own);
    std::copy_n(a.rstd, width, own + width);
    own[2 * width] = static_cast<double>(x.rows);
  }
  sum(table);
  double num_rows = 0;
  for (size_t at = 2 * width; at < table.size(); at += line) num_rows += table[at];
  // variance = sum over ranks of share * (the rank's variance + (its mean - the mean of all)^2)
  for (size_t j = 0; j < width; ++j) {
    double center = 0, variance = 0;
    for (size_t at = 0; at < table.size(); at += line)
      center += table[at + 2 * width] / num_rows * table[at + j];
    for (size_t at = 0; at < table.size(); at += line) {
      const double off = table[at + j] - center;
      variance += table[at + 2 * width] / num_rows * (table[at + width + j] + off * off);
    }
    a.mean[j] = static_cast<float>(center);
    a.rstd[j] = static_cast<float>(variance);
  }
  track_statistics(a, static_cast<int64_t>(num_rows));
}

void Ranks::couple(const Couple& a) {
  const ConstMatrix x = a.x;
  const size_t width = static_cast<size_t>(x.columns);
  std::vector<double> sums(2 * width + 1);
  std::copy_n(a.grad_weight, width, sums.data());
  std::copy_n(a.grad_bias, width, sums.data() + width);
  sums[2 * width] = static_cast<double>(x.rows);
  sum(sums);
  std::vector<float> along(width), average(width);
  for (size_t j = 0; j < width; ++j) {
    const float scale = a.weight == nullptr ? a.rstd[j] : a.rstd[j] * a.weight[j];
    along[j] = scale * static_cast<float>(sums[j] / sums[2 * width]);
    average[j] = scale * static_cast<float>(sums[width + j] / sums[2 * width]);
  }
  if (x.rows == 0) return;
  // scratch = normalised x * along + average: the part of the gradient that goes through the statistics.
  program::batch_norm({
      .x = x,
      .mean = a.mean,
      .rstd = a.rstd,
      .weight = along.data(),
      .bias = average.data(),
      .out = a.scratch,
  });
  gb::parallel_static(x.rows, 256, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i)
      for (int64_t j = 0; j < x.columns; ++j)
        a.grad_x.data[i * a.grad_x.row_stride + j] -= a.scratch.data[i * a.scratch.row_stride + j];
  });
}

}  // namespace program
