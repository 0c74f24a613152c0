#include "forebay/model/files/checkpoint_stream.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "forebay/aio/open_engine.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/model/files/convert_floats.h"

namespace forebay {
namespace {

constexpr char kStagingPurpose[] = "weights that are read ahead";
constexpr int64_t kMaxPieceBytes = int64_t{2} << 20;
constexpr int64_t kMaxPieces = 16;  // as many as keep a drive busy
constexpr int64_t kMinPieces = 2;   // one is converted while the other is read

int64_t AlignedDown(int64_t bytes) {
  return bytes / kIoAlignBytes * kIoAlignBytes;
}
int64_t AlignedUp(int64_t bytes) {
  return AlignedDown(bytes + kIoAlignBytes - 1);
}

// A sixteenth of a layer, so that what is read ahead is small beside the layers themselves.
int64_t PieceBytes(int64_t layer_bytes) {
  return std::clamp(AlignedUp(layer_bytes / 16), kIoAlignBytes, kMaxPieceBytes);
}
int64_t NumPieces(int64_t layer_bytes) {
  return std::clamp(layer_bytes / 2 / PieceBytes(layer_bytes), kMinPieces, kMaxPieces);
}

// Some elements of one tensor.
struct Piece {
  const CheckpointStream::Part* part = nullptr;
  int64_t first_elem = 0;
  int64_t num_elems = 0;
  bool ahead = false;      // the engine reads it; else CheckpointReader does
  int64_t from_bytes = 0;  // in the file, of whole blocks
  int64_t until_bytes = 0;
  int64_t skip_bytes = 0;  // in front of the first element
};

// Cuts a tensor where blocks of the file end.
void CutIntoPieces(const CheckpointReader& reader, const CheckpointStream::Part& part,
                   int64_t piece_bytes, std::vector<Piece>& pieces) {
  const CheckpointReader::Place place = reader.PlaceOf(*part.source);
  const int64_t elem_bytes =
      (place.end_bytes - place.begin_bytes) / std::max<int64_t>(1, part.num_elems);
  const bool cut = piece_bytes > 0 && elem_bytes > 0 && place.begin_bytes % elem_bytes == 0;
  const int64_t last_block = AlignedDown(place.file_bytes);
  for (int64_t at = place.begin_bytes; at < place.end_bytes;) {
    Piece piece{.part = &part,
                .first_elem = (at - place.begin_bytes) / std::max<int64_t>(1, elem_bytes)};
    piece.ahead = cut && at < last_block;
    piece.from_bytes = AlignedDown(at);
    piece.skip_bytes = at - piece.from_bytes;
    const int64_t end =
        piece.ahead ? std::min({place.end_bytes, piece.from_bytes + piece_bytes, last_block})
                    : place.end_bytes;
    piece.until_bytes = AlignedUp(end);
    piece.num_elems =
        end == place.end_bytes ? part.num_elems - piece.first_elem : (end - at) / elem_bytes;
    pieces.push_back(piece);
    at = end;
  }
}

// For messages and probes: the file itself, not a link to it.
std::filesystem::path RealPath(const std::string& path) {
  std::error_code error;
  std::filesystem::path real = std::filesystem::canonical(path, error);
  return error ? std::filesystem::path(path) : real;
}

}  // namespace

struct CheckpointStream::Impl {
  struct Slot {
    IoOp op;
    std::span<std::byte> memory;
  };

  void OpenFiles();
  absl::Status MakeSlots(int64_t layer_bytes, MemoryBudget* budget);
  void CutLayers(int64_t piece_bytes);
  void Fill();
  void ForgetExpected();
  void Drain();
  absl::Status FinishPiece(const Piece& piece, std::span<std::byte> out);
  std::vector<Piece>& PiecesOf(int layer) { return pieces[static_cast<size_t>(layer)]; }
  // Where the elements of the piece go.
  std::span<std::byte> TargetOf(const Piece& piece, std::span<std::byte> out) const {
    return out.subspan(
        static_cast<size_t>((piece.part->offset_elems + piece.first_elem) * SizeOf(dtype)),
        static_cast<size_t>(piece.num_elems * SizeOf(dtype)));
  }

  const CheckpointReader* reader = nullptr;
  std::vector<std::vector<Part>> layers;
  DType dtype = DType::kBF16;
  std::vector<std::vector<Piece>> pieces;  // by layer, in the order of the files
  HostBuffer staging;

  // Layers that were started and not finished, at the end perhaps the one that is expected, and the
  // next piece of them that the engine is asked for.
  std::vector<int> started;
  int expected = -1;      // -1: none
  size_t next_layer = 0;  // in `started`
  size_t next_piece = 0;
  // In flight, or read and not yet converted: `num_taken` slots from `first_taken` on, in turn.
  std::vector<Slot> slots;
  size_t first_taken = 0;
  size_t num_taken = 0;

  std::vector<int> files;  // by shard: the engine's; -1: without direct I/O
  std::unique_ptr<Engine>
      engine;  // the last, as it ends transfers first; nullptr: nothing is read ahead
};

// The engine, and the shards that it can read. What refuses is read without it.
void CheckpointStream::Impl::OpenFiles() {
  files.assign(static_cast<size_t>(reader->num_shards()), -1);
  const std::filesystem::path first = RealPath(reader->ShardPath(0));
  absl::StatusOr<OpenedEngine> opened =
      OpenEngine({.file_to_read = first.filename().string()}, {first.parent_path().string()});
  if (!opened.ok() || !opened->engine->direct()) return;
  engine = std::move(opened->engine);
  for (size_t shard = 0; shard < files.size(); ++shard) {
    const std::string& path = reader->ShardPath(static_cast<int>(shard));
    absl::StatusOr<UniqueFd> fd = reader->OpenShardAgain(static_cast<int>(shard));
    if (!fd.ok() || !SwitchToDirect(fd->get()).empty()) continue;
    files[shard] = engine->AddFile(*std::move(fd), path);
  }
}

absl::Status CheckpointStream::Impl::MakeSlots(int64_t layer_bytes, MemoryBudget* budget) {
  FOREBAY_ASSIGN_OR_RETURN(staging,
                           HostBuffer::Create(budget, kStagingPurpose, StagingBytes(layer_bytes)));
  if (engine == nullptr) return absl::OkStatus();
  engine->RegisterBuffers(staging.bytes()).IgnoreError();  // it saves time, and is not needed
  slots = std::vector<Slot>(static_cast<size_t>(NumPieces(layer_bytes)));
  const auto piece_bytes = static_cast<size_t>(PieceBytes(layer_bytes));
  for (size_t i = 0; i < slots.size(); ++i) {
    slots[i].memory = staging.bytes().subspan(i * piece_bytes, piece_bytes);
  }
  return absl::OkStatus();
}

void CheckpointStream::Impl::CutLayers(int64_t piece_bytes) {
  pieces.resize(layers.size());
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    for (const Part& part : layers[layer]) {
      const bool direct = engine != nullptr && files[static_cast<size_t>(part.source->shard)] >= 0;
      CutIntoPieces(*reader, part, direct ? piece_bytes : 0, pieces[layer]);
    }
    // One after another in each file, as drives like it.
    std::ranges::stable_sort(pieces[layer], {}, [](const Piece& piece) {
      return std::pair(piece.part->source->shard, piece.from_bytes + piece.skip_bytes);
    });
  }
}

// Asks for pieces as long as there are slots.
void CheckpointStream::Impl::Fill() {
  while (num_taken < slots.size() && next_layer < started.size()) {
    const std::vector<Piece>& of_layer = PiecesOf(started[next_layer]);
    if (next_piece == of_layer.size()) {
      ++next_layer;
      next_piece = 0;
      continue;
    }
    const Piece& piece = of_layer[next_piece++];
    if (!piece.ahead) continue;
    Slot& slot = slots[(first_taken + num_taken++) % slots.size()];
    slot.op.kind = IoKind::kRead;
    slot.op.io_class = IoClass::kPrefetch;
    slot.op.file = files[static_cast<size_t>(piece.part->source->shard)];
    slot.op.offset_bytes = piece.from_bytes;
    slot.op.buffer = slot.memory.first(static_cast<size_t>(piece.until_bytes - piece.from_bytes));
    engine->Submit(slot.op);
  }
}

// The layer that was expected is not what comes.
void CheckpointStream::Impl::ForgetExpected() {
  if (expected < 0) return;
  Drain();
  std::erase(started, std::exchange(expected, -1));
}

// Forgets what was read ahead; all of it will be asked for again.
void CheckpointStream::Impl::Drain() {
  for (; num_taken > 0; --num_taken) {
    engine->Wait(slots[first_taken].op).IgnoreError();
    first_taken = (first_taken + 1) % slots.size();
  }
  next_layer = next_piece = 0;
}

absl::Status CheckpointStream::Impl::FinishPiece(const Piece& piece, std::span<std::byte> out) {
  const CheckpointReader::Tensor& source = *piece.part->source;
  const std::span<std::byte> target = TargetOf(piece, out);
  if (!piece.ahead) {
    FOREBAY_RETURN_IF_ERROR(reader->ReadAs(dtype, source, piece.first_elem, target));
    reader->DropCachedPages(source);
    return absl::OkStatus();
  }
  Slot& slot = slots[first_taken];
  FOREBAY_RETURN_IF_ERROR(engine->Wait(slot.op));
  FOREBAY_RETURN_IF_ERROR(reader->Convert(
      source, slot.op.buffer.subspan(static_cast<size_t>(piece.skip_bytes)), dtype, target));
  first_taken = (first_taken + 1) % slots.size();
  --num_taken;
  Fill();
  return absl::OkStatus();
}

CheckpointStream::CheckpointStream(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CheckpointStream::~CheckpointStream() = default;

int64_t CheckpointStream::StagingBytes(int64_t layer_bytes) {
  return NumPieces(layer_bytes) * PieceBytes(layer_bytes);
}

absl::StatusOr<std::unique_ptr<CheckpointStream>> CheckpointStream::Create(
    const CheckpointReader& reader, std::vector<std::vector<Part>> layers, DType dtype,
    int64_t layer_bytes, MemoryBudget* budget) {
  auto impl = std::make_unique<Impl>();
  impl->reader = &reader;
  impl->layers = std::move(layers);
  impl->dtype = dtype;
  impl->started.reserve(impl->layers.size());
  if (layer_bytes > 0) {
    impl->OpenFiles();
    FOREBAY_RETURN_IF_ERROR(impl->MakeSlots(layer_bytes, budget));
  }
  impl->CutLayers(PieceBytes(layer_bytes));
  return std::unique_ptr<CheckpointStream>(new CheckpointStream(std::move(impl)));
}

void CheckpointStream::Start(int layer) {
  Impl& impl = *impl_;
  if (impl.expected == layer) {
    impl.expected = -1;
    return;
  }
  impl.ForgetExpected();
  FOREBAY_CHECK(std::ranges::count(impl.started, layer) == 0);
  impl.started.push_back(layer);
  impl.Fill();
}

void CheckpointStream::Expect(int layer) {
  Impl& impl = *impl_;
  if (impl.expected == layer) return;
  impl.ForgetExpected();
  if (std::ranges::count(impl.started, layer) > 0) return;
  impl.expected = layer;
  impl.started.push_back(layer);
  impl.Fill();
}

absl::Status CheckpointStream::Finish(int layer, std::span<std::byte> out) {
  Impl& impl = *impl_;
  const auto found = std::ranges::find(impl.started, layer);
  FOREBAY_CHECK(found != impl.started.end());
  if (found != impl.started.begin()) {
    impl.Drain();
    std::rotate(impl.started.begin(), found, found + 1);
    impl.Fill();
  }
  for (const Piece& piece : impl.PiecesOf(layer))
    FOREBAY_RETURN_IF_ERROR(impl.FinishPiece(piece, out));
  impl.started.erase(impl.started.begin());
  if (impl.next_layer > 0) {
    --impl.next_layer;
  } else {
    impl.next_piece = 0;  // all of the layer was asked for, and nothing behind it yet
  }
  return absl::OkStatus();
}

void CheckpointStream::Drop(int layer) {
  impl_->Drain();
  std::erase(impl_->started, layer);
  impl_->Fill();
}

bool CheckpointStream::reads_ahead() const {
  return impl_->engine != nullptr;
}

}  // namespace forebay
