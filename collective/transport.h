// How bytes go from rank to rank: the seam below a Communicator, which does all the rest (order,
// sums, pieces, checks). An implementation moves bytes and notices that a rank is gone.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace forebay {

// Bytes for another rank, or room for those of one. May be empty: nothing is moved then.
struct OutgoingBytes {
  int rank = 0;
  std::span<const std::byte> bytes;
};
struct IncomingBytes {
  int rank = 0;
  std::span<std::byte> bytes;
};

// Why an exchange did not come about.
struct RankFailure {
  int rank = 0;        // whose fault it is; the own number for what this rank could not do
  std::string reason;  // "its connection was closed": follows the rank's name, without a full stop
};

// Owned by one thread but for what is said otherwise.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const std::string& host(int rank) const = 0;

  // Sends and receives all at once, and returns when everything has arrived or is on its way: the
  // memory is the caller's again. At most one item per other rank in each list. What one rank sends
  // to another arrives in its order, and both name the same sizes. nullopt: done. A failure: a rank
  // died, left or told of a failure; `timeout_s` passed; `stop` became true (the failure is then
  // this rank's). After one no more calls but Announce.
  virtual std::optional<RankFailure> Exchange(std::span<const OutgoingBytes> outgoing,
                                              std::span<const IncomingBytes> incoming,
                                              double timeout_s, const std::atomic<bool>& stop) = 0;
  // Tells every rank that can be reached, whose exchanges then fail with it. Does not wait for
  // them.
  virtual void Announce(const RankFailure& failure) = 0;
};

}  // namespace forebay
