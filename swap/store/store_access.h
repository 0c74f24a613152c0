// The ways to open a store: what the opener may do to it, and beside whom.
#pragma once

#include <cstdint>

namespace forebay {

enum class StoreAccess : uint8_t {
  // The one process that works on it. What a crash left half done, and copies that are damaged, are
  // made whole.
  kReadWrite,
  // Beside other readers, while nobody writes. Changes nothing, makes no file, and works where the
  // disk is full or read-only: copies that are damaged stay as they are.
  kReadOnly,
  // As kReadOnly, but whether or not somebody writes, whom it does not disturb. Takes no lock, so
  // every read may be of what is being written over (TensorStore::ScrubBesideWriter).
  kBesideWriter,
};

}  // namespace forebay
