// Whether a checkpoint holds exactly the tensors that a model needs.
#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "forebay/base/errors.h"
#include "forebay/model/decoder_config.h"
#include "forebay/model/files/json_reader.h"
#include "forebay/model/files/safetensors.h"
#include "forebay/model/files/wrapped_names.h"

namespace forebay {
namespace {

constexpr size_t kMostProblemsShown = 20;

bool IsSupported(std::string_view dtype_name) {
  return dtype_name == SafetensorsName(DType::kF32) ||
         dtype_name == SafetensorsName(DType::kBF16) || dtype_name == SafetensorsName(DType::kF16);
}

using Tensor = CheckpointReader::Tensor;

// The tensors of a checkpoint, by the names that they have in the model.
class NamedTensors {
 public:
  NamedTensors(const CheckpointReader& reader, std::vector<std::string>& problems) {
    for (const auto& [name, tensor] : reader.tensors()) {
      const auto [other, added] = by_name_.try_emplace(UnwrappedName(name), &tensor);
      if (added) continue;
      problems.push_back(fmt::format("'{}' and '{}' are both '{}'",
                                     Printable(other->second->entry.name), Printable(name),
                                     Printable(other->first)));
    }
  }
  // nullptr when absent.
  const Tensor* Find(const std::string& name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? nullptr : found->second;
  }
  const Tensor* FindUnderAnyName(const DecoderConfig& config, const std::string& name) const {
    if (const Tensor* const tensor = Find(name)) return tensor;
    for (const std::string& alternative : AlternativeNames(config, name)) {
      if (const Tensor* const tensor = Find(alternative)) return tensor;
    }
    return nullptr;
  }

 private:
  std::map<std::string, const Tensor*> by_name_;
};

std::string MissingText(const std::string& name) {
  const std::string_view hint =
      name == "lm_head.weight"
          ? " (a model whose output layer is its embedding says \"tie_word_embeddings\": true)"
          : "";
  return fmt::format("'{}' is missing{}", name, hint);
}

// Whether two tensors of the same shape hold the same numbers.
absl::StatusOr<bool> SameValues(const CheckpointReader& reader, const CheckpointReader::Tensor& a,
                                const CheckpointReader::Tensor& b) {
  std::array<float, 8192> values_a, values_b;
  const int64_t num_elems = NumElems(a.entry.shape);
  for (int64_t first = 0; first < num_elems; first += static_cast<int64_t>(values_a.size())) {
    const auto count = static_cast<size_t>(std::min<int64_t>(values_a.size(), num_elems - first));
    FOREBAY_RETURN_IF_ERROR(reader.ReadF32(a, first, std::span(values_a).first(count)));
    FOREBAY_RETURN_IF_ERROR(reader.ReadF32(b, first, std::span(values_b).first(count)));
    if (!std::equal(values_a.begin(), values_a.begin() + static_cast<std::ptrdiff_t>(count),
                    values_b.begin())) {
      return false;
    }
  }
  return true;
}

// Some checkpoints of tied models carry the output layer all the same. Where it is not the
// embedding, transformers does not tie them, and neither reading of the checkpoint is safe to
// assume.
absl::Status CheckTiedHead(const CheckpointReader& reader, const NamedTensors& named,
                           const DecoderConfig& config, const CheckpointReader::Tensor& embedding,
                           std::vector<std::string>& problems) {
  const CheckpointReader::Tensor* const head =
      config.tied_embeddings ? named.Find("lm_head.weight") : nullptr;
  if (head == nullptr) return absl::OkStatus();
  bool same = head->entry.shape == embedding.entry.shape && IsSupported(head->entry.dtype_name) &&
              IsSupported(embedding.entry.dtype_name);
  if (same) {
    FOREBAY_ASSIGN_OR_RETURN(same, SameValues(reader, *head, embedding));
  }
  if (!same) {
    problems.push_back(
        "'lm_head.weight' differs from the embedding, although config.json ties them (set "
        "\"tie_word_embeddings\": false to use it)");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<const CheckpointReader::Tensor*>> MatchCheckpoint(
    const CheckpointReader& reader, const DecoderConfig& config, const Inventory& inventory) {
  std::vector<std::string> problems;
  std::vector<const CheckpointReader::Tensor*> matched;
  std::set<std::string_view> used;
  const NamedTensors named(reader, problems);
  for (const TensorSpec& spec : inventory.tensors()) {
    const CheckpointReader::Tensor* const tensor = named.FindUnderAnyName(config, spec.name);
    matched.push_back(tensor);
    if (tensor == nullptr) {
      problems.push_back(MissingText(spec.name));
      continue;
    }
    used.insert(tensor->entry.name);
    if (tensor->entry.shape != spec.shape) {
      problems.push_back(fmt::format("'{}' has shape {}, but config.json makes it {}",
                                     tensor->entry.name, ToString(tensor->entry.shape),
                                     ToString(spec.shape)));
    }
    if (!IsSupported(tensor->entry.dtype_name)) {
      problems.push_back(fmt::format("'{}' has dtype {}, but F32, BF16 and F16 are supported",
                                     tensor->entry.name, tensor->entry.dtype_name));
    }
    if (spec.role == static_cast<int>(TensorRole::kTokenEmbedding)) {
      FOREBAY_RETURN_IF_ERROR(CheckTiedHead(reader, named, config, *tensor, problems));
    }
  }
  for (const auto& [name, tensor] : reader.tensors()) {
    if (used.contains(name) || IsIgnorableTensor(config, UnwrappedName(name))) continue;
    problems.push_back(fmt::format(
        "'{}' is in the checkpoint, but {} as config.json describes it has no such tensor{}",
        Printable(name), config.architecture, CauseOfUnknownTensor(name)));
  }
  if (problems.empty()) return matched;
  const size_t total = problems.size();
  problems.resize(std::min(total, kMostProblemsShown));
  return BadInputError(fmt::format(
      "{}: the tensors do not fit the config: {}{}. Use the config.json that belongs to "
      "these weights",
      reader.ShardPath(0), fmt::join(problems, "; "),
      total > kMostProblemsShown ? fmt::format("; and {} more problems", total - kMostProblemsShown)
                                 : ""));
}

}  // namespace forebay
