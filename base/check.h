// Broken invariants. For what the world can cause (disks, files, users) use base/errors.h instead.
#pragma once

#include <cstdio>
#include <cstdlib>

// Aborts with file and line when `condition` is false, in every build type. Never evaluates twice.
#define FOREBAY_CHECK(condition)                                                                  \
  do {                                                                                            \
    if (!(condition)) {                                                                           \
      std::fprintf(stderr,                                                                        \
                   "%s:%d: internal error: '%s' does not hold. This is a bug in forebay; please " \
                   "report it with this line.\n",                                                 \
                   __FILE__, __LINE__, #condition);                                               \
      std::abort();                                                                               \
    }                                                                                             \
  } while (false)
