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
                               int64_t first, const FloatMatrix& out) const {
  const int64_t num_parts = parts(), count = num_parts / static_cast<int64_t>(scalers_.size());
  const int64_t columns = sums[0].width / heads_;
  each_row(out.rows, out.width, [&](int64_t i) {
    const SumRows of(kinds, sums, first + i);
    const auto [share, by] = factors(map.degree(first + i), averages);
    for (int64_t h = 0; h < heads_; ++h)
      for (int64_t n = 0; n < count; ++n) {
        // The first part has the numbers without a factor until all others have theirs.
        float* __restrict plain = out.data + i * out.stride + (h * num_parts + n) * columns;
        const auto make = [&](const auto& value) {
          for (int64_t c = 0; c < columns; ++c) plain[c] = value(h * columns + c);
        };
        const auto variance = [&, share = share](int64_t c) {
          const float mean = of.sum[c] * share;
          return of.squares[c] * share - mean * mean;
        };
        switch (reductions_[n]) {
          case Reduction::kSum:
            make([&](int64_t c) { return of.sum[c]; });
            break;
          case Reduction::kMean:
            make([&, share = share](int64_t c) { return of.sum[c] * share; });
            break;
          case Reduction::kMax:
            make([&](int64_t c) { return of.max[c]; });
            break;
          case Reduction::kMin:
            make([&](int64_t c) { return of.min[c]; });
            break;
          case Reduction::kVariance:
            make(variance);
            break;
          case Reduction::kDeviation:
            make([&](int64_t c) { return std::max(variance(c), kLeastVariance); });
            for (int64_t c = 0; c < columns; ++c) {
              const float root = std::sqrt(plain[c]);
              plain[c] = root <= kLeastDeviation ? 0.0f : root;
            }
        }
        for (size_t s = scalers_.size(); s-- > 0;) {
          float* row = plain + static_cast<int64_t>(s) * count * columns;
          for (int64_t c = 0; c < columns; ++c) row[c] = plain[c] * by[s];
        }
      }
  });
}

void SeveralReductions::gradients(const Map& map, std::tuple<float, float> averages,
                                  const std::vector<MessageSum>& kinds, const std::vector<FloatMatrix>& sums,
                                  int64_t first, const FloatMatrix& grad, const FloatMatrix& to) const {
  const int64_t num_parts = parts(), count = num_parts / static_cast<int64_t>(scalers_.size());
  const int64_t width = sums[0].width, columns = width / heads_;
  std::vector<FloatMatrix> found;
  for (size_t k = 0; k < kinds.size(); ++k)
    found.push_back(to.part(static_cast<int64_t>(k) * map.num_dst, map.num_dst));
  each_row(grad.rows, grad.width, [&](int64_t row) {
    const int64_t v = first + row;
    const SumRows of(kinds, sums, v), into(kinds, found, v);
    for (const FloatMatrix& one : found) std::fill_n(one.data + v * one.stride, width, 0.0f);
    const auto [share, by] = factors(map.degree(v), averages);
    for (int64_t h = 0; h < heads_; ++h)
      for (int64_t n = 0; n < count; ++n) {
        // The scalers' shares are added up where the first one's is; nothing else reads the gradient.
        float* __restrict given = grad.data + row * grad.stride + (h * num_parts + n) * columns;
        for (size_t s = 0; s < scalers_.size(); ++s) {
          const float* other = given + static_cast<int64_t>(s) * count * columns;
          for (int64_t c = 0; c < columns; ++c)
            given[c] = s == 0 ? other[c] * by[s] : given[c] + other[c] * by[s];
        }
        const auto give = [&](float* of_sum, float by_how_much) {
          float* __restrict target = of_sum + h * columns;
          for (int64_t c = 0; c < columns; ++c) target[c] += given[c] * by_how_much;
        };
        switch (reductions_[n]) {
          case Reduction::kSum:
            give(into.sum, 1.0f);
            continue;
          case Reduction::kMean:
            give(into.sum, share);
            continue;
          case Reduction::kMax:
            give(into.max, 1.0f);
            continue;
          case Reduction::kMin:
            give(into.min, 1.0f);
            continue;
          case Reduction::kVariance:
          case Reduction::kDeviation:
            break;
        }
        const float *sum = of.sum + h * columns, *squares = of.squares + h * columns;
        float* __restrict of_sum = into.sum + h * columns, * __restrict of_squares =
                                                               into.squares + h * columns;
        if (reductions_[n] == Reduction::kDeviation)
          for (int64_t c = 0; c < columns; ++c) {
            const float mean = sum[c] * share, variance = squares[c] * share - mean * mean;
            const float root = std::sqrt(std::max(variance, kLeastVariance));
            given[c] = variance >= kLeastVariance && root > kLeastDeviation ? given[c] / (2.0f * root) : 0.0f;
          }
        for (int64_t c = 0; c < columns; ++c) {
          of_squares[c] += given[c] * share;
          of_sum[c] -= 2.0f * given[c] * (sum[c] * share) * share;
        }
      }
  });
}

}  // namespace gb
