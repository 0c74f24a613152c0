// Stacks that a thread can switch between: 7 ns a switch, where ucontext takes 237.
#pragma once

#include <cstddef>

namespace forebay::emulation {

// Where something runs that can be left and gone on with.
struct Context {
  void* stack_pointer = nullptr;  // while it does not run
  void* fake_stack = nullptr;     // ASan's
  const void* bottom = nullptr;
  size_t size = 0;
};

// A stack of its own with a guard page below it. Its first switch calls `entry`, which never
// returns, and begins with Arrived.
class Fiber : public Context {
 public:
  explicit Fiber(void (*entry)());
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

 private:
  char* memory_ = nullptr;
};

// Leaves `from`, and goes on in `to`. Returns when somebody switches back. `main`: the context of
// the thread's own stack, whose bounds are found out.
void Switch(Context& from, Context& to, Context& main);
// The first thing on a new stack.
void Arrived(Context& main);

}  // namespace forebay::emulation
