#include "threads/threads.h"

#include <algorithm>
#include <future>
#include <system_error>

#include "threads/startable.h"

namespace gb {

std::string start_threads(std::vector<std::thread>& threads, int count, const std::function<void()>& body) {
  threads.reserve(threads.size() + static_cast<size_t>(count));
  try {
    for (int t = 0; t < count; ++t) threads.emplace_back(body);
  } catch (const std::system_error& error) {
    return error.what();
  }
  return {};
}

int startable_threads(int wanted) {
  thread_local int proven = 1, refused = kMostThreads + 1;  // so many could be started, so many could not
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
