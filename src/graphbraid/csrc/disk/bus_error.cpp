#include "disk/bus_error.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>

namespace gb {
namespace {

constexpr size_t kMostPath = 4096;

uintptr_t hex_number(const char*& at) {
  uintptr_t number = 0;
  for (;; ++at) {
    const char c = *at;
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) return number;
    number = number * 16 + static_cast<uintptr_t>(digit);
  }
}

// Writes the path of the file that is mapped at an address; only calls that a signal handler may make. Lines
// of /proc/self/maps are "begin-end permissions offset device inode path".
bool write_file_at(uintptr_t address) {
  const int maps = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  if (maps < 0) return false;
  char line[kMostPath + 128];
  size_t length = 0;
  char c = 0;
  while (read(maps, &c, 1) == 1) {
    if (c != '\n') {
      if (length + 1 < sizeof line) line[length++] = c;
      continue;
    }
    line[length] = 0;
    const char* at = line;
    const uintptr_t begin = hex_number(at);
    const uintptr_t end = *at == '-' ? hex_number(++at) : 0;
    const char* path = std::strchr(at, '/');
    if (begin <= address && address < end && path != nullptr) {
      close(maps);
      return write(STDERR_FILENO, path, line + length - path) > 0;
    }
    length = 0;
  }
  close(maps);
  return false;
}

std::atomic_flag is_told;

void explain(int, siginfo_t* info, void*) {
  constexpr char kWhy[] =
      " ended while it was being read: it was truncated, or its disk failed. Write it again, and change no "
      "file that a run reads.\n";
  if (is_told.test_and_set()) {
    for (;;) pause();  // another thread writes the message and then ends the process
  }
  if (info->si_code == BUS_ADRERR && write_file_at(reinterpret_cast<uintptr_t>(info->si_addr)) &&
      write(STDERR_FILENO, kWhy, sizeof kWhy - 1) < 0) {
    // Nobody can be told.
  }
  signal(SIGBUS, SIG_DFL);
  raise(SIGBUS);
}

}  // namespace

void explain_bus_errors() {
  struct sigaction now{};
  if (sigaction(SIGBUS, nullptr, &now) != 0 || (now.sa_flags & SA_SIGINFO) != 0 || now.sa_handler != SIG_DFL)
    return;
  struct sigaction ours{};
  ours.sa_sigaction = explain;
  ours.sa_flags = SA_SIGINFO;
  sigaction(SIGBUS, &ours, nullptr);
}

}  // namespace gb
