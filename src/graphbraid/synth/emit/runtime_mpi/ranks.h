// The ranks of a job, and what they send to each other besides rows. An error inside MPI ends the job with
// MPI's own message.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cpu_kernels.h"

namespace program {

// The arguments of couple(), which completes the gradient of rows that all ranks normalise together.
struct Couple {
  Matrix grad_x = {};  // rstd * weight * grad before; its averages over all ranks' rows are subtracted
  ConstMatrix x = {};
  Matrix scratch = {};  // of grad_x's shape, written
  const float *mean = nullptr, *rstd = nullptr, *weight = nullptr;
  const float *grad_weight = nullptr, *grad_bias = nullptr;  // the sums over this rank's rows
};

// All ranks make the same calls in the same order, from one thread.
class Ranks {
 public:
  // Joins the job that mpirun has started, and leaves it.
  Ranks(int* count, char*** words);
  ~Ranks();
  Ranks(const Ranks&) = delete;
  Ranks& operator=(const Ranks&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }

  // The sum of the ranks' values, the same on each.
  double sum(double value) const;
  // Replaces values by their sums.
  void sum(std::vector<double>& values);
  // Begins to replace values by their sums. They must stay in their place until finish_sums().
  void begin_sum(std::vector<float>& values);
  // Waits for all sums that were begun.
  void finish_sums();

  // Like batch_statistics of kernels.h, but of all ranks' rows; and the rest of its gradient
  // (ranks_norm.cpp).
  void batch_statistics(const BatchStatistics& a);
  void couple(const Couple& a);

  // Bytes of rows that this rank sent to others and of vectors that it gave to sums, since forget_sent().
  int64_t sent_bytes() const { return sent_bytes_; }
  void forget_sent() { sent_bytes_ = 0; }
  void count_sent(size_t bytes) { sent_bytes_ += size_ > 1 ? static_cast<int64_t>(bytes) : 0; }

  // Drops the output of all ranks but the first. Throws std::runtime_error.
  void let_one_speak() const;
  // Throws std::runtime_error unless all ranks give the same number.
  void require_alike(uint64_t number, const std::string& what) const;

  // Ends the job on all ranks, in half a second.
  [[noreturn]] static void end_all(int code);

 private:
  int rank_ = 0, size_ = 1;
  int64_t sent_bytes_ = 0;
  struct Sums;  // under way
  std::unique_ptr<Sums> sums_;
};

}  // namespace program
