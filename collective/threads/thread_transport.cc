#include "forebay/collective/threads/thread_transport.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "fmt/format.h"
#include "forebay/base/counter_rng.h"
#include "forebay/collective/rank_failures.h"

namespace forebay {
namespace {

// A stop is noticed after so long at the latest.
constexpr std::chrono::milliseconds kStopInterval(5);
constexpr size_t kChunkBytes = 1000;  // no multiple of anything

// The state that all ranks share.
struct ThreadHub {
  explicit ThreadHub(const ThreadRanksOptions& options)
      : num_ranks(options.num_ranks),
        seed(options.seed),
        faults(options.faults),
        channels(static_cast<size_t>(num_ranks) * static_cast<size_t>(num_ranks)),
        is_closed(static_cast<size_t>(num_ranks), false) {
    for (int r = 0; r < num_ranks; ++r) hosts.push_back(fmt::format("thread{}", r));
  }
  std::vector<std::byte>& Channel(int from, int to) {
    return channels[static_cast<size_t>(from) * hosts.size() + static_cast<size_t>(to)];
  }

  const int num_ranks;
  const uint64_t seed;
  const std::vector<ThreadFault> faults;
  std::vector<std::string> hosts;

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::vector<std::byte>> channels;  // sent and not yet received
  std::vector<bool> is_closed;
  MaybeFailure told;
};

class ThreadTransport : public Transport {
 public:
  ThreadTransport(std::shared_ptr<ThreadHub> hub, int rank) : hub_(std::move(hub)), rank_(rank) {}
  ~ThreadTransport() override { Close(); }

  int rank() const override { return rank_; }
  int size() const override { return hub_->num_ranks; }
  const std::string& host(int rank) const override {
    return hub_->hosts[static_cast<size_t>(rank)];
  }

  MaybeFailure Exchange(std::span<const OutgoingBytes> outgoing,
                        std::span<const IncomingBytes> incoming, const WaitLimit& limit) override {
    if (MaybeFailure failure = SufferFaults(limit.stop)) return failure;
    if (!drops_) SendAll({outgoing.begin(), outgoing.end()});
    return ReceiveAll({incoming.begin(), incoming.end()}, limit);
  }
  MaybeFailure Look() override {
    const std::lock_guard lock(hub_->mutex);
    return hub_->told;
  }
  void Announce(const RankFailure& failure) override {
    {
      const std::lock_guard lock(hub_->mutex);
      if (is_dead_ || drops_ || hub_->told.has_value()) return;
      hub_->told = failure;
    }
    hub_->changed.notify_all();
  }

 private:
  MaybeFailure SufferFaults(const std::atomic<bool>& stop);
  void SendAll(std::vector<OutgoingBytes> items);
  MaybeFailure ReceiveAll(std::vector<IncomingBytes> items, const WaitLimit& limit);
  // Takes what is there; false: nothing was.
  bool Receive(std::vector<IncomingBytes>& items);
  void Close() {
    {
      const std::lock_guard lock(hub_->mutex);
      hub_->is_closed[static_cast<size_t>(rank_)] = true;
    }
    hub_->changed.notify_all();
  }
  uint64_t Draw(uint64_t bound) { return rng_.Below(num_drawn_++, bound); }

  const std::shared_ptr<ThreadHub> hub_;
  const int rank_;
  const CounterRng rng_{hub_->seed, static_cast<uint64_t>(rank_)};
  uint64_t num_drawn_ = 0;
  int64_t num_exchanges_ = 0;
  bool is_dead_ = false;
  bool drops_ = false;
};

MaybeFailure ThreadTransport::SufferFaults(const std::atomic<bool>& stop) {
  const int64_t exchange = num_exchanges_++;
  for (const ThreadFault& fault : hub_->faults) {
    if (fault.rank != rank_ || fault.exchange != exchange) continue;
    switch (fault.kind) {
      case ThreadFaultKind::kDrops:
        drops_ = true;
        break;
      case ThreadFaultKind::kDies:
        is_dead_ = true;
        Close();
        return RankFailure{rank_, "died, as its fault says"};
      case ThreadFaultKind::kHangs:
        is_dead_ = true;
        while (!stop) std::this_thread::sleep_for(kStopInterval);
        return WasStopped(rank_);
    }
  }
  return std::nullopt;
}

void ThreadTransport::SendAll(std::vector<OutgoingBytes> items) {
  while (!items.empty()) {
    const size_t i = hub_->seed == 0 ? 0 : Draw(items.size());
    OutgoingBytes& item = items[i];
    const size_t size =
        hub_->seed == 0 ? item.bytes.size() : std::min<size_t>(item.bytes.size(), kChunkBytes);
    {
      const std::lock_guard lock(hub_->mutex);
      std::vector<std::byte>& channel = hub_->Channel(rank_, item.rank);
      channel.insert(channel.end(), item.bytes.begin(),
                     item.bytes.begin() + static_cast<ptrdiff_t>(size));
    }
    hub_->changed.notify_all();
    item.bytes = item.bytes.subspan(size);
    if (item.bytes.empty()) items.erase(items.begin() + static_cast<ptrdiff_t>(i));
    if (hub_->seed != 0 && Draw(4) == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(Draw(300)));
    }
  }
}

bool ThreadTransport::Receive(std::vector<IncomingBytes>& items) {
  bool is_any = false;
  for (IncomingBytes& item : items) {
    std::vector<std::byte>& channel = hub_->Channel(item.rank, rank_);
    const size_t size = std::min(channel.size(), item.bytes.size());
    if (size == 0) continue;
    is_any = true;
    std::memcpy(item.bytes.data(), channel.data(), size);
    item.bytes = item.bytes.subspan(size);
    channel.erase(channel.begin(), channel.begin() + static_cast<ptrdiff_t>(size));
  }
  std::erase_if(items, [](const IncomingBytes& item) { return item.bytes.empty(); });
  return is_any;
}

MaybeFailure ThreadTransport::ReceiveAll(std::vector<IncomingBytes> items, const WaitLimit& limit) {
  const std::chrono::duration<double> timeout(limit.timeout_s);
  auto last_progress = std::chrono::steady_clock::now();
  std::unique_lock lock(hub_->mutex);
  for (;;) {
    if (limit.stop) return WasStopped(rank_);
    if (hub_->told.has_value()) return hub_->told;
    const auto now = std::chrono::steady_clock::now();
    if (Receive(items)) last_progress = now;
    if (items.empty()) return std::nullopt;
    for (const IncomingBytes& item : items) {
      if (hub_->is_closed[static_cast<size_t>(item.rank)]) {
        return RankIsGone(item.rank, "its thread has ended");
      }
    }
    if (now - last_progress > timeout) return RankIsSilent(items[0].rank, limit.timeout_s);
    hub_->changed.wait_for(lock, kStopInterval);
  }
}

}  // namespace

std::vector<std::unique_ptr<Transport>> CreateThreadRanks(const ThreadRanksOptions& options) {
  const auto hub = std::make_shared<ThreadHub>(options);
  std::vector<std::unique_ptr<Transport>> ranks;
  for (int r = 0; r < options.num_ranks; ++r) {
    ranks.push_back(std::make_unique<ThreadTransport>(hub, r));
  }
  return ranks;
}

}  // namespace forebay
