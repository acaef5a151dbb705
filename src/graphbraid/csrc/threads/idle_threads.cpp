// Lets OpenMP's threads sleep while they wait for work: docs/decisions/0009 says why, and why in this way.
#include "threads/idle_threads.h"

#ifndef GB_STD_THREADS
#include <omp.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <system_error>
#include <thread>
#include <vector>
#endif

namespace gb {

#ifdef GB_STD_THREADS

bool let_idle_threads_sleep() { return false; }

#else

// Whether the process may start `count` more threads. If OpenMP cannot start one, it ends the process.
static bool can_have_threads(int count) {
  std::vector<std::thread> threads;
  std::atomic<bool> may_end{false};
  bool all = true;
  try {
    for (int i = 0; i < count; ++i) threads.emplace_back([&] { may_end.wait(false); });
  } catch (const std::system_error&) {
    all = false;
  }
  may_end = true;
  may_end.notify_all();
  for (std::thread& thread : threads) thread.join();
  return all;
}

// The threads of the region stay with the thread that opened it, asleep. It never ends, so neither do they.
static void park(int count, std::promise<int>& parked) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);  // signals go to the main thread
  omp_set_dynamic(0);
  int started = 0;
#pragma omp parallel num_threads(count) reduction(+ : started)
  started += 1;
  parked.set_value(started);
  for (;;) pause();
}

bool let_idle_threads_sleep() {
  const int count = omp_get_num_procs() + 1;  // with more threads than processors, libgomp hardly spins
  if (!can_have_threads(count)) return false;
  std::promise<int> parked;
  std::future<int> started = parked.get_future();
  std::thread([&] { park(count, parked); }).detach();
  return started.get() == count;
}

#endif

}  // namespace gb
