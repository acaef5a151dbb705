// Batch normalisation: see norm.cuh.
#include "column_sums.cuh"
#include "norm.cuh"

namespace program {
namespace {

// The workspace's floats behind those that sum_columns takes: two for each column.
float* behind_sums(int64_t columns) {
  const int64_t floats = kMostParts * columns;
  const int64_t bytes = (floats + 2 * columns) * static_cast<int64_t>(sizeof(float));
  return static_cast<float*>(Workspace::begin(bytes)) + floats;
}

void column_moments(ConstMatrix x, float* mean, float* variance) {
  const Centred centred{x, mean};
  float* differences = behind_sums(x.columns);
  sum_columns("column_moments", Same{x}, x.rows, x.columns, mean);
  launch("column_moments", to_averages, x.columns, mean, x.columns, x.rows);
  sum_columns("column_moments", centred, x.rows, x.columns, differences);
  sum_columns("column_moments", CentredSquares{centred}, x.rows, x.columns, variance);
  launch("column_moments", correct_moments, x.columns, differences, x.columns, x.rows, mean, variance);
}

}  // namespace

void batch_statistics(ConstMatrix x, float* running_mean, float* running_variance, double share, double eps,
                      float* mean, float* rstd) {
  column_moments(x, mean, rstd);
  launch("batch_statistics", track, x.columns, mean, rstd, x.rows, x.columns, running_mean, running_variance,
         share, static_cast<float>(eps));
}

void running_statistics(const float* running_mean, const float* running_variance, int64_t width, double eps,
                        float* mean, float* rstd) {
  launch("running_statistics", take_running, width, running_mean, running_variance, width,
         static_cast<float>(eps), mean, rstd);
}

void batch_norm(ConstMatrix x, const float* mean, const float* rstd, const float* weight, const float* bias,
                Matrix out) {
  launch("batch_norm", fill<Standardised>, out.rows * out.columns,
         Standardised{{x, mean}, rstd, weight, bias}, out);
}

void batch_norm_backward(ConstMatrix grad, ConstMatrix x, const float* mean, const float* rstd,
                         const float* weight, bool from_rows, Matrix grad_x, float* grad_weight,
                         float* grad_bias) {
  const Centred centred{x, mean};
  float* scratch = behind_sums(x.columns);
  float* along = grad_weight ? grad_weight : scratch;
  float* across = grad_bias ? grad_bias : scratch + x.columns;
  const GradientByWeight by_weight{grad, {centred, rstd, nullptr, nullptr}};
  sum_columns("batch_norm_backward", by_weight, x.rows, x.columns, along);
  sum_columns("batch_norm_backward", Same{grad}, x.rows, x.columns, across);
  launch("batch_norm_backward", fill<GradientOfRows>, grad_x.rows * grad_x.columns,
         GradientOfRows{grad, centred, rstd, weight, along, across, from_rows}, grad_x);
}

}  // namespace program
