#include "forebay/step/window_buffers.h"

#include <utility>

#include "forebay/base/check.h"

namespace forebay {

WindowBuffers::WindowBuffers(std::vector<BufferClass> class_of_layer,
                             std::array<int, kNumWindowClasses> num_of_class)
    : class_of_layer_(std::move(class_of_layer)), buffer_of_layer_(class_of_layer_.size(), -1) {
  for (int i = 0; i < kNumWindowClasses; ++i) {
    buffers_.insert(buffers_.end(), num_of_class[i], {.buffer_class = static_cast<BufferClass>(i)});
  }
  for (int layer = 0; layer < num_layers(); ++layer) {
    if (ClassOf(layer) != BufferClass::kResident) continue;
    buffer_of_layer_[layer] = num_buffers();
    buffers_.push_back({.buffer_class = BufferClass::kResident, .layer = layer});
  }
}

int WindowBuffers::Choose(int layer) const {
  if (Find(layer) >= 0) return Find(layer);
  int chosen = -1;
  for (int i = 0; i < num_buffers(); ++i) {
    const Buffer& buffer = buffers_[i];
    if (buffer.buffer_class != ClassOf(layer) || buffer.num_users > 0) continue;
    if (chosen < 0 || buffer.last_use < buffers_[chosen].last_use) chosen = i;
  }
  return chosen;
}

void WindowBuffers::Take(int buffer, int layer) {
  FOREBAY_CHECK(buffer >= 0 && buffer == Choose(layer));
  const int before = std::exchange(buffers_[buffer].layer, layer);
  if (before >= 0) buffer_of_layer_[before] = -1;
  buffer_of_layer_[layer] = buffer;
  ++buffers_[buffer].num_users;
}

void WindowBuffers::Release(int buffer) {
  TakeBack(buffer);
  buffers_[buffer].last_use = ++num_uses_;
}

void WindowBuffers::TakeBack(int buffer) {
  FOREBAY_CHECK(buffer >= 0 && buffers_[buffer].num_users > 0);
  --buffers_[buffer].num_users;
}

void WindowBuffers::Forget(int buffer) {
  Buffer& forgotten = buffers_[buffer];
  FOREBAY_CHECK(forgotten.num_users == 0 && forgotten.buffer_class != BufferClass::kResident);
  const int layer = std::exchange(forgotten.layer, -1);
  if (layer >= 0) buffer_of_layer_[layer] = -1;
}

}  // namespace forebay
