// Which buffer of a window holds which layer, and which of them gives way to another. Pure: the
// window asks it (layer_window.h), and so does who counts beforehand what the window will read
// (swap/window/step_transfers.h).
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace forebay {

// Which buffers may hold a layer.
enum class BufferClass : uint8_t { kBlock, kLarge, kResident };
inline constexpr int kNumWindowClasses = 2;  // those that layers share: kBlock and kLarge

// Thread-compatible.
class WindowBuffers {
 public:
  struct Buffer {
    BufferClass buffer_class = BufferClass::kBlock;
    int layer = -1;        // whose weights it holds, or will; -1: none
    int num_users = 0;     // accesses and leases that need it
    int64_t last_use = 0;  // when a use of it ended: the number of that use; 0: none did
  };

  // As many buffers of each class as `num_of_class` says, in their order, and one behind them for
  // each resident layer, which has it for good.
  WindowBuffers(std::vector<BufferClass> class_of_layer,
                std::array<int, kNumWindowClasses> num_of_class);

  int num_layers() const { return static_cast<int>(class_of_layer_.size()); }
  int num_buffers() const { return static_cast<int>(buffers_.size()); }
  BufferClass ClassOf(int layer) const { return class_of_layer_[layer]; }
  const Buffer& operator[](int buffer) const { return buffers_[buffer]; }

  // The buffer that holds the layer; -1: none.
  int Find(int layer) const { return buffer_of_layer_[layer]; }
  // The buffer for an access to the layer: the one that holds it, or of those that nobody needs,
  // the one that has been free for longest; -1: there is none. Layers are used up and down in turn,
  // so that one's layer is used again last (Belady 1966). Buffers become free in this order too, so
  // the choice does not depend on how many of them are free by now: a step reads the same layers
  // however fast disk and caller are.
  int Choose(int layer) const;
  // An access to the layer needs the buffer. Requires: it is Choose(layer).
  void Take(int buffer, int layer);
  // Such an access ends.
  void Release(int buffer);
  // Such an access will not take place.
  void TakeBack(int buffer);
  // The buffer holds no layer any more. Requires: nobody needs it, and its layer is not resident.
  void Forget(int buffer);

 private:
  std::vector<BufferClass> class_of_layer_;
  std::vector<Buffer> buffers_;
  std::vector<int> buffer_of_layer_;
  int64_t num_uses_ = 0;  // that have ended
};

}  // namespace forebay
