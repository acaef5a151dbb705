// A library to preload: reads of a file give less than was asked for, are interrupted, or fail.
//
// FAULTS=short: a read of several blocks of 4096 bytes gives about half of them, and every third pread is
// interrupted first. FAULTS=fail: every pread of a block or more, and every read by io_uring, is an error.
// Requests of io_uring are changed in its queue, just before the kernel is told of them.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/io_uring.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>

enum { BLOCK = 4096 };

static struct io_uring_sqe *queue;
static size_t queue_length;
static long num_faults, num_preads;

// How many reads were cut short, interrupted or failed so far.
long faults_so_far(void) { return __atomic_load_n(&num_faults, __ATOMIC_RELAXED); }

static int faults_are(const char *kind) {
  const char *asked = getenv("FAULTS");
  return asked != NULL && strcmp(asked, kind) == 0;
}

static void count_one(void) { __atomic_add_fetch(&num_faults, 1, __ATOMIC_RELAXED); }

static size_t about_half(size_t num_bytes) { return (num_bytes / 2 + BLOCK - 1) / BLOCK * BLOCK; }

static ssize_t faulty_pread(const char *name, int file, void *to, size_t num_bytes, off_t offset) {
  ssize_t (*real)(int, void *, size_t, off_t) = (ssize_t(*)(int, void *, size_t, off_t))dlsym(RTLD_NEXT, name);
  if (num_bytes >= BLOCK && faults_are("fail")) {
    count_one();
    errno = EIO;
    return -1;
  }
  if (num_bytes >= BLOCK && faults_are("short")) {
    if (__atomic_add_fetch(&num_preads, 1, __ATOMIC_RELAXED) % 3 == 0) {
      count_one();
      errno = EINTR;
      return -1;
    }
    if (num_bytes >= 2 * BLOCK) {
      count_one();
      num_bytes = about_half(num_bytes);
    }
  }
  return real(file, to, num_bytes, offset);
}

ssize_t pread(int file, void *to, size_t num_bytes, off_t offset) {
  return faulty_pread("pread", file, to, num_bytes, offset);
}

ssize_t pread64(int file, void *to, size_t num_bytes, off_t offset) {
  return faulty_pread("pread64", file, to, num_bytes, offset);
}

static void *watched_mmap(const char *name, void *at, size_t num_bytes, int protection, int flags, int file,
                          off_t offset) {
  void *(*real)(void *, size_t, int, int, int, off_t) =
      (void *(*)(void *, size_t, int, int, int, off_t))dlsym(RTLD_NEXT, name);
  void *found = real(at, num_bytes, protection, flags, file, offset);
  if (found != MAP_FAILED && file >= 0 && offset == (off_t)IORING_OFF_SQES) {
    queue = found;
    queue_length = num_bytes / sizeof(struct io_uring_sqe);
  }
  return found;
}

void *mmap(void *at, size_t num_bytes, int protection, int flags, int file, off_t offset) {
  return watched_mmap("mmap", at, num_bytes, protection, flags, file, offset);
}

void *mmap64(void *at, size_t num_bytes, int protection, int flags, int file, off_t offset) {
  return watched_mmap("mmap64", at, num_bytes, protection, flags, file, offset);
}

static void spoil_queue(void) {
  for (size_t i = 0; i < queue_length; ++i) {
    struct io_uring_sqe *request = &queue[i];
    if (request->opcode != IORING_OP_READ || request->len < BLOCK) continue;
    if (faults_are("fail")) {
      count_one();
      request->fd = -1;
    } else if (faults_are("short") && request->len >= 2 * BLOCK) {
      count_one();
      request->len = (unsigned)about_half(request->len);
    }
  }
}

long syscall(long number, ...) {
  long (*real)(long, ...) = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
  va_list given;
  va_start(given, number);
  long a[6];
  for (int i = 0; i < 6; ++i) a[i] = va_arg(given, long);
  va_end(given);
  if (number == __NR_io_uring_enter) spoil_queue();
  return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
