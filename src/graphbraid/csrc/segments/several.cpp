// Several reductions of the same messages side by side; see several.h.
#include "segments/several.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace gb {
namespace {

// ops/message_reductions.py's _LEAST_VARIANCE: up to this one, a standard deviation is 0 and has no gradient.
constexpr float kLeastVariance = 1e-5f;
const float kLeastDeviation = static_cast<float>(std::sqrt(1e-5));

// One row of each sum of a node; those that are not computed are null.
struct SumRows {
  float *sum = nullptr, *squares = nullptr, *max = nullptr, *min = nullptr;

  SumRows(const std::vector<MessageSum>& kinds, const std::vector<FloatMatrix>& sums, int64_t row) {
    for (size_t i = 0; i < kinds.size(); ++i) {
      float*& to = kinds[i] == MessageSum::kSum   ? sum
                   : kinds[i] == MessageSum::kMax ? max
                   : kinds[i] == MessageSum::kMin ? min
                                                  : squares;
      to = sums[i].data + row * sums[i].stride;
    }
  }
};

}  // namespace

SeveralReductions::SeveralReductions(Fields fields) {
  auto& [reductions, scalers, heads, averages] = fields;
  for (const int one : reductions) {
    need_count(one, 0, static_cast<int>(Reduction::kDeviation), "reduction");
    reductions_.push_back(static_cast<Reduction>(one));
  }
  need_count(static_cast<int64_t>(scalers.size()), 1, kMostScalers, "the number of scalers");
  for (const int one : scalers) {
    need_count(one, 0, static_cast<int>(Scaler::kInverseLinear), "scaler");
    scalers_.push_back(static_cast<Scaler>(one));
  }
  heads_ = heads;
  averages_ = std::move(averages);
}

std::tuple<float, float> SeveralReductions::averages() const {
  if (averages_.is_none()) return {1.0f, 1.0f};
  const auto number = [&](const char* name) { return nb::cast<float>(averages_.attr(name).attr("item")()); };
  return {number("avg_deg_lin"), number("avg_deg_log")};
}

SeveralReductions::Factors SeveralReductions::factors(int64_t degree,
                                                      std::tuple<float, float> averages) const {
  const auto [linear, log] = averages;
  const auto count = static_cast<float>(degree), least = std::max(count, 1.0f);
  Factors found{1.0f / least, {}};
  for (size_t s = 0; s < scalers_.size(); ++s) switch (scalers_[s]) {
      case Scaler::kIdentity:
        found.by[s] = 1.0f;
        break;
      case Scaler::kAmplification:
        found.by[s] = std::log(count + 1.0f) / log;
        break;
      case Scaler::kAttenuation:
        found.by[s] = log / std::log(least + 1.0f);
        break;
      case Scaler::kLinear:
        found.by[s] = count / linear;
        break;
      case Scaler::kInverseLinear:
        found.by[s] = linear / least;
        break;
    }
  return found;
}

void SeveralReductions::finish(const Map& map, std::tuple<float, float> averages,
                               const std::vector<MessageSum>& kinds, const std::vector<FloatMatrix>& sums,
                               const FloatMatrix& out) const {
  const int64_t num_parts = parts(), count = num_parts / static_cast<int64_t>(scalers_.size());
  const int64_t columns = sums[0].width / heads_;
  each_row(out.rows, out.width, [&](int64_t v) {
    const SumRows of(kinds, sums, v);
    const auto [share, by] = factors(map.degree(v), averages);
    const auto value = [&, share = share](Reduction reduction, int64_t i) {
      if (reduction == Reduction::kSum) return of.sum[i];
      if (reduction == Reduction::kMax) return of.max[i];
      if (reduction == Reduction::kMin) return of.min[i];
      const float mean = of.sum[i] * share;
      if (reduction == Reduction::kMean) return mean;
      const float variance = of.squares[i] * share - mean * mean;
      if (reduction == Reduction::kVariance) return variance;
      const float root = std::sqrt(std::max(variance, kLeastVariance));
      return root <= kLeastDeviation ? 0.0f : root;
    };
    for (int64_t h = 0; h < heads_; ++h)
      for (int64_t n = 0; n < count; ++n) {
        // The first part has the numbers without a factor until all others have theirs.
        float* first = out.data + v * out.stride + (h * num_parts + n) * columns;
        for (int64_t c = 0; c < columns; ++c) first[c] = value(reductions_[n], h * columns + c);
        for (size_t s = scalers_.size(); s-- > 0;) {
          float* row = first + static_cast<int64_t>(s) * count * columns;
          for (int64_t c = 0; c < columns; ++c) row[c] = first[c] * by[s];
        }
      }
  });
}

std::vector<FloatMatrix> SeveralReductions::gradients(const Map& map, std::tuple<float, float> averages,
                                                      const std::vector<MessageSum>& kinds,
                                                      const std::vector<FloatMatrix>& sums,
                                                      const FloatMatrix& grad) const {
  const int64_t num_parts = parts(), count = num_parts / static_cast<int64_t>(scalers_.size());
  const int64_t columns = sums[0].width / heads_;
  std::vector<FloatMatrix> found;
  for (const FloatMatrix& one : sums) found.push_back(FloatMatrix::zeros(one.rows, one.width));
  each_row(grad.rows, grad.width, [&](int64_t v) {
    const SumRows of(kinds, sums, v), to(kinds, found, v);
    const auto [share, by] = factors(map.degree(v), averages);
    for (int64_t h = 0; h < heads_; ++h)
      for (int64_t n = 0; n < count; ++n) {
        const float* first = grad.data + v * grad.stride + (h * num_parts + n) * columns;
        const Reduction reduction = reductions_[n];
        for (int64_t c = 0; c < columns; ++c) {
          const int64_t i = h * columns + c;
          float given = 0;
          for (size_t s = 0; s < scalers_.size(); ++s)
            given += first[static_cast<int64_t>(s) * count * columns + c] * by[s];
          if (reduction == Reduction::kSum) to.sum[i] += given;
          if (reduction == Reduction::kMax) to.max[i] += given;
          if (reduction == Reduction::kMin) to.min[i] += given;
          if (reduction == Reduction::kMean) to.sum[i] += given * share;
          if (reduction < Reduction::kVariance) continue;
          const float mean = of.sum[i] * share, variance = of.squares[i] * share - mean * mean;
          if (reduction == Reduction::kDeviation) {
            const float root = std::sqrt(std::max(variance, kLeastVariance));
            given = variance >= kLeastVariance && root > kLeastDeviation ? given / (2.0f * root) : 0.0f;
          }
          to.squares[i] += given * share;
          to.sum[i] -= 2.0f * given * mean * share;
        }
      }
  });
  return found;
}

}  // namespace gb
