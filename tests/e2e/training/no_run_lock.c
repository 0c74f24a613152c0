// Locks of a run folder fail as on a file system without them: preloaded, with the errno in
// NO_LOCK_ERRNO.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int (*flock_function)(int, int);

int flock(int fd, int operation) {
  char link[64];
  char path[4096] = "";
  snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
  const ssize_t size = readlink(link, path, sizeof(path) - 1);
  const char* const end = "/run.lock";
  if (size >= (ssize_t)strlen(end) && strcmp(path + size - strlen(end), end) == 0) {
    errno = atoi(getenv("NO_LOCK_ERRNO"));
    return -1;
  }
  return ((flock_function)dlsym(RTLD_NEXT, "flock"))(fd, operation);
}
