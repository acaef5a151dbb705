// The rules of PyTorch's SGD, Adam and AdamW, for the programs of every target.
#pragma once

#include <cmath>
#include <cstdint>

#include "matrix.h"

namespace program {

enum class Rule { kSgd, kAdam, kAdamW };

// A step of an optimizer.
struct Update {
  Rule rule;
  bool is_first;
  float rate, momentum, beta1, rest1, beta2, rest2, root2, eps, decay, decay_rest;

  // Updates a value by its gradient. first and second are averages of its earlier gradients.
  GB_EVERYWHERE void operator()(float grad, float& value, float& first, float& second) const {
    if (rule == Rule::kAdamW)
      value *= decay_rest;
    else
      grad += decay * value;
    if (rule == Rule::kSgd) {
      first = is_first ? grad : momentum * first + grad;
      value -= rate * first;
      return;
    }
    first = beta1 * first + rest1 * grad;
    second = beta2 * second + rest2 * grad * grad;
    value -= rate * first / (sqrtf(second) / root2 + eps);
  }
};

struct Optimizer {
  Rule rule;
  double learning_rate = 0, momentum = 0, beta1 = 0, beta2 = 0, weight_decay = 0, eps = 0;
  int64_t num_steps = 0;

  // Begins the next step.
  Update next() {
    ++num_steps;
    const double correction1 = 1.0 - std::pow(beta1, static_cast<double>(num_steps));
    const double correction2 = std::sqrt(1.0 - std::pow(beta2, static_cast<double>(num_steps)));
    const auto single = [](double number) { return static_cast<float>(number); };
    return {
        .rule = rule,
        .is_first = num_steps == 1,
        .rate = single(rule == Rule::kSgd ? learning_rate : learning_rate / correction1),
        .momentum = single(momentum),
        .beta1 = single(beta1),
        .rest1 = single(1.0 - beta1),
        .beta2 = single(beta2),
        .rest2 = single(1.0 - beta2),
        .root2 = single(correction2),
        .eps = single(eps),
        .decay = single(weight_decay),
        .decay_rest = single(1.0 - learning_rate * weight_decay),
    };
  }
};

}  // namespace program
