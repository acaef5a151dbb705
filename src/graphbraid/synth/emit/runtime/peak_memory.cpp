#include "peak_memory.h"

#include <fstream>
#include <string>

namespace program {

int64_t peak_memory() {
  // getrusage would not do: a process inherits its peak from the process that started it.
  std::ifstream status("/proc/self/status");
  int64_t kilobytes = 0;
  for (std::string line; std::getline(status, line);)
    if (line.rfind("VmHWM:", 0) == 0) kilobytes = std::stoll(line.substr(6));
  return 1024 * kilobytes;
}

}  // namespace program
