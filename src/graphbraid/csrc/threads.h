// Starting threads where the system may refuse one: that is an error to tell, or a reason to use fewer, never
// the end of the process.
#pragma once

#include <algorithm>
#include <functional>
#include <future>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

namespace gb {

// Threads that are needed are not to be had. Python sees it as graphbraid's ResourceError.
struct ThreadsRefused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// More than any machine has cores for.
inline constexpr int kMostThreads = 1024;

// Adds `count` threads that run `body` to `threads`; returns what the system said where it refused one, else
// an empty text.
inline std::string start_threads(std::vector<std::thread>& threads, int count,
                                 const std::function<void()>& body) {
  threads.reserve(threads.size() + static_cast<size_t>(count));
  try {
    for (int t = 0; t < count; ++t) threads.emplace_back(body);
  } catch (const std::system_error& error) {
    return error.what();
  }
  return {};
}

// How many of `wanted` threads OpenMP can have: where it is refused one, its runtime ends the process. So as
// many plain threads are started first, once per thread that asks, and fewer are used where they cannot be.
inline int startable_threads(int wanted) {
  thread_local int proven = 1, refused = kMostThreads + 1;
  wanted = std::min({wanted, refused - 1, kMostThreads});
  if (wanted <= proven) return std::max(wanted, 1);
  std::vector<std::thread> threads;
  std::promise<void> done;
  const std::shared_future<void> all_started = done.get_future().share();
  const bool complete = start_threads(threads, wanted - 1, [all_started] { all_started.wait(); }).empty();
  proven = static_cast<int>(threads.size()) + 1;
  if (!complete) refused = proven + 1;
  done.set_value();
  for (auto& thread : threads) thread.join();
  return proven;
}

}  // namespace gb
