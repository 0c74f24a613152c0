#include "forebay/tests/offload/module_run.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "forebay/base/check.h"
#include "forebay/base/counter_rng.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/hash.h"
#include "forebay/offload/create_store.h"
#include "forebay/offload/ranks/read_parts.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

uint32_t BitsAt(const LayerWeights& weights, int64_t elem) {
  uint32_t bits = 0;
  const auto bytes = static_cast<size_t>(SizeOf(weights.dtype));
  std::memcpy(&bits, weights.data.data() + static_cast<size_t>(elem) * bytes, bytes);
  return bits;
}

// As torch.nn.utils.clip_grad_norm_.
double ClipOf(double clip, double norm) {
  return clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1.0;
}

bool HasGradient(int tensor, int layer, int64_t step) {
  return (tensor + step) % 5 != 0 && (layer + step) % 4 != 0;
}

constexpr int kFrozenTensor = 4;

std::vector<ParameterGroup> GroupsOf(int64_t step) {
  return {{.lr_scale = step % 2 == 0 ? 1.5 : 0.5, .weight_decay = 0.1},
          {.beta1 = 0.8, .beta2 = step % 2 == 0 ? 0.99 : 0.95, .eps = 1e-6},
          {.frozen = true}};
}

}  // namespace

Inventory ModuleInventory(bool has_raw) {
  Inventory inventory;
  const int64_t sizes[] = {77, 4001, 1, 3999, 1, 5003, 123};
  for (int layer = 0; layer < 7; ++layer) {
    const std::string name = "layer" + std::to_string(layer);
    inventory.BeginLayer(name);
    inventory.Add(name + ".weight", {sizes[layer], 5}, 0, true);
    inventory.Add(name + ".bias", {sizes[layer]}, 0, false);
    inventory.Add(name + ".scale", {}, 0, false);
  }
  if (has_raw) {
    inventory.BeginRawLayer("buffers");
    inventory.AddRaw("num_batches", 8);
    inventory.AddRaw("mask", 70'001);
    inventory.BeginRawLayer("more buffers");
    inventory.AddRaw("flag", 1);
  }
  return inventory;
}

ModuleSettings SmallSettings() {
  ModuleSettings settings;
  settings.offload.tile_elems = 4096;
  settings.offload.clip = 0;
  return settings;
}

float ModuleGradient(uint32_t weight_bits, int64_t step, int layer) {
  uint32_t mixed = weight_bits * 2654435761u + static_cast<uint32_t>(step) * 40503u +
                   static_cast<uint32_t>(layer) * 97u;
  mixed ^= mixed >> 15;
  mixed *= 2246822519u;
  mixed ^= mixed >> 13;
  // Odd steps have gradients of twice the norm: a clip can be between.
  const float unit = step % 2 == 1 ? 0x1p-11f : 0x1p-12f;
  return (static_cast<float>(mixed & 0xff) - 127.5f) * unit;
}

namespace {

std::shared_ptr<const InventoryParts> PartsFor(const ModuleSettings& settings) {
  if (settings.zero_stage == 0) return nullptr;
  return std::make_shared<const InventoryParts>(ModuleInventory(settings.has_raw),
                                                settings.num_ranks);
}

}  // namespace

absl::StatusOr<OffloadPlan> ModulePlan(const ModuleSettings& settings) {
  PlanInputs inputs;
  const Inventory whole = ModuleInventory(settings.has_raw);
  const std::shared_ptr<const InventoryParts> parts = PartsFor(settings);
  inputs.inventory = parts == nullptr ? whole : parts->Of(settings.rank);
  inputs.chain.num_layers = inputs.inventory.num_streamed_layers();
  inputs.chain.ends_in_parts = settings.hands_parts;
  if (settings.adds_tensors) {
    inputs.step_memory = {
        {"gradients of open layers", LayerSession::OpenLayerBytes(whole, 1), 0, ""}};
  }
  OffloadOptions options = settings.offload;
  if (settings.state_on_device) {
    options.state_tier = TierChoice::kDevice;
    inputs.device_state_bytes = int64_t{64} << 20;
  }
  options.ram_bytes = int64_t{256} << 20;
  if (!settings.is_tight) return MakeOffloadPlan(inputs, options, {});
  absl::StatusOr<OffloadPlan> plan;
  for (options.ram_bytes = kRuntimeBytes; options.ram_bytes < int64_t{256} << 20;
       options.ram_bytes += int64_t{16} << 10) {
    plan = MakeOffloadPlan(inputs, options, {});
    if (plan.ok() || ExitCodeOf(plan.status()) != ExitCode::kDoesNotFit) break;
  }
  return plan;
}

// The gradients of a layer are those of the weights that its forward pass saw. Where the backward
// pass reads them again they have to be the same.
class ModuleRun::Compute : public LayerCompute {
 public:
  Compute(const Inventory& inventory, bool makes_parts)
      : inventory_(inventory), makes_parts_(makes_parts) {
    gradients_.resize(static_cast<size_t>(inventory.num_layers()));
  }
  void SetStep(int64_t step) { step_ = step; }

  absl::Status BeginPass(std::span<const MicroBatch>, double) override { return absl::OkStatus(); }
  size_t num_micro_batches() const override { return 1; }
  absl::Status Forward(int layer, const HeldWeights& weights, size_t) override {
    Fill(layer, weights.Of(layer), gradients_[layer]);
    return absl::OkStatus();
  }
  absl::Status Loss(int layer, const HeldWeights& weights, size_t) override {
    return Forward(layer, weights, 0);
  }
  absl::Status LossAndGradient(int layer, const HeldWeights& weights, size_t) override {
    return Forward(layer, weights, 0);
  }
  absl::Status Recompute(int layer, const HeldWeights& weights, size_t) override {
    std::vector<float> again;
    Fill(layer, weights.Of(layer), again);
    FOREBAY_CHECK(again == gradients_[layer]);
    return absl::OkStatus();
  }
  absl::Status Backward(int, const HeldWeights&, size_t) override { return absl::OkStatus(); }
  void Keep(int) override {}
  void Drop(int) override {}
  // The memory of a part is written over before the next is made.
  absl::StatusOr<std::optional<LayerGradient>> GradientFrom(int layer, const HeldWeights& weights,
                                                            int64_t first_elem) override {
    const std::vector<float>& whole = gradients_[layer];
    if (first_elem == std::ssize(whole)) return std::nullopt;
    if (!makes_parts_) return Fp32Gradient(layer, whole);
    const auto begin = whole.begin() + first_elem;
    part_.assign(begin, begin + std::min<int64_t>(kPartElems, whole.end() - begin));
    if (layer == inventory_.num_streamed_layers() - 1) {
      // The weights of the part are those of the step still; of parts before they may be newer.
      std::vector<float> again;
      Fill(layer, weights.Of(layer), again);
      FOREBAY_CHECK(std::equal(part_.begin(), part_.end(), again.begin() + first_elem));
    }
    return Fp32Gradient(layer, part_, first_elem);
  }
  Event* WeightsAreUsed(int) override { return nullptr; }
  absl::StatusOr<double> LossSumOf(size_t) override { return 0.0; }

 private:
  void Fill(int layer, const LayerWeights& weights, std::vector<float>& gradient) const {
    gradient.assign(static_cast<size_t>(inventory_.layers()[layer].num_elems), 0.0f);
    for (const TensorSpec* tensor : TensorsInPlace(inventory_, layer)) {
      for (int64_t i = 0; i < tensor->num_elems; ++i) {
        const int64_t elem = tensor->offset_elems + i;
        gradient[static_cast<size_t>(elem)] = ModuleGradient(BitsAt(weights, elem), step_, layer);
      }
    }
  }

  static constexpr int64_t kPartElems = 3 * kLayerAlignElems;  // no whole tiles
  const Inventory inventory_;
  const bool makes_parts_;
  std::vector<float> part_;
  int64_t step_ = 0;
  std::vector<std::vector<float>> gradients_;
};

ModuleRun::ModuleRun(std::string folder, ModuleSettings settings,
                     std::function<std::unique_ptr<Engine>()> make_engine)
    : folder_(std::move(folder)),
      settings_(std::move(settings)),
      whole_(ModuleInventory(settings_.has_raw)),
      parts_(PartsFor(settings_)),
      make_engine_(std::move(make_engine)) {}

// The first value of each element does not depend on who has it.
absl::Status ModuleRun::FillWith(const TensorSpec& tensor, int64_t first_elem,
                                 std::span<float> values) const {
  const auto index = static_cast<int>(whole_.Find(tensor.name) - whole_.tensors().data());
  const int64_t first =
      first_elem + (parts_ == nullptr ? 0 : parts_->FirstElem(index, settings_.rank));
  const CounterRng random(7, Xxh3_64(std::as_bytes(std::span(tensor.name))));
  for (size_t i = 0; i < values.size(); ++i) {
    const auto words = random.Words(static_cast<uint64_t>(first) + i);
    values[i] = static_cast<float>(static_cast<int32_t>(words[0])) * 0x1p-33f;
  }
  return absl::OkStatus();
}

ModuleRun::~ModuleRun() {
  Drop();
}

void ModuleRun::Drop() {
  walk_.reset();
  session_.reset();
  engine_.reset();
}

absl::Status ModuleRun::Open() {
  Drop();
  FOREBAY_ASSIGN_OR_RETURN(OffloadPlan plan, ModulePlan(settings_));
  plan_ = std::make_unique<OffloadPlan>(std::move(plan));
  engine_ = make_engine_ ? make_engine_() : CreateThreadsEngine({});
  const std::string directory = JoinPath(folder_, "swap");
  std::unique_ptr<TensorStore> store;
  if (FileExists(JoinPath(directory, "manifest.json"))) {
    FOREBAY_ASSIGN_OR_RETURN(store, TensorStore::Open({directory}, engine_.get()));
  } else {
    const auto fill = [this](const TensorSpec& tensor, int64_t first_elem,
                             std::span<float> values) {
      return FillWith(tensor, first_elem, values);
    };
    const auto fill_raw = [](const TensorSpec& tensor, std::span<std::byte> bytes) {
      std::ranges::fill(bytes, static_cast<std::byte>(tensor.num_elems % 251));
      return absl::OkStatus();
    };
    FOREBAY_ASSIGN_OR_RETURN(
        store, CreateFilledStore(StoreOptionsOf(*plan_, {directory}),
                                 parts_ == nullptr ? whole_ : parts_->Of(settings_.rank), fill, {},
                                 engine_.get(), &budget_, {}, {}, fill_raw));
  }
  LayerSessionOptions options;
  options.offload = settings_.offload;
  options.num_open_layers = settings_.adds_tensors ? 1 : 0;
  if (settings_.is_uneven) {
    options.groups.groups = GroupsOf(1);
    for (int i = 0; i < static_cast<int>(whole_.tensors().size()); ++i) {
      options.groups.of_tensor.push_back(i == kFrozenTensor ? 2 : i % 2);
    }
  }
  if (settings_.state_on_device) {
    if (device_ == nullptr) device_ = ChooseDevice().device;
    options.device = device_.get();
    options.device_budget = &device_budget_;
  }
  options.parts = parts_;
  options.gathered_for = settings_.zero_stage == 3 ? GatheredFor::kUse : GatheredFor::kStep;
  if (change_options_) change_options_(options);
  FOREBAY_ASSIGN_OR_RETURN(session_,
                           LayerSession::Create(*plan_, options, std::move(store), &budget_));
  compute_ = std::make_unique<Compute>(whole_, settings_.hands_parts);
  walk_ = std::make_unique<LayerWalk>(plan_->schedule.operations);
  return absl::OkStatus();
}

StepUpdate ModuleRun::UpdateOfStep() {
  const double clip = settings_.offload.clip;
  const int64_t step = session_->released_step() + 1;
  const auto scalars_of = [step, clip](double norm) {
    return UpdateScalars{.step = step, .lr = 1e-3, .gradient_scale = ClipOf(clip, norm)};
  };
  StepUpdate update = {scalars_of, clip > 0 ? clip : std::numeric_limits<double>::infinity()};
  if (settings_.is_uneven) update.groups = GroupsOf(step);
  return update;
}

// Their new values depend on the old ones: a step that is computed twice, or with those of another
// step, shows.
absl::Status ModuleRun::ChangeBuffers() {
  const int64_t step = session_->released_step() + 1;
  const Inventory& inventory = session_->store().inventory();
  for (int i = 0; i < static_cast<int>(inventory.tensors().size()); ++i) {
    if (!inventory.tensors()[i].raw) continue;
    FOREBAY_ASSIGN_OR_RETURN(const std::span<std::byte> bytes, session_->RawTensor(i));
    for (size_t at = 0; at < bytes.size(); ++at) {
      const auto was = static_cast<uint64_t>(bytes[at]);
      bytes[at] = static_cast<std::byte>(was * 7 + static_cast<uint64_t>(step) + at % 3);
    }
  }
  return absl::OkStatus();
}

bool ModuleRun::IsSkipped(int64_t step) const {
  return settings_.is_uneven && step == 3;
}

bool ModuleRun::IsLeftAlone(int tensor, int64_t step) const {
  const int layer = session_->store().inventory().tensors()[tensor].layer;
  return IsSkipped(step) || tensor == kFrozenTensor || !HasGradient(tensor, layer, step);
}

absl::Status ModuleRun::Hand(int layer, std::span<const float> gradient) {
  const int64_t step = session_->released_step() + 1;
  const Inventory& inventory = whole_;
  const LayerSpec& spec = inventory.layers()[layer];
  std::vector<int> with;
  std::vector<int> without;
  for (int tensor = spec.first_tensor; tensor < spec.first_tensor + spec.num_tensors; ++tensor) {
    const bool has_one = (!settings_.is_uneven || HasGradient(tensor, layer, step)) &&
                         (tensor + step) % settings_.num_ranks == settings_.rank;
    (has_one ? with : without).push_back(tensor);
  }
  if (!settings_.adds_tensors) return session_->Hand(Fp32Gradient(layer, gradient, 0, without));
  // Where weights are gathered between them, all ranks close layers at the same places.
  if (with.empty() && settings_.zero_stage < 3) return absl::OkStatus();
  // Not that of ranges, which Clang 14 does not compile with this standard library.
  const auto num_with = std::max<int64_t>(1, std::ssize(with));
  std::rotate(with.begin(), with.begin() + step % num_with, with.end());
  for (int half = 0; half < 2; ++half) {
    for (const int tensor : with) {
      const TensorSpec& of = inventory.tensors()[tensor];
      std::vector<float> values;
      for (int64_t i = 0; i < of.num_elems; ++i) {
        values.push_back(gradient[static_cast<size_t>(of.offset_elems + i)] / 2);
      }
      FOREBAY_RETURN_IF_ERROR(
          session_->AddGradient(tensor, DType::kF32, std::as_bytes(std::span(values))));
    }
    std::ranges::reverse(with);
  }
  return session_->CloseLayer(layer);
}

absl::StatusOr<StepGradients> ModuleRun::RunPass() {
  const int64_t step = session_->released_step() + 1;
  compute_->SetStep(step);
  WalkHooks hooks;
  hooks.commit = [this] { return session_->UpdatesOfTheStepBefore(); };
  hooks.hand = [&](const LayerGradient& gradient) {
    return settings_.hands_parts ? session_->Hand(gradient)
                                 : Hand(gradient.layer, gradient.floats());
  };
  if (settings_.has_raw) FOREBAY_RETURN_IF_ERROR(ChangeBuffers());
  walk_->Announce(*session_);
  FOREBAY_RETURN_IF_ERROR(walk_->Run(*session_, *compute_, hooks));
  return session_->FinishBackward();
}

absl::Status ModuleRun::RunStep(CommitWhen when) {
  FOREBAY_RETURN_IF_ERROR(session_->BeginStep(UpdateOfStep()));
  FOREBAY_ASSIGN_OR_RETURN(StepGradients gradients, RunPass());
  if (gradients.must_repeat) {
    ++num_repeated_;
    FOREBAY_RETURN_IF_ERROR(session_->BeginRepeat());
    FOREBAY_ASSIGN_OR_RETURN(gradients, RunPass());
    FOREBAY_CHECK(!gradients.must_repeat);
  }
  return IsSkipped(session_->released_step() + 1) ? session_->Skip(KeptOfStep(), when)
                                                  : session_->Update(KeptOfStep(), when);
}

absl::Status ModuleRun::RunUntil(int64_t step) {
  while (session_->released_step() < step) FOREBAY_RETURN_IF_ERROR(RunStep());
  return absl::OkStatus();
}

absl::Status ModuleRun::ReadWhole(int tensor, TensorPlane plane, std::span<float> values) const {
  TensorStore& store = session_->store();
  const TensorSpec& own = store.inventory().tensors()[tensor];
  if (parts_ == nullptr) return store.ReadTensor(own, plane, 0, values);
  return ReadOfAllParts(*parts_, *settings_.ranks, tensor, 0, values,
                        [&](int64_t first, std::span<float> part) {
                          return store.ReadTensor(own, plane, first, part);
                        });
}

std::string ModuleRun::Digest() {
  FOREBAY_CHECK(session_->Commit().ok());
  TensorStore& store = session_->store();
  Xxh3_128 hash;
  hash.UpdateInt(store.committed().step);
  for (int i = 0; i < static_cast<int>(whole_.tensors().size()); ++i) {
    const TensorSpec& tensor = whole_.tensors()[i];
    if (tensor.raw) {
      std::vector<std::byte> bytes(static_cast<size_t>(tensor.num_elems));
      FOREBAY_CHECK(store.ReadRaw(store.inventory().tensors()[i], 0, bytes).ok());
      hash.Update(bytes);
      continue;
    }
    std::vector<float> values(static_cast<size_t>(tensor.num_elems));
    for (const TensorPlane plane : {TensorPlane::kMaster, TensorPlane::kM, TensorPlane::kV}) {
      FOREBAY_CHECK(ReadWhole(i, plane, values).ok());
      hash.Update(std::as_bytes(std::span(values)));
    }
  }
  return hash.Hex();
}

std::string DigestAfter(const ModuleSettings& settings, int64_t num_steps) {
  const TemporaryFolder folder;
  ModuleRun run(folder.path(), settings);
  absl::Status status = run.Open();
  if (status.ok()) status = run.RunUntil(num_steps);
  EXPECT_EQ(status, absl::OkStatus());
  return status.ok() ? run.Digest() : "";
}

}  // namespace forebay
