#include "training.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <new>

#include "hugepages.h"
#include "parallel.h"
#include "worth.h"

namespace program {
namespace {

void update(const Optimizer& o, Parameter& p) {
  const double decay_rest = 1.0 - o.learning_rate * o.weight_decay;
  const double correction1 = 1.0 - std::pow(o.beta1, static_cast<double>(o.num_steps));
  const double correction2 = std::sqrt(1.0 - std::pow(o.beta2, static_cast<double>(o.num_steps)));
  const float rate = static_cast<float>(o.learning_rate / correction1);
  const float beta1 = static_cast<float>(o.beta1), rest1 = static_cast<float>(1.0 - o.beta1);
  const float beta2 = static_cast<float>(o.beta2), rest2 = static_cast<float>(1.0 - o.beta2);
  const float root2 = static_cast<float>(correction2), eps = static_cast<float>(o.eps);
  for (size_t i = 0; i < p.value.size(); ++i) {
    float grad = p.grad[i];
    if (o.kind == Optimizer::kAdamW)
      p.value[i] *= static_cast<float>(decay_rest);
    else
      grad += static_cast<float>(o.weight_decay) * p.value[i];
    if (o.kind == Optimizer::kSgd) {
      p.first[i] = o.num_steps == 1 ? grad : static_cast<float>(o.momentum) * p.first[i] + grad;
      p.value[i] -= static_cast<float>(o.learning_rate) * p.first[i];
      continue;
    }
    p.first[i] = beta1 * p.first[i] + rest1 * grad;
    p.second[i] = beta2 * p.second[i] + rest2 * grad * grad;
    p.value[i] -= rate * p.first[i] / (std::sqrt(p.second[i]) / root2 + eps);
  }
}

}  // namespace

void Optimizer::step(std::vector<Parameter>& parameters) {
  ++num_steps;
  for (Parameter& parameter : parameters)
    if (parameter.learns()) update(*this, parameter);
}

double cross_entropy(ConstMatrix outputs, const int64_t* rows, const int64_t* labels, int64_t count,
                     int64_t total, Matrix grad) {
  set_zero(grad);
  std::vector<double> losses(static_cast<size_t>(count));
  const float share = 1.0f / static_cast<float>(total);
  gb::parallel_if_worth(
      count * outputs.columns, gb::kFloatsWorth, count, 256, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; ++i) {
          const float* from = outputs.data + rows[i] * outputs.row_stride;
          float* to = grad.data + rows[i] * grad.row_stride;
          const float largest = *std::max_element(from, from + outputs.columns);
          double sum = 0;
          for (int64_t j = 0; j < outputs.columns; ++j)
            sum += std::exp(static_cast<double>(from[j] - largest));
          losses[static_cast<size_t>(i)] = std::log(sum) - static_cast<double>(from[labels[i]] - largest);
          for (int64_t j = 0; j < outputs.columns; ++j)
            to[j] = static_cast<float>(std::exp(static_cast<double>(from[j] - largest)) / sum) * share;
          to[labels[i]] -= share;
        }
      });
  double sum = 0;  // in order, so that it does not depend on the number of threads
  for (const double loss : losses) sum += loss;
  return sum / static_cast<double>(total);
}

int64_t num_right(ConstMatrix outputs, const int64_t* rows, const int64_t* labels, int64_t count) {
  int64_t right = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float* from = outputs.data + rows[i] * outputs.row_stride;
    right += std::max_element(from, from + outputs.columns) - from == labels[i];
  }
  return right;
}

Arena::Arena(int64_t bytes) {
  constexpr size_t kPage = size_t{1} << 21;
  const size_t size = (static_cast<size_t>(bytes) + kPage) / kPage * kPage;
  begin_ = static_cast<char*>(std::aligned_alloc(kPage, size));
  if (begin_ == nullptr) throw std::bad_alloc();
  gb::use_huge_pages(begin_, static_cast<int64_t>(size));
}

Arena::~Arena() { std::free(begin_); }

Matrix Arena::matrix(int64_t offset, int64_t rows, int64_t columns, int64_t row_stride,
                     int64_t column_stride) {
  return {reinterpret_cast<float*>(begin_ + offset), rows, columns, row_stride, column_stride};
}

int32_t* Arena::int32s(int64_t offset) { return reinterpret_cast<int32_t*>(begin_ + offset); }

}  // namespace program
