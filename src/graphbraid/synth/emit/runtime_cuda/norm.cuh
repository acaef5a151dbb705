// Batch normalisation of each column and layer normalisation of each row:
//
//   out = (x - mean) * rstd * weight + bias,  rstd = 1 / sqrt(variance + eps)
//
// The gradients, with y = (x - mean) * rstd and h = grad * weight:
//
//   grad_weight = sum of grad * y over the rows,  grad_bias = sum of grad over the rows
//   grad_x = rstd * (h - average(h) - y * average(h * y))
//
// The averages are over the column or the row that mean and rstd are of. They are left out if mean and rstd
// are running statistics. A variance is the average square of the differences to the mean. The average
// difference would be 0 if the mean were exact; it corrects the mean and the variance. x and grad are
// contiguous.
#pragma once

#include "elements.cuh"
#include "warp.cuh"

namespace program {

struct Centred {
  ConstMatrix x;
  const float* mean;
  __device__ float operator()(int64_t row, int64_t column) const { return at(x, row, column) - mean[column]; }
};

struct CentredSquares {
  Centred centred;
  __device__ float operator()(int64_t row, int64_t column) const {
    const float d = centred(row, column);
    return d * d;
  }
};

struct Standardised {
  Centred centred;
  const float *rstd, *weight, *bias;
  __device__ float operator()(int64_t row, int64_t column) const {
    const float y = centred(row, column) * rstd[column];
    const float weighted = weight ? y * weight[column] : y;
    return bias ? weighted + bias[column] : weighted;
  }
};

struct GradientByWeight {
  ConstMatrix grad;
  Standardised y;
  __device__ float operator()(int64_t row, int64_t column) const {
    return at(grad, row, column) * y(row, column);
  }
};

// along and across: the sums of grad * y and of grad.
struct GradientOfRows {
  ConstMatrix grad;
  Centred centred;
  const float *rstd, *weight, *along, *across;
  bool from_rows;
  __device__ float operator()(int64_t row, int64_t column) const {
    float g = at(grad, row, column);
    if (from_rows) {
      const float count = static_cast<float>(grad.rows);
      g -= across[column] / count + centred(row, column) * (along[column] / count * rstd[column]);
    }
    return g * (rstd[column] * (weight ? weight[column] : 1.0f));
  }
};

// ---- One thread for each column

static __global__ void to_averages(float* sums, int64_t columns, int64_t count) {
  const int64_t column = thread_number();
  if (column < columns) sums[column] = count > 0 ? sums[column] / static_cast<float>(count) : 0.0f;
}

// Corrects the means. `variance` holds the sums of the squares before, and the variances after.
static __global__ void correct_moments(const float* differences, int64_t columns, int64_t count, float* mean,
                                       float* variance) {
  const int64_t column = thread_number();
  if (column >= columns) return;
  const float number = count > 0 ? static_cast<float>(count) : 1.0f;
  const float rest = differences[column] / number;
  const float found = variance[column] / number - rest * rest;
  mean[column] += rest;
  variance[column] = found < 0 ? 0.0f : found;  // a NaN stays
}

// Updates the running statistics. rstd holds the variance before, and 1 / sqrt(variance + eps) after.
static __global__ void track(const float* mean, float* rstd, int64_t count, int64_t columns,
                             float* running_mean, float* running_variance, double share, float eps) {
  const int64_t column = thread_number();
  if (column >= columns) return;
  const float rest = static_cast<float>(1.0 - share), part = static_cast<float>(share);
  const float unbiased = static_cast<float>(static_cast<double>(count) / static_cast<double>(count - 1));
  running_mean[column] = running_mean[column] * rest + part * mean[column];
  running_variance[column] = running_variance[column] * rest + part * (rstd[column] * unbiased);
  rstd[column] = 1.0f / sqrtf(rstd[column] + eps);
}

static __global__ void take_running(const float* running_mean, const float* running_variance, int64_t columns,
                                    float eps, float* mean, float* rstd) {
  const int64_t column = thread_number();
  if (column >= columns) return;
  mean[column] = running_mean[column];
  rstd[column] = 1.0f / sqrtf(running_variance[column] + eps);
}

// ---- Layer normalisation: a group of lanes has a row

template <int Lanes>
__global__ void normalise_rows(const LayerNorm a) {
  const int64_t row = thread_number() / Lanes, columns = a.x.columns;
  const int lane = static_cast<int>(threadIdx.x % Lanes);
  if (row >= a.x.rows) return;
  const float count = static_cast<float>(columns);
  float sum = 0, differences = 0, squares = 0;
  for (int64_t c = lane; c < columns; c += Lanes) sum += at(a.x, row, c);
  float mean = sum_of_lanes<Lanes>(sum) / count;
  for (int64_t c = lane; c < columns; c += Lanes) {
    const float d = at(a.x, row, c) - mean;
    differences += d;
    squares += d * d;
  }
  const float rest = sum_of_lanes<Lanes>(differences) / count;
  const float variance = sum_of_lanes<Lanes>(squares) / count - rest * rest;
  mean += rest;
  const float rstd = 1.0f / sqrtf((variance < 0 ? 0.0f : variance) + static_cast<float>(a.eps));
  for (int64_t c = lane; c < columns; c += Lanes) {
    const float y = (at(a.x, row, c) - mean) * rstd, weighted = a.weight ? y * a.weight[c] : y;
    at(a.out, row, c) = a.bias ? weighted + a.bias[c] : weighted;
  }
  if (lane == 0 && a.mean) a.mean[row] = mean;
  if (lane == 0 && a.rstd) a.rstd[row] = rstd;
}

template <int Lanes>
__global__ void normalise_rows_back(const LayerNormBackward a) {
  const int64_t row = thread_number() / Lanes, columns = a.x.columns;
  const int lane = static_cast<int>(threadIdx.x % Lanes);
  if (row >= a.x.rows) return;
  const float mean = a.mean[row], rstd = a.rstd[row], count = static_cast<float>(columns);
  const auto y = [&](int64_t c) { return (at(a.x, row, c) - mean) * rstd; };
  const auto h = [&](int64_t c) { return a.weight ? at(a.grad, row, c) * a.weight[c] : at(a.grad, row, c); };
  float across = 0, along = 0;
  for (int64_t c = lane; c < columns; c += Lanes) {
    across += h(c);
    along += h(c) * y(c);
  }
  across = sum_of_lanes<Lanes>(across) / count;
  along = sum_of_lanes<Lanes>(along) / count;
  for (int64_t c = lane; c < columns; c += Lanes)
    at(a.grad_x, row, c) = rstd * (h(c) - across - y(c) * along);
}

struct GradientByRowWeight {
  ConstMatrix grad, x;
  const float *mean, *rstd;
  __device__ float operator()(int64_t row, int64_t column) const {
    return at(grad, row, column) * ((at(x, row, column) - mean[row]) * rstd[row]);
  }
};

}  // namespace program
