#include "forebay/collective/connect/connect.h"

#include <utility>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/collective/job_secret.h"
#include "forebay/collective/mpi/mpi_transport.h"
#include "forebay/collective/nccl/nccl_transport.h"
#include "forebay/collective/sockets/socket_transport.h"
#include "forebay/collective/transport.h"

namespace forebay {
namespace {

absl::StatusOr<std::unique_ptr<Transport>> ConnectTransport(const Launch& launch,
                                                            double timeout_s) {
  switch (launch.transport) {
    case RankTransport::kNone:
      break;
    case RankTransport::kSockets: {
      Launch own = launch;
      FOREBAY_ASSIGN_OR_RETURN(own.secret, ReadJobSecret(ProcessEnvironment));
      own.listen_address = ProcessEnvironment("FOREBAY_LISTEN_ADDRESS").value_or("");
      return ConnectSockets(own, timeout_s);
    }
    case RankTransport::kOpenMpi:
    case RankTransport::kMpich:
      return ConnectMpi(launch);
  }
  return absl::InternalError("one rank needs no transport");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> ConnectRanks(const Launch& launch,
                                                           const CommunicatorOptions& options) {
  if (launch.transport == RankTransport::kNone) return Communicator::CreateAlone();
  FOREBAY_ASSIGN_OR_RETURN(std::unique_ptr<Transport> transport,
                           ConnectTransport(launch, options.timeout_s));
  if (options.device == nullptr) {
    return Communicator::Create(std::move(transport), nullptr, options);
  }
  absl::StatusOr<std::unique_ptr<DeviceTransport>> nccl =
      ConnectNccl(*transport, *options.device, options.timeout_s);
  if (nccl.ok()) {
    return Communicator::Create(std::move(transport), *std::move(nccl), options, "by NCCL");
  }
  return Communicator::Create(std::move(transport), nullptr, options,
                              fmt::format("through host memory, as {}", MessageOf(nccl.status())));
}

}  // namespace forebay
