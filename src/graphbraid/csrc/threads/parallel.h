// Parallel loops over index ranges. Every OpenMP region of the core is in this file, so that a
// thread-sanitizer build (GB_STD_THREADS) can replace the runtime, which the sanitizer cannot see into, by
// plain threads.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <mutex>
#include <vector>

#include "threads/startable.h"

#ifdef GB_STD_THREADS
#include <thread>
#else
#include <omp.h>
#endif

namespace gb {

// Whether this process was forked after the kernels were loaded. The threads of OpenMP stay behind in the
// parent, and a parallel region would wait for them for ever: such a process works on one thread.
inline bool in_forked_child() {
  static std::atomic<bool> forked{false};
  [[maybe_unused]] static const int watched = pthread_atfork(nullptr, nullptr, [] { forked = true; });
  return forked.load(std::memory_order_relaxed);
}

// Threads that run the loops of a pass in place of OpenMP's (threads/awake.cpp).
struct PassTeam {
  using Share = void (*)(const void* body, int number, int shares);
  // Calls share(body, number, shares) once for each number below `shares`, on any of its threads.
  virtual void run(int shares, Share share, const void* body) = 0;

 protected:
  ~PassTeam() = default;
};
// The team of the calling thread's pass; null outside of one. Generated programs have none.
inline constinit thread_local PassTeam* team_of_pass = nullptr;
// Whether the calling thread is doing a share of a team's loop.
inline constinit thread_local bool in_team = false;

inline int max_threads() {
  if (in_team) return 1;
#ifdef GB_STD_THREADS
  return 4;
#else
  if (omp_in_parallel() || in_forked_child()) return 1;
  return startable_threads(omp_get_max_threads());
#endif
}

// Keeps what the first of several threads threw: an exception that left a parallel region would end the
// process.
class FirstError {
 public:
  template <typename Body>
  void guard(const Body& body) {
    try {
      body();
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
};

// The error of the lowest of numbered pieces of work. Pieces are begun in order and those below a failed one
// still end, so it is the same one whichever thread comes first.
class LowestError {
 public:
  template <typename Body>
  void guard(size_t piece, const Body& body) {
    try {
      body();
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!is_before(piece)) {
        error_ = std::current_exception();
        piece_ = piece;
      }
    }
  }
  // Whether a piece below this one failed, so that this one need not be done.
  bool is_before(size_t piece) const { return piece_.load() < piece; }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::atomic<size_t> piece_{SIZE_MAX};
  std::exception_ptr error_;
};

// Calls body(thread, num_threads) once on each of `num_threads` threads.
template <typename Body>
void parallel_team(int num_threads, const Body& body) {
  if (num_threads <= 1) {
    body(0, 1);
    return;
  }
  FirstError error;
  if (team_of_pass) {
    const auto share = [&](int t, int team) { error.guard([&] { body(t, team); }); };
    const auto do_share = [](const void* f, int t, int team) {
      (*static_cast<decltype(&share)>(f))(t, team);
    };
    team_of_pass->run(num_threads, do_share, &share);
    return error.rethrow();
  }
#ifdef GB_STD_THREADS
  std::vector<std::thread> threads;
  for (int t = 1; t < num_threads; ++t)
    threads.emplace_back([&, t] { error.guard([&] { body(t, num_threads); }); });
  error.guard([&] { body(0, num_threads); });
  for (auto& thread : threads) thread.join();
#else
#pragma omp parallel num_threads(num_threads)
  error.guard([&] { body(omp_get_thread_num(), omp_get_num_threads()); });
#endif
  error.rethrow();
}

// Calls body(begin, end) over [0, n) in chunks of `grain`, handed out as threads become free. For work whose
// cost per index varies, as with power-law degrees.
template <typename Body>
void parallel_dynamic(int64_t n, int64_t grain, const Body& body) {
  const int64_t chunks = (n + grain - 1) / grain;
  const int threads = static_cast<int>(std::min<int64_t>(chunks, max_threads()));
  if (threads <= 1) {
    if (n > 0) body(int64_t{0}, n);
    return;
  }
  std::atomic<int64_t> next{0};
  parallel_team(threads, [&](int, int) {
    for (int64_t c; (c = next.fetch_add(1, std::memory_order_relaxed)) < chunks;)
      body(c * grain, std::min(n, (c + 1) * grain));
  });
}

// Calls body(begin, end) with one contiguous share of [0, n) per thread; runs alone when a share would be <
// grain.
template <typename Body>
void parallel_static(int64_t n, int64_t grain, const Body& body) {
  const int threads =
      static_cast<int>(std::clamp<int64_t>(n / std::max<int64_t>(grain, 1), 1, max_threads()));
  if (threads <= 1) {
    if (n > 0) body(int64_t{0}, n);
    return;
  }
  parallel_team(threads, [&](int t, int team) { body(n * t / team, n * (t + 1) / team); });
}

}  // namespace gb
