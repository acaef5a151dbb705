#include "epochs.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "numbers.h"

namespace program {

void require_finite(double loss, int64_t epoch, int line) {
  if (std::isfinite(loss)) return;
  fail(line, "the loss of epoch " + std::to_string(epoch) + " is " + shown(loss) +
                 ": the features or the weights are not finite, or the learning rate is too large");
}

// As PyTorch's randint(0, 2**63 - 1): two draws of 32 bits, the high half first, modulo the bound.
uint64_t Seeds::draw() {
  const uint64_t high = bits_(), low = bits_();
  return ((high << 32) | low) % 0x7FFFFFFFFFFFFFFFull;
}

bool is_over(const std::vector<double>& accuracies, int64_t patience) {
  if (static_cast<int64_t>(accuracies.size()) <= patience) return false;
  const auto recent = accuracies.end() - patience;
  return *std::max_element(recent, accuracies.end()) <= *std::max_element(accuracies.begin(), recent);
}

}  // namespace program
