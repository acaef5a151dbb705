// The team of threads of a pass.
//
// A thread of OpenMP that sleeps (docs/decisions/0009) takes some 60 microseconds to wake, and a loop ends
// when all of its threads have come. A step of a small graph is some thirty loops of a tenth of a
// millisecond. So
//
// - a thread without work looks for the next loop for a while before it sleeps;
// - the shares of a loop are taken, not given: one that no thread has come for is done by the thread that
//   opened the loop, which waits only for shares that others have taken.
//
// No share's numbers depend on the thread that does it, so no bit of a result does.
#include "threads/awake.h"

#include <pthread.h>
#include <signal.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <system_error>
#include <thread>

#include "threads/parallel.h"

namespace gb {
namespace {

void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Asks is_there() until it is true or `microseconds` are over. Returns its last answer.
template <typename IsThere>
bool looked_for(int microseconds, const IsThere& is_there) {
  using Clock = std::chrono::steady_clock;
  if (is_there()) return true;
  const Clock::time_point until = Clock::now() + std::chrono::microseconds(microseconds);
  do {
    for (int i = 0; i < 32; ++i) {
      if (is_there()) return true;
      pause_briefly();
    }
    std::this_thread::yield();  // to whoever waits for this core, such as a thread of torch
  } while (Clock::now() < until);
  return is_there();
}

class AwakeTeam final : public PassTeam {
 public:
  bool begin(int look_microseconds) {
    bool is_free = false;
    if (!is_taken_.compare_exchange_strong(is_free, true)) return false;
    looks_for_ = look_microseconds;
    start(max_threads() - 1);
    call();  // they wake while the pass prepares its first loop
    team_of_pass = this;
    return true;
  }

  void end() {
    team_of_pass = nullptr;
    is_taken_ = false;
  }

  void run(int shares, Share share, const void* body) override {
    share_ = share;
    body_ = body;
    shares_ = shares;
    num_done_.store(0, std::memory_order_relaxed);
    const uint64_t loop = (open_.load(std::memory_order_relaxed) >> 32) + 1;
    open_.store(loop << 32 | static_cast<uint64_t>(shares), std::memory_order_release);
    call();
    in_team = true;
    while (do_share()) {
    }
    in_team = false;
    const auto all_done = [&] { return num_done_.load(std::memory_order_acquire) == shares; };
    if (looked_for(looks_for_, all_done)) return;
    for (int done; (done = num_done_.load(std::memory_order_acquire)) != shares;) num_done_.wait(done);
  }

 private:
  // Starts threads until there are `wanted`. If the system refuses some, the others do their shares.
  void start(int wanted) {
    if (num_threads_ >= wanted) return;
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before);  // signals go to other threads
    try {
      for (; num_threads_ < wanted; ++num_threads_) std::thread([this] { serve(); }).detach();
    } catch (const std::system_error&) {
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  // Wakes those that sleep: serve() sleeps only while the count stays as it is.
  void call() {
    calls_.fetch_add(1, std::memory_order_release);
    calls_.notify_all();
  }

  // Takes a share of the open loop and does it. Returns false if there is none.
  bool do_share() {
    uint64_t open = open_.load(std::memory_order_acquire);
    while (static_cast<uint32_t>(open) != 0) {
      // The loop's number is compared, too: a share of another loop is not taken for this one's.
      if (!open_.compare_exchange_weak(open, open - 1, std::memory_order_acq_rel, std::memory_order_acquire))
        continue;
      const int shares = shares_;  // before this one is done: then the next loop may begin
      share_(body_, static_cast<int>(static_cast<uint32_t>(open)) - 1, shares);
      if (num_done_.fetch_add(1, std::memory_order_acq_rel) + 1 == shares) num_done_.notify_one();
      return true;
    }
    return false;
  }

  bool has_share() const { return static_cast<uint32_t>(open_.load(std::memory_order_acquire)) != 0; }

  [[noreturn]] void serve() {
    in_team = true;
    for (;;) {
      while (do_share()) {
      }
      if (looked_for(looks_for_, [&] { return has_share(); })) continue;
      const int32_t calls = calls_.load(std::memory_order_acquire);
      if (!has_share()) calls_.wait(calls);
    }
  }

  std::atomic<bool> is_taken_{false};
  std::atomic<int> looks_for_{0};  // microseconds
  int num_threads_ = 0;            // of whoever has taken the team
  // The open loop: its number, and in the low half the number of shares that nobody has taken.
  alignas(64) std::atomic<uint64_t> open_{0};
  alignas(64) std::atomic<int32_t> num_done_{0};
  alignas(64) std::atomic<int32_t> calls_{0};
  // Of the open loop. Written while no share is taken, read by those who have taken one.
  Share share_ = nullptr;
  const void* body_ = nullptr;
  int shares_ = 0;
};

// Never destroyed: its threads sleep in it when the process ends.
AwakeTeam& the_team() {
  static AwakeTeam& team = *new AwakeTeam;
  return team;
}

bool binds_threads() {
#ifdef GB_STD_THREADS
  return false;
#else
  return omp_get_proc_bind() != omp_proc_bind_false;
#endif
}

}  // namespace

bool begin_pass(int look_microseconds) {
  if (look_microseconds < 0 || team_of_pass || max_threads() == 1 || binds_threads()) return false;
  return the_team().begin(look_microseconds);
}

void end_pass() { the_team().end(); }

}  // namespace gb
