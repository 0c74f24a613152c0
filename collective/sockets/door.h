// The listening socket of a rank while ranks meet. It serves all incoming connections concurrently,
// so that no stranger delays a rank: a silent or slow connection is dropped after a few seconds,
// sooner if there are many.
#pragma once

#include <poll.h>

#include <cstdint>
#include <functional>
#include <list>
#include <string>
#include <utility>
#include <vector>

#include "forebay/base/file.h"
#include "forebay/collective/sockets/handshake.h"
#include "forebay/collective/sockets/proof.h"
#include "forebay/collective/sockets/socket.h"

namespace forebay {

// Owned by one thread.
class Door {
 public:
  // "": the rank is welcome. `is_other_admitted`: another process that is this rank is about to be.
  using Judge = std::function<std::string(const Greeting& greeting, bool is_other_admitted)>;
  using Admit = std::function<void(const Greeting& greeting, UniqueFd connection, int port)>;

  // All that is given must outlive it.
  Door(const JobKey& key, Judge judge, Admit admit)
      : key_(key), judge_(std::move(judge)), admit_(std::move(admit)) {}

  // Listens at all of these addresses, each of which has the same port, or at none. 0, or the errno
  // of the first that cannot be had: EADDRNOTAVAIL only if this machine has none of them.
  int Open(const std::vector<SocketAddress>& addresses);
  bool is_open() const { return !listeners_.empty(); }
  // "10.0.0.7:29501 and [fe80::1]:29501". Requires: is_open().
  std::string Addresses() const;
  int port() const { return OwnAddress(listeners_.front().get()).port(); }

  // Appends what Serve waits for.
  void AddPolled(std::vector<pollfd>& polled) const;
  // Goes on with everyone who knocks or has said something.
  void Serve();

  // Sentences about strangers and a lack of descriptors, to append to an error; "" if none.
  std::string Remarks() const;

 private:
  struct Guest {
    IncomingHandshake handshake;
    SocketDeadline deadline;
  };
  void TakeIn();
  bool DropLongestWaiting();
  // Whether the guest stays.
  bool GoOnWith(Guest& guest);
  bool IsOtherAdmitted(const Guest& guest) const;

  const JobKey& key_;
  const Judge judge_;
  const Admit admit_;
  std::vector<UniqueFd> listeners_;
  std::list<Guest> guests_;  // in the order in which they came
  int shortage_ = 0;         // errno: why nobody can be let in at the moment
  int64_t num_with_other_secret_ = 0;
  std::string last_with_other_secret_;
};

}  // namespace forebay
