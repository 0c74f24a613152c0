// How bytes go from rank to rank: the seam below a Communicator, which does all the rest (order,
// sums, pieces, checks). An implementation moves bytes and notices that a rank is gone.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "forebay/base/errors.h"

namespace forebay {

// Bytes for another rank, or room for those of one. Where they are empty nothing is moved.
struct OutgoingBytes {
  int rank = 0;
  std::span<const std::byte> bytes;
};
struct IncomingBytes {
  int rank = 0;
  std::span<std::byte> bytes;
};

// Why something did not come about.
struct RankFailure {
  int rank = 0;        // whose fault it is; the own number for what this rank could not do
  std::string reason;  // follows the rank's name, without a full stop: "closed its connection"
  ExitCode code = ExitCode::kEnvironment;
};
using MaybeFailure = std::optional<RankFailure>;  // nullopt: it did come about

// The limits of a wait for other ranks.
struct WaitLimit {
  double timeout_s = 60;
  const std::atomic<bool>& stop;  // the wait ends when it becomes true, as this rank's failure
};

// Owned by one thread at a time; created and destroyed by the same one.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const std::string& host(int rank) const = 0;
  // One line about the connections for the user; "" if there is nothing to say.
  virtual std::string Warning() const { return ""; }

  // Sends and receives all at once, and returns when everything has arrived or is on its way: the
  // memory is the caller's again. At most one item per other rank in each list. What one rank sends
  // to another arrives in its order, and both name the same sizes. Fails when a rank died, left, or
  // told of a failure, and when nothing came from one for the time of the limit. After a failure
  // only Announce may be called.
  virtual MaybeFailure Exchange(std::span<const OutgoingBytes> outgoing,
                                std::span<const IncomingBytes> incoming,
                                const WaitLimit& limit) = 0;
  // Whether a rank is known to have died or told of a failure, without waiting.
  virtual MaybeFailure Look() = 0;
  // Tells every rank that can be reached, whose exchanges then fail with it.
  virtual void Announce(const RankFailure& failure) = 0;
};

// The same for memory of a device, where a library reaches it without a detour through the host.
// Used beside a Transport, which carries all that is not in device memory.
class DeviceTransport {
 public:
  virtual ~DeviceTransport() = default;
  // As above, with device memory; done when it returns. `transport` is looked at meanwhile.
  virtual MaybeFailure Exchange(std::span<const OutgoingBytes> outgoing,
                                std::span<const IncomingBytes> incoming, const WaitLimit& limit,
                                Transport& transport) = 0;
  // As SumInRankOrder (collective/sum_in_rank_order.h), in device memory; done when it returns.
  virtual MaybeFailure Sum(std::span<const float* const> values, float* sum, int64_t num_elems) = 0;
};

}  // namespace forebay
