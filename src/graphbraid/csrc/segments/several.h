// Several reductions of the same messages side by side: SeveralReductions of ops/message_reductions.py.
#pragma once

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <tuple>
#include <vector>

#include "segments/rows.h"

namespace gb {

// What messages are reduced to by one walk over the edges, in this order.
enum class MessageSum : int { kSum, kMax, kMin, kSquares = 5 };

class SeveralReductions {
 public:
  // Numbers of reductions and of scalers, in the order of the enums; the heads of a message, and an object
  // with averages of degrees, or None.
  using Fields = std::tuple<std::vector<int>, std::vector<int>, int64_t, nb::object>;

  explicit SeveralReductions(Fields fields);
  // How many rows as wide as a message stand side by side in the result.
  int64_t parts() const { return static_cast<int64_t>(reductions_.size() * scalers_.size()); }
  // The averages of degrees and of their logarithms, as they are now. With the GIL.
  std::tuple<float, float> averages() const;
  // Makes so many rows as `out` has, from `first` on. sums: by kind, (num_dst, width) each.
  void finish(const Map& map, std::tuple<float, float> averages, const std::vector<MessageSum>& kinds,
              const std::vector<FloatMatrix>& sums, int64_t first, const FloatMatrix& out) const;
  // From the gradient of these rows, that of the same rows of the sums, which stand one below the other.
  void gradients(const Map& map, std::tuple<float, float> averages, const std::vector<MessageSum>& kinds,
                 const std::vector<FloatMatrix>& sums, int64_t first, const FloatMatrix& grad,
                 const FloatMatrix& to) const;

 private:
  enum class Reduction : int { kSum, kMean, kMax, kMin, kVariance, kDeviation };
  enum class Scaler : int { kIdentity, kAmplification, kAttenuation, kLinear, kInverseLinear };

  static constexpr size_t kMostScalers = 8;
  // What a node's degree gives: its share of a sum in a mean, and the factor of each scaler.
  struct Factors {
    float share;
    std::array<float, kMostScalers> by;
  };
  Factors factors(int64_t degree, std::tuple<float, float> averages) const;

  std::vector<Reduction> reductions_;
  std::vector<Scaler> scalers_;
  int64_t heads_;
  nb::object averages_;
};

}  // namespace gb
