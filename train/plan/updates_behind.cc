#include "forebay/train/plan/updates_behind.h"

#include <algorithm>
#include <vector>

namespace forebay {

double EndOfUpdates(std::span<const TileUpdate> tiles, double begin_s, int num_staging_tiles,
                    int num_gradient_tiles) {
  const auto num_tiles = std::ssize(tiles);
  std::vector<double> read_end_s(tiles.size()), handed_s(tiles.size());
  const auto applied_s = [&](int64_t i) {
    return std::max(read_end_s[static_cast<size_t>(i)], handed_s[static_cast<size_t>(i)]);
  };
  int64_t num_handed = 0, num_read = 0, num_written = 0;
  double disk_s = begin_s, waited_s = 0;
  while (num_written < num_tiles) {
    // As far as it is known when the gradients were applied whose memory they take.
    while (num_handed < num_tiles && num_handed - num_gradient_tiles < num_read) {
      double now_s = tiles[static_cast<size_t>(num_handed)].gradient_s + waited_s;
      if (num_handed >= num_gradient_tiles) {
        const double free_s = applied_s(num_handed - num_gradient_tiles);
        waited_s += std::max(0.0, free_s - now_s);
        now_s = std::max(now_s, free_s);
      }
      handed_s[static_cast<size_t>(num_handed++)] = now_s;
    }
    if (num_read < num_tiles && num_read - num_written < num_staging_tiles) {
      disk_s += tiles[static_cast<size_t>(num_read)].read_s;
      read_end_s[static_cast<size_t>(num_read++)] = disk_s;
    } else {
      disk_s = std::max(disk_s, applied_s(num_written));
      disk_s += tiles[static_cast<size_t>(num_written++)].write_s;
    }
  }
  return num_tiles == 0 ? begin_s : std::max(disk_s, handed_s.back());
}

}  // namespace forebay
