#include "forebay/train/infer/model_session.h"

#include <algorithm>

#include "fmt/format.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"
#include "forebay/memory/address_space.h"
#include "forebay/memory/page_tally.h"
#include "forebay/train/plan/ask_machine.h"
#include "forebay/train/plan/plan.h"

namespace forebay {
namespace {

// How the budget is shared out.
struct Shares {
  int64_t other_bytes = 0;   // the caller's
  int64_t source_bytes = 0;  // weights: resident layers and the window
};

// Weights that stay in RAM come first. When they do not all fit, up to a quarter of what is free
// lets the caller do more with each pass over them.
absl::StatusOr<Shares> ShareOut(const ModelSessionOptions& options, const DecoderConfig& config,
                                const DecoderOptions& decoder, int64_t budget_bytes) {
  const DType dtype = cpu::WeightDType(options.infer.precision);
  const int64_t fixed =
      kRuntimeBytes + DecoderWorkspaceBytes(config, decoder) + options.other_bytes;
  const int64_t least = fixed + CheckpointSource::LeastBytes(config, dtype);
  FOREBAY_RETURN_IF_ERROR(CheckModelFits(least, budget_bytes));
  Shares shares{options.other_bytes, budget_bytes - fixed};
  const int64_t all_weights = BuildInventory(config).num_padded_elems() * SizeOf(dtype);
  if (shares.source_bytes < all_weights) {
    // The caller gets nothing that would have the vocabulary read in pieces.
    const int64_t whole = fixed + CheckpointSource::LeastBytesOfWholeLayers(config, dtype);
    const int64_t needed = budget_bytes >= whole ? whole : least;
    const int64_t spare = (budget_bytes - needed) / 4 / kBasePageBytes * kBasePageBytes;
    const int64_t extra =
        std::clamp<int64_t>(options.other_bytes_at_most - options.other_bytes, 0, spare);
    shares.other_bytes += extra;
    shares.source_bytes -= extra;
  }
  const int64_t weights_bytes =
      std::min(shares.source_bytes, all_weights + CheckpointSource::LeastBytes(config, dtype));
  FOREBAY_RETURN_IF_ERROR(CheckAddressSpace(
      fixed - kRuntimeBytes + shares.other_bytes - options.other_bytes + weights_bytes,
      2 * decoder.num_threads));
  return shares;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelSession>> ModelSession::Open(const ModelSessionOptions& options,
                                                                 const MachineLimits& limits,
                                                                 const DecoderConfig& config) {
  FOREBAY_ASSIGN_OR_RETURN(const int64_t budget_bytes, RamBudget(options.infer.ram_bytes, limits));
  DecoderOptions decoder;
  decoder.num_threads = options.infer.threads > 0 ? options.infer.threads : limits.num_cores;
  decoder.precision = options.infer.precision;
  decoder.max_tokens = options.max_tokens;
  decoder.training = false;
  FOREBAY_ASSIGN_OR_RETURN(const Shares shares, ShareOut(options, config, decoder, budget_bytes));

  auto session = std::unique_ptr<ModelSession>(new ModelSession(budget_bytes));
  session->other_bytes_ = shares.other_bytes;
  FOREBAY_RETURN_IF_ERROR(session->budget_.Charge("program", kRuntimeBytes));
  FOREBAY_ASSIGN_OR_RETURN(session->decoder_, Decoder::Create(config, decoder, &session->budget_));
  FOREBAY_ASSIGN_OR_RETURN(session->source_,
                           CheckpointSource::Create(options.infer.model, config,
                                                    cpu::WeightDType(options.infer.precision),
                                                    shares.source_bytes, &session->budget_));
  return session;
}

}  // namespace forebay
