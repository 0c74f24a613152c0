#include "forebay/device/emulation/fiber.h"

#include <sys/mman.h>

#include "forebay/device/emulation/options.h"
#include "forebay/device/emulation/sanitizers.h"

// Saves the registers that a call preserves, and goes on where `to` was saved.
extern "C" void forebay_switch_stack(void** saved, void* to);
#if defined(__x86_64__)
asm(R"(
.text
.globl forebay_switch_stack
.type forebay_switch_stack,@function
forebay_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size forebay_switch_stack,.-forebay_switch_stack
)");
#else
#error "the emulated GPU has no switch of stacks for this CPU (on aarch64: x19-x30, d8-d15, sp)"
#endif

namespace forebay::emulation {
namespace {

constexpr size_t kStackBytes = size_t{128} << 10;
constexpr size_t kPageBytes = 4096;
constexpr int kSavedRegisters = 6;

}  // namespace

Fiber::Fiber(void (*entry)()) {
  void* const memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) Die("there is no memory for the stack of a thread");
  memory_ = static_cast<char*>(memory);
  mprotect(memory_, kPageBytes, PROT_NONE);
  bottom = memory_ + kPageBytes;
  size = kStackBytes - kPageBytes;
  void** top = reinterpret_cast<void**>(memory_ + kStackBytes - 64);
  *--top = nullptr;  // where entry would return to
  *--top = reinterpret_cast<void*>(entry);
  for (int i = 0; i < kSavedRegisters; ++i) *--top = nullptr;
  stack_pointer = top;
}

Fiber::~Fiber() {
  munmap(memory_, kStackBytes);
}

void Switch(Context& from, Context& to, Context& main) {
  if (__sanitizer_start_switch_fiber != nullptr) {
    __sanitizer_start_switch_fiber(&from.fake_stack, to.bottom, to.size);
  }
  forebay_switch_stack(&from.stack_pointer, to.stack_pointer);
  if (__sanitizer_finish_switch_fiber == nullptr) return;
  const bool came_from_main = &from != &main;
  __sanitizer_finish_switch_fiber(from.fake_stack, came_from_main ? &main.bottom : nullptr,
                                  came_from_main ? &main.size : nullptr);
}

void Arrived(Context& main) {
  if (__sanitizer_finish_switch_fiber != nullptr) {
    __sanitizer_finish_switch_fiber(nullptr, &main.bottom, &main.size);
  }
}

}  // namespace forebay::emulation
