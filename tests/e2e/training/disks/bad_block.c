// Reads that meet one block of one file fail with EIO, as those of a bad sector do: preloaded, with
// the inode of the file in BAD_INODE and the block of 4096 bytes in BAD_BLOCK. For whoever reads
// with pread, as --engine=threads does.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int is_bad(int fd, long long begin, size_t bytes) {
  const char* const inode = getenv("BAD_INODE");
  const char* const block = getenv("BAD_BLOCK");
  struct stat info;
  if (inode == NULL || block == NULL || fstat(fd, &info) != 0) return 0;
  const long long bad = atoll(block) * 4096;
  return (unsigned long long)info.st_ino == strtoull(inode, NULL, 10) && begin < bad + 4096 &&
         begin + (long long)bytes > bad;
}

typedef ssize_t (*pread_function)(int, void*, size_t, off_t);
typedef ssize_t (*read_function)(int, void*, size_t);

ssize_t pread(int fd, void* data, size_t bytes, off_t offset) {
  if (is_bad(fd, offset, bytes)) return errno = EIO, -1;
  return ((pread_function)dlsym(RTLD_NEXT, "pread"))(fd, data, bytes, offset);
}
ssize_t pread64(int fd, void* data, size_t bytes, off_t offset) {
  return pread(fd, data, bytes, offset);
}
ssize_t read(int fd, void* data, size_t bytes) {
  const off_t at = lseek(fd, 0, SEEK_CUR);
  if (at >= 0 && is_bad(fd, at, bytes)) return errno = EIO, -1;
  return ((read_function)dlsym(RTLD_NEXT, "read"))(fd, data, bytes);
}
