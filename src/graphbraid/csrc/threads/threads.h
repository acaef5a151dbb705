// Starting threads where the system may refuse one: that is an error to tell, or a reason to use fewer, never
// the end of the process.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
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
std::string start_threads(std::vector<std::thread>& threads, int count, const std::function<void()>& body);

}  // namespace gb
