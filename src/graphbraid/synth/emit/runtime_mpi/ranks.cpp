#include "ranks.h"

#include <mpi.h>

#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>

namespace program {
namespace {

int count_of(size_t count) {
  if (count > INT_MAX) throw std::runtime_error("a parameter has more elements than MPI can sum at a time");
  return static_cast<int>(count);
}

}  // namespace

struct Ranks::Sums {
  std::vector<MPI_Request> requests;
};

Ranks::Ranks(int* count, char*** words) : sums_(std::make_unique<Sums>()) {
  int provided = 0;  // funneled: only one thread calls MPI; every implementation provides that
  MPI_Init_thread(count, words, MPI_THREAD_FUNNELED, &provided);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
}

Ranks::~Ranks() { MPI_Finalize(); }

double Ranks::sum(double value) const {
  double total = 0;
  MPI_Allreduce(&value, &total, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  return total;
}

void Ranks::sum(std::vector<double>& values) {
  count_sent(values.size() * sizeof(double));
  MPI_Allreduce(MPI_IN_PLACE, values.data(), count_of(values.size()), MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

void Ranks::begin_sum(std::vector<float>& values) {
  count_sent(values.size() * sizeof(float));
  sums_->requests.emplace_back();
  MPI_Iallreduce(MPI_IN_PLACE, values.data(), count_of(values.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD,
                 &sums_->requests.back());
}

void Ranks::finish_sums() {
  std::vector<MPI_Request>& requests = sums_->requests;
  MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
  requests.clear();
}

void Ranks::let_one_speak() const {
  if (rank_ != 0 && std::freopen("/dev/null", "w", stdout) == nullptr)
    throw std::runtime_error("/dev/null cannot be opened");
}

void Ranks::require_alike(uint64_t number, const std::string& what) const {
  // The largest complement is the complement of the smallest number: one maximum gives both ends.
  const uint64_t both[2] = {number, ~number};
  uint64_t most[2] = {};
  MPI_Allreduce(both, most, 2, MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD);
  if (most[0] != ~most[1]) throw std::runtime_error("the ranks have different " + what);
}

void Ranks::end_all(int code) {
  // mpirun drops output of the ranks that it has not read yet, such as the error: it gets time to read.
  std::fflush(nullptr);
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  MPI_Abort(MPI_COMM_WORLD, code);
  std::abort();  // not reached
}

}  // namespace program
