// Sums and maxima over the lanes of a warp, which all lanes get.
#pragma once

#include "gpu.cuh"

namespace program {

constexpr unsigned kAllLanes = 0xFFFFFFFFu;

__device__ inline float largest_of_warp(float value) {
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2)
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, lanes));
  return value;
}

__device__ inline float sum_of_warp(float value) {
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) value += __shfl_xor_sync(kAllLanes, value, lanes);
  return value;
}

}  // namespace program
