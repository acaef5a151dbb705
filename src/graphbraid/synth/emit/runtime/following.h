// The model that the statements of a program train: passes, the update, the loss and accuracies.
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "epochs.h"
#include "matrix.h"
#include "numbers.h"

namespace program {

inline double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Training ends after `patience` evaluations of `split` without a better accuracy.
struct EarlyStop {
  std::string split;
  int64_t patience = 0;
};

// Thrown when the early stop ends the training. It is not an error.
struct StoppedEarly {};

template <typename Program>
class Training {
 public:
  explicit Training(Program& program, EarlyStop stop = {}) : program_(program), stop_(std::move(stop)) {}

  // Here and below, `line` is that of the program's call, or 0.
  void forward_pass(int line = 0) {
    if constexpr (kHasRanks) program_.ranks.forget_sent();
    num_rounds = 0;
    begin_ = seconds();
    program_.forward();
    loss_ = program_.loss();
    has_loss_ = true;
    require_finite(loss_, num_epochs_, line);
  }

  void back_propagation() { program_.backward(); }

  void optimizer(double rate, int line = 0) {
    if (!(rate >= 0) || std::isinf(rate))
      fail(line, "the learning rate of epoch " + std::to_string(num_epochs_) + " is " + shown(rate));
    program_.update(rate);
    const double taken = seconds() - begin_;
    total_seconds_ += taken;
    if constexpr (kHasRanks) sent_bytes_ += program_.ranks.sent_bytes();
    std::printf("epoch %lld loss %.9g seconds %.6f\n", static_cast<long long>(num_epochs_), loss_, taken);
    ++num_epochs_;
    is_predicted_ = false;
  }

  // The loss of the latest forward pass.
  double loss(int line = 0) const {
    if (!has_loss_) fail(line, "the loss is asked for before the first forward pass");
    return loss_;
  }

  // Prints and returns the accuracy on a split after the latest update.
  double evaluate(const char* split, const LabelledRows Program::* nodes, int line = 0) {
    if (num_epochs_ == 0) fail(line, "an accuracy is asked for before the first epoch");
    if (!is_predicted_) program_.predict();
    is_predicted_ = true;
    const double found = program_.accuracy(program_.*nodes);
    std::printf("epoch %lld %s %.6f\n", static_cast<long long>(num_epochs_ - 1), split, found);
    if (stop_.split == split && watched_at_ != num_epochs_) {  // once an epoch
      watched_at_ = num_epochs_;
      watched_.push_back(found);
      if (is_over(watched_, stop_.patience)) throw StoppedEarly{};
    }
    return found;
  }

  int64_t num_epochs() const { return num_epochs_; }
  double total_seconds() const { return total_seconds_; }
  int64_t sent_bytes() const { return sent_bytes_; }

 private:
  static constexpr bool kHasRanks = requires(Program& program) { program.ranks; };

  Program& program_;
  EarlyStop stop_;
  std::vector<double> watched_;
  double begin_ = 0, loss_ = 0, total_seconds_ = 0;
  bool has_loss_ = false, is_predicted_ = false;
  int64_t num_epochs_ = 0, watched_at_ = 0, sent_bytes_ = 0;
};

}  // namespace program
