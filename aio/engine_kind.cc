#include "forebay/aio/open_engine.h"

namespace forebay {

std::string_view NameOf(EngineKind kind) {
  switch (kind) {
    case EngineKind::kAuto:
      return "auto";
    case EngineKind::kIoUring:
      return "io_uring";
    case EngineKind::kLibaio:
      return "libaio";
    case EngineKind::kThreads:
      return "threads";
    case EngineKind::kBuffered:
      return "buffered";
  }
  return "unknown";
}

}  // namespace forebay
