// The sanitizers' hooks, which are null where the program is built without them.
//
// Sources that include this are compiled without -fsanitize=thread: what they do is the hardware's
// doing, not the program's.
#pragma once

#include <cstddef>

extern "C" {
#define FOREBAY_WEAK __attribute__((weak))
FOREBAY_WEAK void* __tsan_get_current_fiber(void);
FOREBAY_WEAK void* __tsan_create_fiber(unsigned flags);
FOREBAY_WEAK void __tsan_destroy_fiber(void* fiber);
FOREBAY_WEAK void __tsan_switch_to_fiber(void* fiber, unsigned flags);
FOREBAY_WEAK void __tsan_set_fiber_name(void* fiber, const char* name);
FOREBAY_WEAK void __tsan_acquire(void* address);
FOREBAY_WEAK void __tsan_release(void* address);
FOREBAY_WEAK void AnnotateIgnoreReadsBegin(const char* file, int line);
FOREBAY_WEAK void AnnotateIgnoreWritesBegin(const char* file, int line);
FOREBAY_WEAK void __sanitizer_start_switch_fiber(void** fake_stack, const void* bottom,
                                                 size_t size);
FOREBAY_WEAK void __sanitizer_finish_switch_fiber(void* fake_stack, const void** bottom,
                                                  size_t* size);
FOREBAY_WEAK void __asan_poison_memory_region(void const volatile* address, size_t size);
FOREBAY_WEAK void __asan_unpoison_memory_region(void const volatile* address, size_t size);
#undef FOREBAY_WEAK
}

namespace forebay::emulation {

inline bool HasTsan() {
  return __tsan_create_fiber != nullptr;
}

// Work before Release(address) comes before work behind Acquire(address).
inline void Acquire(void* address) {
  if (HasTsan()) __tsan_acquire(address);
}
inline void Release(void* address) {
  if (HasTsan()) __tsan_release(address);
}

inline void* TsanSelf() {
  return HasTsan() ? __tsan_get_current_fiber() : nullptr;
}
// Goes on as `fiber`, which orders nothing.
inline void TsanBecome(void* fiber) {
  constexpr unsigned kWithoutOrder = 1;
  if (HasTsan() && fiber != __tsan_get_current_fiber()) {
    __tsan_switch_to_fiber(fiber, kWithoutOrder);
  }
}
// A thread whose accesses TSan ignores, and which orders nobody: the emulation's own work is done
// as this one, whichever thread of the program called. One at a time (the emulation's lock).
inline void* TsanDriver() {
  static void* const driver = [] {
    if (!HasTsan()) return static_cast<void*>(nullptr);
    void* const self = TsanSelf();
    void* const fiber = __tsan_create_fiber(0);
    TsanBecome(fiber);
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
    TsanBecome(self);
    return fiber;
  }();
  return driver;
}
// For a while as another.
class TsanAs {
 public:
  explicit TsanAs(void* fiber) : before_(TsanSelf()) { TsanBecome(fiber); }
  ~TsanAs() { TsanBecome(before_); }
  TsanAs(const TsanAs&) = delete;
  TsanAs& operator=(const TsanAs&) = delete;
  void* before() const { return before_; }

 private:
  void* const before_;
};

inline void Poison(const void* address, size_t size) {
  if (__asan_poison_memory_region != nullptr) __asan_poison_memory_region(address, size);
}
inline void Unpoison(const void* address, size_t size) {
  if (__asan_unpoison_memory_region != nullptr) __asan_unpoison_memory_region(address, size);
}

}  // namespace forebay::emulation
