// Starting threads. If the system refuses one, that is an error to report, or a reason to use fewer; it never
// ends the process.
#pragma once

#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace gb {

// The system refuses threads that are needed. Python sees it as graphbraid's ResourceError.
struct ThreadsRefused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// More threads than any machine has cores for.
inline constexpr int kMostThreads = 1024;

// Adds `count` threads that run `body` to `threads`. Returns an empty text, or the system's message if it
// refused one.
std::string start_threads(std::vector<std::thread>& threads, int count, const std::function<void()>& body);

}  // namespace gb
