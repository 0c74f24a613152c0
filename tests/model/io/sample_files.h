// Safetensors files and model folders for tests.
#pragma once

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "forebay/aio/engine.h"
#include "forebay/base/bfloat16.h"
#include "forebay/base/check.h"
#include "forebay/base/counter_rng.h"
#include "forebay/base/dtype.h"
#include "forebay/base/file.h"
#include "forebay/base/json.h"
#include "forebay/base/round_up.h"
#include "forebay/base/tensor_spec.h"
#include "gmock/gmock.h"

namespace forebay {

// Length, header and `data`, whatever they are.
inline std::string RawSafetensors(std::string_view header, std::string_view data = "") {
  const uint64_t length = header.size();
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  return file.append(header).append(data);
}

inline std::span<const std::byte> BytesOf(std::string_view text) {
  return std::as_bytes(std::span(text));
}

struct SampleTensor {
  std::string name;
  DType dtype = DType::kF32;
  Shape shape;
  std::vector<float> values;
};

// The bytes of `values` in `dtype`.
inline std::string Encode(DType dtype, const std::vector<float>& values) {
  std::string bytes;
  for (const float value : values) {
    if (dtype == DType::kF32) {
      bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
    } else {
      const uint16_t half = dtype == DType::kBF16 ? FloatToBf16(value) : FloatToFp16(value);
      bytes.append(reinterpret_cast<const char*>(&half), sizeof(half));
    }
  }
  return bytes;
}

inline std::string MakeSafetensors(const std::vector<SampleTensor>& tensors) {
  Json header = Json::object();
  std::string data;
  for (const SampleTensor& tensor : tensors) {
    const size_t begin = data.size();
    data += Encode(tensor.dtype, tensor.values);
    header[tensor.name] = {{"dtype", std::string(SafetensorsName(tensor.dtype))},
                           {"shape", tensor.shape},
                           {"data_offsets", {begin, data.size()}}};
  }
  return RawSafetensors(header.dump(), data);
}

// The file with its header made longer, so that the tensors begin `residue` bytes behind a multiple
// of kIoAlignBytes.
inline std::string WithTensorsAt(std::string file, int64_t residue) {
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  const auto begin = static_cast<int64_t>(sizeof(header_bytes) + header_bytes);
  const int64_t blanks = RoundUp(begin, kIoAlignBytes) + residue - begin;
  const auto added = static_cast<size_t>(blanks < 0 ? blanks + kIoAlignBytes : blanks);
  file.insert(static_cast<size_t>(begin), added, ' ');
  header_bytes += added;
  std::memcpy(file.data(), &header_bytes, sizeof(header_bytes));
  return file;
}

// One tensor per entry of the inventory, with values that are exact in bf16 and differ everywhere.
inline std::vector<SampleTensor> RandomTensors(const Inventory& inventory, DType dtype) {
  std::vector<SampleTensor> tensors;
  for (size_t i = 0; i < inventory.tensors().size(); ++i) {
    const TensorSpec& spec = inventory.tensors()[i];
    const CounterRng rng(7, i);
    SampleTensor tensor{spec.name, dtype, spec.shape, {}};
    for (int64_t elem = 0; elem < spec.num_elems; ++elem) {
      const auto value = static_cast<float>(rng.Normal(static_cast<uint64_t>(elem)));
      tensor.values.push_back(Bf16ToFloat(FloatToBf16(value)));
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

// A folder that is removed with the test.
class FolderTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "forebay-model-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    directory_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  std::string Path(std::string_view name) const { return JoinPath(directory_, name); }
  void Write(std::string_view name, std::string_view contents) const {
    FOREBAY_CHECK(WriteFileAtomically(Path(name), contents).ok());
  }
  void WriteIndex(const std::map<std::string, std::string>& weight_map) const {
    Write("model.safetensors.index.json",
          Json{{"metadata", {{"total_size", 1}}}, {"weight_map", weight_map}}.dump());
  }
  std::string directory_;
};

}  // namespace forebay
