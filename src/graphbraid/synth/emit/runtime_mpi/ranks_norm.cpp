#include "ranks_norm.h"

#include <algorithm>
#include <vector>

#include "threads/parallel.h"

namespace program {

void batch_statistics(Ranks& ranks, ConstMatrix x, float* running_mean, float* running_variance, double share,
                      double eps, float* mean, float* rstd) {
  const size_t width = static_cast<size_t>(x.columns), line = 2 * width + 1;
  std::vector<double> table(static_cast<size_t>(ranks.size()) * line);  // each rank fills its own line
  if (x.rows > 0) {
    column_moments(x, mean, rstd);
    double* own = table.data() + static_cast<size_t>(ranks.rank()) * line;
    std::copy_n(mean, width, own);
    std::copy_n(rstd, width, own + width);
    own[2 * width] = static_cast<double>(x.rows);
  }
  ranks.sum(table);
  double num_rows = 0;
  for (size_t at = 2 * width; at < table.size(); at += line) num_rows += table[at];
  for (size_t j = 0; j < width; ++j) {
    double center = 0, variance = 0;
    for (size_t at = 0; at < table.size(); at += line)
      center += table[at + 2 * width] / num_rows * table[at + j];
    for (size_t at = 0; at < table.size(); at += line) {
      const double off = table[at + j] - center;
      variance += table[at + 2 * width] / num_rows * (table[at + width + j] + off * off);
    }
    mean[j] = static_cast<float>(center);
    rstd[j] = static_cast<float>(variance);
  }
  track_statistics(mean, rstd, static_cast<int64_t>(num_rows), x.columns, running_mean, running_variance,
                   share, eps);
}

void couple(Ranks& ranks, Matrix grad_x, ConstMatrix x, Matrix scratch, const float* mean, const float* rstd,
            const float* weight, const float* grad_weight, const float* grad_bias) {
  const size_t width = static_cast<size_t>(x.columns);
  std::vector<double> sums(2 * width + 1);
  std::copy_n(grad_weight, width, sums.data());
  std::copy_n(grad_bias, width, sums.data() + width);
  sums[2 * width] = static_cast<double>(x.rows);
  ranks.sum(sums);
  std::vector<float> along(width), average(width);
  for (size_t j = 0; j < width; ++j) {
    const float scale = weight == nullptr ? rstd[j] : rstd[j] * weight[j];
    along[j] = scale * static_cast<float>(sums[j] / sums[2 * width]);
    average[j] = scale * static_cast<float>(sums[width + j] / sums[2 * width]);
  }
  if (x.rows == 0) return;
  batch_norm(x, mean, rstd, along.data(), average.data(), scratch);
  gb::parallel_static(x.rows, 256, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i)
      for (int64_t j = 0; j < x.columns; ++j)
        grad_x.data[i * grad_x.row_stride + j] -= scratch.data[i * scratch.row_stride + j];
  });
}

}  // namespace program
