#include "training.h"

#include <cmath>
#include <cstdlib>
#include <new>

#include "base/hugepages.h"

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

Arena::Arena(int64_t bytes) {
  constexpr size_t kPage = size_t{1} << 21;
  const size_t size = (static_cast<size_t>(bytes) + kPage) / kPage * kPage;
  begin_ = static_cast<char*>(std::aligned_alloc(kPage, size));
  if (begin_ == nullptr) throw std::bad_alloc();
  gb::use_huge_pages(begin_, static_cast<int64_t>(size));
}

Arena::~Arena() { std::free(begin_); }

}  // namespace program
