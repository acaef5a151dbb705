// Sums and maxima over the lanes of a warp, or of a group in it. All of these lanes get the result.
#pragma once

#include "gpu.cuh"

namespace program {

constexpr unsigned kAllLanes = 0xFFFFFFFFu;

__device__ inline float largest_of_warp(float value) {
  for (int lanes = kWarp / 2; lanes > 0; lanes /= 2)
    value = fmaxf(value, __shfl_xor_sync(kAllLanes, value, lanes));
  return value;
}

// The sum over this thread's group of Lanes lanes. The mask has only these lanes, since groups of a warp may
// have rows of different lengths. `Lanes % kWarp` avoids a shift by 32, which C++ leaves undefined.
template <int Lanes>
__device__ float sum_of_lanes(float value) {
  const unsigned first = threadIdx.x % kWarp / Lanes * Lanes;
  const unsigned group = Lanes == kWarp ? kAllLanes : ((1u << Lanes % kWarp) - 1) << first;
  for (int lanes = Lanes / 2; lanes > 0; lanes /= 2) value += __shfl_xor_sync(group, value, lanes);
  return value;
}

__device__ inline float sum_of_warp(float value) { return sum_of_lanes<kWarp>(value); }

}  // namespace program
