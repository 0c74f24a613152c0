#include "forebay/model/files/checkpoint_stream.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "forebay/aio/open_engine.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/round_up.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/model/files/cut_tensors.h"

namespace forebay {
namespace {

using How = TensorPiece::How;

constexpr char kStagingPurpose[] = "weights that are read ahead";
// Staging of what is converted: as many pieces as keep a drive busy.
constexpr int64_t kMaxPieceBytes = int64_t{2} << 20;
constexpr int64_t kMaxPieces = 16;
// Where nothing is, staging takes the ends of tensors alone, of all layers that are under way.
constexpr int64_t kMaxEndBytes = int64_t{16} << 10;
constexpr int64_t kMaxEnds = 64;
constexpr int64_t kMinPieces = 2;  // one is converted while the other is read

// A sixteenth of a layer, so that what is read ahead is small beside the layers themselves.
int64_t PieceBytes(const CheckpointStream::Options& options) {
  return std::clamp(RoundUp(options.layer_bytes / 16, kIoAlignBytes), kIoAlignBytes,
                    options.converts ? kMaxPieceBytes : kMaxEndBytes);
}
int64_t NumPieces(const CheckpointStream::Options& options) {
  return std::clamp(options.layer_bytes / 2 / PieceBytes(options), kMinPieces,
                    options.converts ? kMaxPieces : kMaxEnds);
}

// For messages and probes: the file itself, not a link to it.
std::filesystem::path RealPath(const std::string& path) {
  std::error_code error;
  std::filesystem::path real = std::filesystem::canonical(path, error);
  return error ? std::filesystem::path(path) : real;
}

}  // namespace

struct CheckpointStream::Impl {
  struct Layer {
    CutLayer cut;
    std::deque<IoOp> in_place;  // of the first pieces
  };
  // Between Start and the end.
  struct Started {
    int layer = -1;
    std::span<std::byte> out;
    size_t num_finished = 0;  // pieces
  };
  // One piece of the staging memory.
  struct Slot {
    IoOp op;
    std::span<std::byte> memory;
  };

  void OpenFiles();
  absl::Status MakeSlots(MemoryBudget* budget);
  // The bytes of its elements alone.
  CheckpointReader::Place PlaceOf(const Part& part) const;
  void CutLayers(const std::vector<std::vector<Part>>& parts);
  void Submit(IoOp& op, IoClass io_class, const TensorPiece& piece, std::byte* memory);
  void ReadInPlace(const Started& reading);
  void Fill();
  void Drain();
  Started& MakeFirst(int layer);
  absl::Status FinishPiece(const Started& reading);
  absl::Status FinishInPlace(const TensorPiece& piece, IoOp& op, std::span<std::byte> target);
  absl::Status FinishStaged(const TensorPiece& piece, std::span<std::byte> target);
  Layer& At(int layer) { return layers[static_cast<size_t>(layer)]; }
  std::vector<Started>::iterator Find(int layer) {
    return std::ranges::find(started, layer, &Started::layer);
  }
  // Where the elements of the piece belong.
  std::span<std::byte> TargetOf(const TensorPiece& piece, std::span<std::byte> out) const {
    return out.subspan(static_cast<size_t>(piece.target_elem * SizeOf(options.dtype)),
                       static_cast<size_t>(piece.num_elems * SizeOf(options.dtype)));
  }

  const CheckpointReader* reader = nullptr;
  Options options;
  std::vector<Layer> layers;
  HostBuffer staging;

  std::vector<Started> started;
  // The next piece that comes through staging memory and is not asked for.
  size_t next_layer = 0;  // in `started`
  size_t next_piece = 0;
  // In flight, or read and not yet converted: `num_taken` slots from `first_taken` on, in turn.
  std::vector<Slot> slots;
  size_t first_taken = 0;
  size_t num_taken = 0;

  std::vector<int> files;  // by shard: the engine's; -1: without direct I/O
  int64_t memory_align_bytes = 1;
  std::unique_ptr<Engine>
      engine;  // the last, as it ends transfers first; nullptr: nothing is read ahead
};

// The engine, and the shards that it can read. What refuses is read without it.
void CheckpointStream::Impl::OpenFiles() {
  const std::filesystem::path first = RealPath(reader->ShardPath(0));
  absl::StatusOr<OpenedEngine> opened =
      OpenEngine({.file_to_read = first.filename().string()}, {first.parent_path().string()});
  if (!opened.ok() || !opened->engine->direct()) return;
  engine = std::move(opened->engine);
  for (size_t shard = 0; shard < files.size(); ++shard) {
    const std::string& path = reader->ShardPath(static_cast<int>(shard));
    absl::StatusOr<UniqueFd> fd = reader->OpenShardAgain(static_cast<int>(shard));
    if (!fd.ok() || !SwitchToDirect(fd->get()).empty()) continue;
    memory_align_bytes = std::max(memory_align_bytes, DirectMemoryAlign(fd->get()));
    files[shard] = engine->AddFile(*std::move(fd), path);
  }
}

absl::Status CheckpointStream::Impl::MakeSlots(MemoryBudget* budget) {
  FOREBAY_ASSIGN_OR_RETURN(staging,
                           HostBuffer::Create(budget, kStagingPurpose, StagingBytes(options)));
  if (engine == nullptr) return absl::OkStatus();
  engine->RegisterBuffers(staging.bytes()).IgnoreError();  // it saves time, and is not needed
  slots = std::vector<Slot>(static_cast<size_t>(NumPieces(options)));
  const auto piece_bytes = static_cast<size_t>(PieceBytes(options));
  for (size_t i = 0; i < slots.size(); ++i) {
    slots[i].memory = staging.bytes().subspan(i * piece_bytes, piece_bytes);
  }
  return absl::OkStatus();
}

CheckpointReader::Place CheckpointStream::Impl::PlaceOf(const Part& part) const {
  CheckpointReader::Place place = reader->PlaceOf(*part.source);
  const int64_t all_elems = NumElems(part.source->entry.shape);
  if (part.num_elems == all_elems) return place;
  const int64_t elem_bytes = (place.end_bytes - place.begin_bytes) / all_elems;
  place.begin_bytes += part.first_elem * elem_bytes;
  place.end_bytes = place.begin_bytes + part.num_elems * elem_bytes;
  return place;
}

void CheckpointStream::Impl::CutLayers(const std::vector<std::vector<Part>>& parts) {
  const CutOptions cut{options.dtype, PieceBytes(options), memory_align_bytes};
  layers = std::vector<Layer>(parts.size());
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    std::vector<PlacedTensor> tensors;
    for (const Part& part : parts[layer]) {
      tensors.push_back({part.source, PlaceOf(part), part.offset_elems, part.num_elems,
                         files[static_cast<size_t>(part.source->shard)] >= 0, part.first_elem});
    }
    layers[layer].cut = CutTensors(tensors, cut);
    layers[layer].in_place.resize(static_cast<size_t>(
        std::ranges::count(layers[layer].cut.pieces, How::kInPlace, &TensorPiece::how)));
  }
}

void CheckpointStream::Impl::Submit(IoOp& op, IoClass io_class, const TensorPiece& piece,
                                    std::byte* memory) {
  op.kind = IoKind::kRead;
  op.io_class = io_class;
  op.file = files[static_cast<size_t>(piece.source->shard)];
  op.offset_bytes = piece.from_bytes;
  op.buffer = {memory, static_cast<size_t>(piece.until_bytes - piece.from_bytes)};
  op.align_bytes = memory_align_bytes;
  engine->Submit(op);
}

void CheckpointStream::Impl::ReadInPlace(const Started& reading) {
  Layer& layer = At(reading.layer);
  for (size_t i = 0; i < layer.in_place.size(); ++i) {
    const TensorPiece& piece = layer.cut.pieces[i];
    Submit(layer.in_place[i], IoClass::kPrefetch, piece,
           TargetOf(piece, reading.out).data() - piece.before_bytes);
  }
}

// Asks for staged pieces as long as there are slots. They overtake what is read in place, of which
// there is much more.
void CheckpointStream::Impl::Fill() {
  while (num_taken < slots.size() && next_layer < started.size()) {
    const Started& reading = started[next_layer];
    const std::vector<TensorPiece>& pieces = At(reading.layer).cut.pieces;
    next_piece = std::max(next_piece, reading.num_finished);
    if (next_piece == pieces.size()) {
      ++next_layer;
      next_piece = 0;
      continue;
    }
    const TensorPiece& piece = pieces[next_piece++];
    if (piece.how != How::kStaged) continue;
    Slot& slot = slots[(first_taken + num_taken++) % slots.size()];
    Submit(slot.op, IoClass::kDemand, piece, slot.memory.data());
  }
}

// Forgets what is staged; all of it will be asked for again.
void CheckpointStream::Impl::Drain() {
  for (; num_taken > 0; --num_taken) {
    engine->Wait(slots[first_taken].op).IgnoreError();
    first_taken = (first_taken + 1) % slots.size();
  }
  next_layer = next_piece = 0;
}

// The layer comes before those that were started earlier.
CheckpointStream::Impl::Started& CheckpointStream::Impl::MakeFirst(int layer) {
  const auto found = Find(layer);
  FOREBAY_CHECK(found != started.end());
  if (found != started.begin()) {
    Drain();
    std::rotate(started.begin(), found, found + 1);
    Fill();
  }
  return started.front();
}

// The next one of the first layer.
absl::Status CheckpointStream::Impl::FinishPiece(const Started& reading) {
  Layer& layer = At(reading.layer);
  const TensorPiece& piece = layer.cut.pieces[reading.num_finished];
  const std::span<std::byte> target = TargetOf(piece, reading.out);
  switch (piece.how) {
    case How::kInPlace:
      return FinishInPlace(piece, layer.in_place[reading.num_finished], target);
    case How::kStaged:
      return FinishStaged(piece, target);
    case How::kByReader:
      FOREBAY_RETURN_IF_ERROR(
          reader->ReadAs(options.dtype, *piece.source, piece.first_elem, target));
      reader->DropCachedPages(*piece.source);
      return absl::OkStatus();
  }
  FOREBAY_CHECK(false);
}

absl::Status CheckpointStream::Impl::FinishInPlace(const TensorPiece& piece, IoOp& op,
                                                   std::span<std::byte> target) {
  FOREBAY_RETURN_IF_ERROR(engine->Wait(op));
  if (piece.before_bytes > 0) std::memmove(target.data(), op.buffer.data(), target.size());
  return reader->CheckUnchanged(*piece.source);
}

absl::Status CheckpointStream::Impl::FinishStaged(const TensorPiece& piece,
                                                  std::span<std::byte> target) {
  Slot& slot = slots[first_taken];
  FOREBAY_RETURN_IF_ERROR(engine->Wait(slot.op));
  FOREBAY_RETURN_IF_ERROR(
      reader->Convert(*piece.source, slot.op.buffer.subspan(static_cast<size_t>(piece.skip_bytes)),
                      options.dtype, target));
  first_taken = (first_taken + 1) % slots.size();
  --num_taken;
  return absl::OkStatus();
}

CheckpointStream::CheckpointStream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CheckpointStream::~CheckpointStream() = default;

int64_t CheckpointStream::StagingBytes(const Options& options) {
  return NumPieces(options) * PieceBytes(options);
}

absl::StatusOr<std::unique_ptr<CheckpointStream>> CheckpointStream::Create(
    const CheckpointReader& reader, const std::vector<std::vector<Part>>& layers,
    const Options& options, MemoryBudget* budget) {
  auto impl = std::make_unique<Impl>();
  impl->reader = &reader;
  impl->options = options;
  impl->started.reserve(layers.size());
  impl->files.assign(static_cast<size_t>(reader.num_shards()), -1);
  if (options.layer_bytes > 0) {
    impl->OpenFiles();
    FOREBAY_RETURN_IF_ERROR(impl->MakeSlots(budget));
  }
  impl->CutLayers(layers);
  return std::unique_ptr<CheckpointStream>(new CheckpointStream(std::move(impl)));
}

int64_t CheckpointStream::ShiftBytes(int layer) const {
  return impl_->At(layer).cut.shift_bytes;
}

void CheckpointStream::Start(int layer, std::span<std::byte> out) {
  Impl& impl = *impl_;
  FOREBAY_CHECK(impl.Find(layer) == impl.started.end());
  FOREBAY_CHECK(reinterpret_cast<uintptr_t>(out.data()) % kIoAlignBytes ==
                static_cast<uintptr_t>(ShiftBytes(layer)));
  impl.started.push_back({layer, out});
  impl.Fill();
  impl.ReadInPlace(impl.started.back());
}

absl::StatusOr<bool> CheckpointStream::FinishPart(int layer) {
  Impl::Started& reading = impl_->MakeFirst(layer);
  const size_t num_pieces = impl_->At(layer).cut.pieces.size();
  if (reading.num_finished == num_pieces) return false;
  FOREBAY_RETURN_IF_ERROR(impl_->FinishPiece(reading));
  ++reading.num_finished;
  impl_->Fill();
  return reading.num_finished < num_pieces;
}

absl::Status CheckpointStream::Finish(int layer) {
  for (bool has_more = true; has_more;) {
    FOREBAY_ASSIGN_OR_RETURN(has_more, FinishPart(layer));
  }
  Impl& impl = *impl_;
  impl.started.erase(impl.started.begin());
  if (impl.next_layer > 0) {
    --impl.next_layer;
  } else {
    impl.next_piece = 0;  // all of the layer was asked for, and nothing behind it yet
  }
  return absl::OkStatus();
}

void CheckpointStream::Drop(int layer) {
  Impl& impl = *impl_;
  const auto found = impl.Find(layer);
  FOREBAY_CHECK(found != impl.started.end());
  std::deque<IoOp>& in_place = impl.At(layer).in_place;
  for (IoOp& op : in_place) impl.engine->Cancel(op);
  for (IoOp& op : in_place) impl.engine->Wait(op).IgnoreError();
  impl.Drain();
  impl.started.erase(found);
  impl.Fill();
}

bool CheckpointStream::reads_ahead() const {
  return impl_->engine != nullptr;
}

}  // namespace forebay
