#include "forebay/model/files/checkpoint_source.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "forebay/aio/engine.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/format.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/model/files/checkpoint_pieces.h"
#include "forebay/model/files/checkpoint_stream.h"
#include "forebay/model/vocabulary_parts.h"
#include "forebay/step/layer_window.h"
#include "forebay/step/spread_layers.h"

namespace forebay {
namespace {

constexpr char kPurpose[] = "weights";

int64_t BufferBytes(const LayerSpec& layer, DType dtype) {
  return HostBuffer::ChargedBytes(layer.num_elems * SizeOf(dtype));
}
// Where layers are read to their places, they begin somewhere in the first block.
int64_t ShiftedBufferBytes(const LayerSpec& layer, DType dtype) {
  return BufferBytes(layer, dtype) + kIoAlignBytes;
}

// Whether some tensors are not stored as they are needed.
bool Converts(const std::vector<const CheckpointReader::Tensor*>& tensors, DType dtype) {
  return std::ranges::any_of(tensors, [&](const CheckpointReader::Tensor* tensor) {
    return tensor->entry.dtype_name != SafetensorsName(dtype);
  });
}

// By layer: it is never asked for.
using Elsewhere = std::vector<bool>;

// Which layers stay in memory, and how large the buffers of the window are that the others pass
// through. Two buffers for blocks: one is computed with while the next is read, and when it is free
// the disk has not yet read all of that. One for embedding and output layer, which are never held
// together.
struct Residency {
  std::vector<BufferClass> classes;  // per layer
  int64_t block_buffer_bytes = 0;    // 0: there are no such buffers
  int64_t large_buffer_bytes = 0;    // the same
  int64_t total_bytes = 0;           // resident layers and window
  bool streams = false;              // there is a window, and buffers have room for a shift
  int64_t piece_elems = 0;           // above 0: the large buffer has pieces of these layers

  // Layers that nobody asks for have no memory: they are of a class without buffers, or where no
  // buffer is one for them.
  static Residency All(const Inventory& inventory, DType dtype, const Elsewhere& elsewhere) {
    Residency all;
    for (size_t layer = 0; layer < elsewhere.size(); ++layer) {
      all.classes.push_back(elsewhere[layer] ? BufferClass::kBlock : BufferClass::kResident);
      if (!elsewhere[layer]) all.total_bytes += BufferBytes(inventory.layers()[layer], dtype);
    }
    return all;
  }

  // With whole layers, as little as possible. A tied model's output layer is a norm and the
  // embedding, which is in use at both ends of a pass: the one buffer it would pass through may as
  // well keep it.
  static Residency LeastOfWhole(const DecoderConfig& config, const Inventory& inventory,
                                DType dtype, bool converts, const Elsewhere& elsewhere) {
    Residency least;
    least.streams = true;
    const auto& layers = inventory.layers();
    least.classes.assign(layers.size(), BufferClass::kBlock);
    const int64_t embed_bytes = elsewhere.front() ? 0 : ShiftedBufferBytes(layers.front(), dtype);
    const int64_t head_bytes = elsewhere.back() ? 0 : ShiftedBufferBytes(layers.back(), dtype);
    least.block_buffer_bytes = ShiftedBufferBytes(layers[1], dtype);
    least.total_bytes =
        2 * least.block_buffer_bytes + HostBuffer::ChargedBytes(CheckpointStream::StagingBytes(
                                           {dtype, least.block_buffer_bytes, converts}));
    if (config.tied_embeddings) {
      if (!elsewhere.front()) least.classes.front() = BufferClass::kResident;
      if (!elsewhere.back()) least.classes.back() = BufferClass::kResident;
      least.total_bytes += embed_bytes + head_bytes;
    } else {
      least.classes.front() = least.classes.back() = BufferClass::kLarge;
      least.large_buffer_bytes = std::max(embed_bytes, head_bytes);
      least.total_bytes += least.large_buffer_bytes;
    }
    return least;
  }

  static CheckpointPieces::Options PiecesOf(const DecoderConfig& config, DType dtype,
                                            bool converts) {
    return {.dtype = dtype, .piece_elems = PieceElemsOf(config), .converts = converts};
  }

  // The same with two pieces of a large vocabulary in memory, where that is less.
  static Residency LeastInPieces(const DecoderConfig& config, const Inventory& inventory,
                                 DType dtype, bool converts, const Elsewhere& elsewhere) {
    const Residency whole = LeastOfWhole(config, inventory, dtype, converts, elsewhere);
    if (!MayLendInPieces(config, inventory, kLayerAlignElems)) return whole;
    const bool any_is_asked_for =
        !elsewhere.front() || !(config.tied_embeddings || elsewhere.back());
    if (!any_is_asked_for) return whole;
    Residency least = whole;
    const CheckpointPieces::Options pieces = PiecesOf(config, dtype, converts);
    least.piece_elems = pieces.piece_elems;
    least.total_bytes -= config.tied_embeddings
                             ? ShiftedBufferBytes(inventory.layers().front(), dtype)
                             : least.large_buffer_bytes;
    least.large_buffer_bytes = HostBuffer::ChargedBytes(CheckpointPieces::BytesOf(pieces));
    least.total_bytes +=
        least.large_buffer_bytes + HostBuffer::ChargedBytes(CheckpointPieces::StagingBytes(pieces));
    least.classes.front() = BufferClass::kLarge;
    return least.total_bytes < whole.total_bytes ? least : whole;
  }

  // Whole layers as long as there is memory for them.
  static Residency Least(const DecoderConfig& config, const Inventory& inventory, DType dtype,
                         bool converts, int64_t max_bytes, const Elsewhere& elsewhere) {
    const Residency whole = LeastOfWhole(config, inventory, dtype, converts, elsewhere);
    return whole.total_bytes <= max_bytes
               ? whole
               : LeastInPieces(config, inventory, dtype, converts, elsewhere);
  }

  // As much as fits `max_bytes`, on top of the least: embedding and output layer first, as the
  // buffer of one of them becomes free; then blocks.
  static Residency Within(const DecoderConfig& config, const Inventory& inventory, DType dtype,
                          bool converts, int64_t max_bytes, const Elsewhere& elsewhere) {
    Residency all = All(inventory, dtype, elsewhere);
    if (max_bytes == 0 || all.total_bytes <= max_bytes) return all;
    Residency plan = Least(config, inventory, dtype, converts, max_bytes, elsewhere);
    const auto& layers = inventory.layers();
    const int64_t both_bytes =
        ShiftedBufferBytes(layers.front(), dtype) + ShiftedBufferBytes(layers.back(), dtype);
    if (plan.large_buffer_bytes > 0 && plan.piece_elems == 0 && !elsewhere.front() &&
        !elsewhere.back() && plan.total_bytes - plan.large_buffer_bytes + both_bytes <= max_bytes) {
      plan.classes.front() = plan.classes.back() = BufferClass::kResident;
      plan.total_bytes += both_bytes - plan.large_buffer_bytes;
      plan.large_buffer_bytes = 0;
    }
    std::vector<int> blocks;
    for (int block = 0; block < config.num_layers; ++block) {
      if (!elsewhere[static_cast<size_t>(BlockLayer(block))]) blocks.push_back(BlockLayer(block));
    }
    const int64_t spare =
        std::max<int64_t>(0, max_bytes - plan.total_bytes) / plan.block_buffer_bytes;
    for (const int layer : SpreadEvenly(blocks, spare)) {
      plan.classes[static_cast<size_t>(layer)] = BufferClass::kResident;
      plan.total_bytes += plan.block_buffer_bytes;
    }
    return plan;
  }
};

using LeastOf = Residency (*)(const DecoderConfig& config, const Inventory& inventory, DType dtype,
                              bool converts, const Elsewhere& elsewhere);
int64_t LeastBytesBy(LeastOf least, const DecoderConfig& config, DType dtype) {
  const Inventory inventory = BuildInventory(config);
  const Elsewhere none(inventory.layers().size());
  const auto window_bytes = [&](bool converts) {
    return least(config, inventory, dtype, converts, none).total_bytes;
  };
  // A model of one block is smaller than the window for larger ones. Either staging may be the
  // larger one, as each is of whole pieces.
  return std::min(std::max(window_bytes(/*converts=*/true), window_bytes(/*converts=*/false)),
                  Residency::All(inventory, dtype, none).total_bytes);
}

}  // namespace

struct CheckpointSource::Impl final : LayerFiller {
  struct Backing {
    HostBuffer memory;
    bool must_be_read = false;
    // Behind the memory, as it ends its reads first. nullptr: layers are whole in it.
    std::unique_ptr<CheckpointPieces> pieces;
  };

  void StartRead(int buffer, int layer, bool /*urgent*/) override {
    if (backing[buffer].pieces != nullptr) return backing[buffer].pieces->Start(layer);
    backing[buffer].must_be_read = true;
    stream->Start(layer, VectorIn(buffer, layer));
  }
  absl::StatusOr<bool> AwaitPart(int buffer, int layer) override {
    return backing[buffer].must_be_read ? stream->FinishPart(layer) : false;
  }
  absl::Status FinishRead(int buffer, int layer, bool is_used) override {
    if (CheckpointPieces* const pieces = backing[buffer].pieces.get(); pieces != nullptr) {
      if (!is_used) pieces->Drop();
      return absl::OkStatus();  // whoever uses a piece waits for it
    }
    const bool must_be_read = std::exchange(backing[buffer].must_be_read, false);
    if (!must_be_read) return absl::OkStatus();
    if (!is_used) {
      stream->Drop(layer);
      return absl::OkStatus();
    }
    read_bytes += FileBytesOf(layer);
    return FinishLayer(buffer, layer);
  }
  absl::Status MakeWindow(const Residency& plan, MemoryBudget* budget, Device* device);
  absl::Status FinishLayer(int buffer, int layer);
  // The flat vector of the layer in the buffer.
  std::span<std::byte> VectorIn(int buffer, int layer) const {
    return backing[static_cast<size_t>(buffer)].memory.bytes().subspan(
        static_cast<size_t>(stream->ShiftBytes(layer)),
        static_cast<size_t>(inventory.layers()[static_cast<size_t>(layer)].num_elems *
                            SizeOf(dtype)));
  }
  const CheckpointReader::Tensor& SourceOf(const TensorSpec* in_place) const {
    return *tensors[static_cast<size_t>(in_place - inventory.tensors().data())];
  }
  std::vector<CheckpointStream::Part> PartsOf(int layer) const;
  absl::Status OpenStream(int64_t layer_bytes, MemoryBudget* budget);
  absl::Status OpenPieces(const Residency& plan, Backing& large, MemoryBudget* budget);
  int64_t FileBytesOf(int layer) const;

  Inventory inventory;
  DType dtype = DType::kBF16;
  std::unique_ptr<CheckpointReader> reader;
  std::vector<const CheckpointReader::Tensor*> tensors;  // per tensor of the inventory
  std::vector<Backing> backing;                          // per buffer of the window
  std::unique_ptr<CheckpointStream> stream;              // behind them, as it ends its reads first
  int num_resident_layers = 0;
  std::atomic<int64_t> read_bytes = 0;
  std::unique_ptr<LayerWindow> window;  // the last: its thread ends first
};

// The tensors of a layer at their places, with zeros between them.
absl::Status CheckpointSource::Impl::FinishLayer(int buffer, int layer) {
  const std::span<std::byte> vector = VectorIn(buffer, layer);
  const int64_t elem_bytes = SizeOf(dtype);
  int64_t end = 0;
  const auto fill_gap = [&](int64_t until) {
    std::memset(vector.data() + end * elem_bytes, 0,
                static_cast<size_t>((until - end) * elem_bytes));
  };
  for (const TensorSpec* tensor : TensorsInPlace(inventory, layer)) {
    fill_gap(tensor->offset_elems);
    end = tensor->offset_elems + tensor->num_elems;
  }
  fill_gap(inventory.layers()[static_cast<size_t>(layer)].num_elems);
  return stream->Finish(layer);
}

std::vector<CheckpointStream::Part> CheckpointSource::Impl::PartsOf(int layer) const {
  std::vector<CheckpointStream::Part> parts;
  for (const TensorSpec* tensor : TensorsInPlace(inventory, layer)) {
    parts.push_back({&SourceOf(tensor), tensor->offset_elems, tensor->num_elems});
  }
  return parts;
}

absl::Status CheckpointSource::Impl::OpenPieces(const Residency& plan, Backing& large,
                                                MemoryBudget* budget) {
  std::vector<CheckpointPieces::Layer> layers;
  for (int layer = 0; layer < inventory.num_layers(); ++layer) {
    if (plan.classes[static_cast<size_t>(layer)] != BufferClass::kLarge) continue;
    layers.push_back(
        {layer, inventory.layers()[static_cast<size_t>(layer)].num_elems, PartsOf(layer)});
  }
  const CheckpointPieces::Options options = {dtype, plan.piece_elems, Converts(tensors, dtype)};
  FOREBAY_ASSIGN_OR_RETURN(large.pieces, CheckpointPieces::Create(*reader, layers, options,
                                                                  large.memory.bytes(), budget));
  return absl::OkStatus();
}

absl::Status CheckpointSource::Impl::OpenStream(int64_t layer_bytes, MemoryBudget* budget) {
  std::vector<std::vector<CheckpointStream::Part>> layers(inventory.layers().size());
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    layers[layer] = PartsOf(static_cast<int>(layer));
  }
  FOREBAY_ASSIGN_OR_RETURN(
      stream, CheckpointStream::Create(*reader, layers,
                                       {dtype, layer_bytes, Converts(tensors, dtype)}, budget));
  return absl::OkStatus();
}

int64_t CheckpointSource::Impl::FileBytesOf(int layer) const {
  int64_t bytes = 0;
  for (const TensorSpec* tensor : TensorsInPlace(inventory, layer)) {
    const SafetensorsEntry& entry = SourceOf(tensor).entry;
    bytes += entry.end_bytes - entry.begin_bytes;
  }
  return bytes;
}

// The window and its memory, with the resident layers.
absl::Status CheckpointSource::Impl::MakeWindow(const Residency& plan, MemoryBudget* budget,
                                                Device* device) {
  FOREBAY_RETURN_IF_ERROR(OpenStream(plan.block_buffer_bytes, budget));
  std::vector<int> residents;  // buffers
  WindowBuffers buffers(plan.classes,
                        {plan.block_buffer_bytes > 0 ? 2 : 0, plan.large_buffer_bytes > 0 ? 1 : 0});
  for (int buffer = 0; buffer < buffers.num_buffers(); ++buffer) {
    const BufferClass buffer_class = buffers[buffer].buffer_class;
    const int layer = buffers[buffer].layer;
    const bool resident = buffer_class == BufferClass::kResident;
    const int64_t bytes = resident ? BufferBytes(inventory.layers()[layer], dtype) +
                                         (plan.streams ? kIoAlignBytes : 0)
                          : buffer_class == BufferClass::kBlock ? plan.block_buffer_bytes
                                                                : plan.large_buffer_bytes;
    HostBuffer& memory = backing.emplace_back().memory;
    FOREBAY_ASSIGN_OR_RETURN(memory,
                             HostBuffer::Create(budget, kPurpose, bytes, {.device = device}));
    if (buffer_class == BufferClass::kLarge && plan.piece_elems > 0) {
      FOREBAY_RETURN_IF_ERROR(OpenPieces(plan, backing.back(), budget));
    }
    if (!resident) continue;
    stream->Start(layer, VectorIn(buffer, layer));
    residents.push_back(buffer);
  }
  for (const int buffer : residents)
    FOREBAY_RETURN_IF_ERROR(FinishLayer(buffer, buffers[buffer].layer));
  num_resident_layers = static_cast<int>(residents.size());
  FOREBAY_ASSIGN_OR_RETURN(window, LayerWindow::Create(std::move(buffers), inventory, this));
  return absl::OkStatus();
}

CheckpointSource::CheckpointSource(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CheckpointSource::~CheckpointSource() = default;

int64_t CheckpointSource::LeastBytes(const DecoderConfig& config, DType dtype) {
  return LeastBytesBy(Residency::LeastInPieces, config, dtype);
}

int64_t CheckpointSource::LeastBytesOfWholeLayers(const DecoderConfig& config, DType dtype) {
  return LeastBytesBy(Residency::LeastOfWhole, config, dtype);
}

absl::StatusOr<std::unique_ptr<CheckpointSource>> CheckpointSource::Create(
    const std::string& model_directory, const DecoderConfig& config, DType dtype, int64_t max_bytes,
    MemoryBudget* budget, Device* device, std::span<const int> elsewhere) {
  const int64_t least_bytes = LeastBytes(config, dtype);
  if (max_bytes != 0 && max_bytes < least_bytes) {
    return DoesNotFitError(
        fmt::format("the weights of '{}' were given {}, but streaming them layer by layer takes at "
                    "least {}. Give more memory (--ram)",
                    model_directory, FormatBinaryBytes(max_bytes), FormatBinaryBytes(least_bytes)));
  }
  auto impl = std::make_unique<Impl>();
  impl->inventory = BuildInventory(config);
  impl->dtype = dtype;
  FOREBAY_ASSIGN_OR_RETURN(impl->reader, CheckpointReader::Open(model_directory));
  FOREBAY_ASSIGN_OR_RETURN(impl->tensors, MatchCheckpoint(*impl->reader, config, impl->inventory));
  Elsewhere is_elsewhere(impl->inventory.layers().size());
  for (const int layer : elsewhere) is_elsewhere[static_cast<size_t>(layer)] = true;
  const Residency plan = Residency::Within(config, impl->inventory, dtype,
                                           Converts(impl->tensors, dtype), max_bytes, is_elsewhere);
  FOREBAY_RETURN_IF_ERROR(impl->MakeWindow(plan, budget, device));
  return std::unique_ptr<CheckpointSource>(new CheckpointSource(std::move(impl)));
}

void CheckpointSource::Expect(std::span<const int> layers) {
  impl_->window->Expect(layers);
}

absl::StatusOr<WeightsLease> CheckpointSource::Acquire(int layer) {
  for (const Impl::Backing& backing : impl_->backing) {
    if (backing.pieces != nullptr) FOREBAY_RETURN_IF_ERROR(backing.pieces->failure());
  }
  FOREBAY_ASSIGN_OR_RETURN(const int buffer, impl_->window->Acquire(layer));
  LayerWeights weights = {.dtype = impl_->dtype};
  weights.pieces = impl_->backing[static_cast<size_t>(buffer)].pieces.get();
  if (weights.pieces == nullptr) weights.data = impl_->VectorIn(buffer, layer);
  return WeightsLease(this, layer, weights);
}

void CheckpointSource::Release(int layer, Event* done) {
  impl_->window->Release(layer, done);
}

int CheckpointSource::num_resident_layers() const {
  return impl_->num_resident_layers;
}

int64_t CheckpointSource::read_bytes() const {
  int64_t bytes = impl_->read_bytes;
  for (const Impl::Backing& backing : impl_->backing) {
    if (backing.pieces != nullptr) bytes += backing.pieces->read_bytes();
  }
  return bytes;
}

}  // namespace forebay
