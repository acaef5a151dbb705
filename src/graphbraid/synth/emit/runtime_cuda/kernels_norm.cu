// Batch and layer normalisation: see norm.cuh.
#include "column_sums.cuh"
#include "norm.cuh"
#include "sums.cuh"

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

void batch_statistics(const BatchStatistics& a) {
  column_moments(a.x, a.mean, a.rstd);
  launch("batch_statistics", track, a.x.columns, a.mean, a.rstd, a.x.rows, a.x.columns, a.running_mean,
         a.running_variance, a.share, static_cast<float>(a.eps));
}

void running_statistics(const RunningStatistics& a) {
  launch("running_statistics", take_running, a.width, a.running_mean, a.running_variance, a.width,
         static_cast<float>(a.eps), a.mean, a.rstd);
}

void batch_norm(const BatchNorm& a) {
  launch("batch_norm", fill<Standardised>, a.out.rows * a.out.columns,
         Standardised{{a.x, a.mean}, a.rstd, a.weight, a.bias}, a.out);
}

void batch_norm_backward(const BatchNormBackward& a) {
  const Centred centred{a.x, a.mean};
  float* scratch = behind_sums(a.x.columns);
  float* along = a.grad_weight ? a.grad_weight : scratch;
  float* across = a.grad_bias ? a.grad_bias : scratch + a.x.columns;
  const GradientByWeight by_weight{a.grad, {centred, a.rstd, nullptr, nullptr}};
  sum_columns("batch_norm_backward", by_weight, a.x.rows, a.x.columns, along);
  sum_columns("batch_norm_backward", Same{a.grad}, a.x.rows, a.x.columns, across);
  launch("batch_norm_backward", fill<GradientOfRows>, a.grad_x.rows * a.grad_x.columns,
         GradientOfRows{a.grad, centred, a.rstd, a.weight, along, across, a.from_rows}, a.grad_x);
}

void layer_norm(const LayerNorm& a) {
  with_lanes(a.x.columns, [&](auto constant) {
    constexpr int kLanes = decltype(constant)::value;
    launch("layer_norm", normalise_rows<kLanes>, a.x.rows * kLanes, a);
  });
}

// The columns' sums come first, since grad_x may be the same memory as grad.
void layer_norm_backward(const LayerNormBackward& a) {
  const auto sum = [&](const auto& values, float* to) {
    if (to) sum_columns("layer_norm_backward", values, a.x.rows, a.x.columns, to);
  };
  sum(GradientByRowWeight{a.grad, a.x, a.mean, a.rstd}, a.grad_weight);
  sum(Same{a.grad}, a.grad_bias);
  if (a.grad_x.data == nullptr) return;
  with_lanes(a.x.columns, [&](auto constant) {
    constexpr int kLanes = decltype(constant)::value;
    launch("layer_norm_backward", normalise_rows_back<kLanes>, a.x.rows * kLanes, a);
  });
}

}  // namespace program
