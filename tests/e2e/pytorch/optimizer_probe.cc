// optimizer_probe CASE.json FOLDER IN OUT
//
// Trains a list of tensors with the out-of-core optimizer, in a store in FOLDER, for test_groups.py
// to compare with PyTorch. CASE: {"optimizer", "momentum", "shapes": [[of each tensor], of each
// layer], "of_tensor": [the group of each tensor], "steps": [{"groups": [{"lr", "weight_decay",
// "beta1", "beta2", "eps", "frozen"}], "without": [tensors without a gradient]}]}. IN: fp32, the
// weights of all tensors and then the gradients of each step. OUT: fp32, what is committed of all
// weights, then of first and of second moments. Prints the updates that each tensor has missed.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "forebay/aio/engine.h"
#include "forebay/base/check.h"
#include "forebay/base/errors.h"
#include "forebay/base/file.h"
#include "forebay/base/json.h"
#include "forebay/memory/host_buffer.h"
#include "forebay/optimizer/offloaded_optimizer.h"
#include "forebay/swap/store/tensor_store.h"

namespace forebay {
namespace {

constexpr int64_t kMaxCaseBytes = int64_t{1} << 20;

Inventory InventoryOf(const Json& json) {
  Inventory inventory;
  for (const Json& shapes : json["shapes"]) {
    inventory.BeginLayer("layers." + std::to_string(inventory.num_layers()));
    for (const Json& shape : shapes) {
      inventory.Add("tensors." + std::to_string(inventory.tensors().size()), shape.get<Shape>(), 0,
                    true);
    }
  }
  return inventory;
}

OptimizerConfig RuleOf(const Json& json) {
  OptimizerConfig rule;
  for (const OptimizerKind kind : {OptimizerKind::kAdamW, OptimizerKind::kAdam,
                                   OptimizerKind::kAdagrad, OptimizerKind::kSgd}) {
    if (json["optimizer"] == NameOf(kind)) rule.kind = kind;
  }
  rule.momentum = json["momentum"].get<double>();
  return rule;
}

std::vector<ParameterGroup> GroupsOf(const Json& step) {
  std::vector<ParameterGroup> groups;
  for (const Json& json : step["groups"]) {
    ParameterGroup& group = groups.emplace_back();
    group.lr_scale = json["lr"].get<double>();
    group.weight_decay = json["weight_decay"].get<double>();
    const auto read = [&](const char* name, std::optional<double>& value) {
      if (json.contains(name)) value = json[name].get<double>();
    };
    read("beta1", group.beta1);
    read("beta2", group.beta2);
    read("eps", group.eps);
    group.frozen = json["frozen"].get<bool>();
  }
  return groups;
}

// One store and its optimizer; the weights are in memory.
class Training {
 public:
  absl::Status Start(const Json& json, const std::string& folder, std::ifstream& in) {
    inventory_ = InventoryOf(json);
    StoreOptions options;
    options.directories = {JoinPath(folder, "store")};
    options.layout = Layout::kFp32;
    options.moment_set = MomentsOf(RuleOf(json));
    options.tile_elems = kLayerAlignElems;
    FOREBAY_ASSIGN_OR_RETURN(store_, TensorStore::Create(options, inventory_, engine_.get()));
    FOREBAY_RETURN_IF_ERROR(WriteStart(in));

    Placement placement;
    placement.weights.assign(static_cast<size_t>(inventory_.num_layers()), Tier::kHost);
    placement.gradients = placement.weights;
    placement.state.assign(static_cast<size_t>(store_->tiles().num_tiles()), Tier::kNvme);
    OffloadedOptimizerOptions optimizer;
    optimizer.rule = RuleOf(json);
    optimizer.groups = {GroupsOf(json["steps"][0]), json["of_tensor"].get<std::vector<int>>()};
    optimizer.gradient_dtype = DType::kF32;
    optimizer.num_threads = 2;
    FOREBAY_ASSIGN_OR_RETURN(
        optimizer_, OffloadedOptimizer::Create(optimizer, placement, store_.get(), &budget_));
    return absl::OkStatus();
  }

  absl::Status Step(const Json& json, std::ifstream& in) {
    ++step_;
    FOREBAY_RETURN_IF_ERROR(optimizer_->SetGroups(GroupsOf(json)));
    FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::vector<float>> gradients, ReadLayers(in));
    const auto without = json["without"].get<std::vector<int>>();
    for (int layer = inventory_.num_layers() - 1; layer >= 0; --layer) {
      std::vector<int> of_layer;
      std::ranges::copy_if(without, std::back_inserter(of_layer), [&](int tensor) {
        return inventory_.tensors()[static_cast<size_t>(tensor)].layer == layer;
      });
      FOREBAY_RETURN_IF_ERROR(
          optimizer_->Hand(Fp32Gradient(layer, gradients[layer], 0, of_layer), pool_));
    }
    FOREBAY_RETURN_IF_ERROR(optimizer_->FinishBackward().status());
    FOREBAY_RETURN_IF_ERROR(store_->BeginWriting());
    FOREBAY_RETURN_IF_ERROR(optimizer_->BeginUpdate({.step = step_, .lr = 1}));
    for (int layer = 0; layer < inventory_.num_layers(); ++layer) {
      FOREBAY_RETURN_IF_ERROR(optimizer_->UpdateLayer(layer, weights_[layer].bytes()));
    }
    FOREBAY_RETURN_IF_ERROR(optimizer_->AwaitAllWrites());
    return store_->Commit({step_, Json::object()});
  }

  absl::Status Write(std::ofstream& out) {
    const MomentSet moments = store_->tiles().moment_set();
    for (const TensorPlane plane : {TensorPlane::kMaster, TensorPlane::kM, TensorPlane::kV}) {
      const bool is_there =
          plane == TensorPlane::kMaster || (plane == TensorPlane::kM ? moments.m : moments.v);
      for (const TensorSpec& tensor : inventory_.tensors()) {
        std::vector<float> values(static_cast<size_t>(tensor.num_elems));
        if (is_there) FOREBAY_RETURN_IF_ERROR(store_->ReadTensor(tensor, plane, 0, values));
        out.write(reinterpret_cast<const char*>(values.data()),
                  static_cast<std::streamsize>(values.size() * sizeof(float)));
      }
    }
    std::string missed;
    for (const int64_t of_tensor : optimizer_->missed_updates()) {
      missed += (missed.empty() ? "" : ", ") + std::to_string(of_tensor);
    }
    std::printf("[%s]\n", missed.c_str());
    return absl::OkStatus();
  }

 private:
  // The flat vectors of all layers, from tensors one after another.
  absl::StatusOr<std::vector<std::vector<float>>> ReadLayers(std::ifstream& in) const {
    std::vector<std::vector<float>> layers;
    for (const LayerSpec& layer : inventory_.layers()) {
      layers.emplace_back(static_cast<size_t>(layer.num_elems));
    }
    for (const TensorSpec& tensor : inventory_.tensors()) {
      in.read(reinterpret_cast<char*>(&layers[tensor.layer][tensor.offset_elems]),
              static_cast<std::streamsize>(tensor.num_elems) * int64_t{sizeof(float)});
    }
    if (!in) return BadInputError("IN is shorter than CASE says");
    return layers;
  }

  absl::Status WriteStart(std::ifstream& in) {
    FOREBAY_ASSIGN_OR_RETURN(const std::vector<std::vector<float>> layers, ReadLayers(in));
    const TileMap& tiles = store_->tiles();
    for (const std::vector<float>& layer : layers) {
      FOREBAY_ASSIGN_OR_RETURN(
          HostBuffer weights,
          HostBuffer::Create(&budget_, "weights",
                             static_cast<int64_t>(layer.size() * sizeof(float))));
      std::ranges::copy(layer, weights.As<float>().begin());
      weights_.push_back(std::move(weights));
    }
    FOREBAY_ASSIGN_OR_RETURN(const HostBuffer zeros,
                             HostBuffer::Create(&budget_, "state", tiles.max_state_bytes()));
    std::ranges::fill(zeros.bytes(), std::byte{0});
    for (int i = 0; i < tiles.num_tiles(); ++i) {
      const Tile& tile = tiles.tiles()[i];
      IoOp op;
      store_->StartWriteWeights(
          i,
          weights_[tile.layer].bytes().subspan(static_cast<size_t>(tile.first_elem) * sizeof(float),
                                               static_cast<size_t>(tiles.WeightBytes(tile))),
          op);
      FOREBAY_RETURN_IF_ERROR(engine_->Wait(op));
      store_->MarkWeightsWritten(i);
      store_->StartWriteState(i, zeros.bytes().first(static_cast<size_t>(tiles.StateBytes(tile))),
                              op);
      FOREBAY_RETURN_IF_ERROR(engine_->Wait(op));
      store_->MarkStateWritten(i);
    }
    return store_->Commit({0, Json::object()});
  }

  const std::unique_ptr<Engine> engine_ = CreateThreadsEngine({.num_threads = 2});
  MemoryBudget budget_{0};
  ThreadPool pool_{2};
  Inventory inventory_;
  std::unique_ptr<TensorStore> store_;
  std::vector<HostBuffer> weights_;  // by layer
  std::unique_ptr<OffloadedOptimizer> optimizer_;
  int64_t step_ = 0;
};

absl::Status Run(const std::string& case_path, const std::string& folder,
                 const std::string& in_path, const std::string& out_path) {
  FOREBAY_ASSIGN_OR_RETURN(const Json json, ReadJsonFile(case_path, kMaxCaseBytes));
  std::ifstream in(in_path, std::ios::binary);
  Training training;
  FOREBAY_RETURN_IF_ERROR(training.Start(json, folder, in));
  for (const Json& step : json["steps"]) FOREBAY_RETURN_IF_ERROR(training.Step(step, in));
  std::ofstream out(out_path, std::ios::binary);
  FOREBAY_RETURN_IF_ERROR(training.Write(out));
  out.close();
  return out ? absl::OkStatus() : StorageError("OUT cannot be written");
}

}  // namespace
}  // namespace forebay

int main(int argc, char** argv) {
  if (argc != 5) {
    std::fprintf(stderr, "usage: optimizer_probe CASE.json FOLDER IN OUT\n");
    return 2;
  }
  const absl::Status status = forebay::Run(argv[1], argv[2], argv[3], argv[4]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", forebay::MessageOf(status).c_str());
  return static_cast<int>(forebay::ExitCodeOf(status));
}
