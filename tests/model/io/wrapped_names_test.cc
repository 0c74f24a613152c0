#include "forebay/model/files/wrapped_names.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace forebay {
namespace {

using ::testing::HasSubstr;

TEST(WrappedNames, ANameWithoutWrappersStays) {
  for (const char* name : {"model.layers.0.self_attn.q_proj.weight", "lm_head.weight", "",
                           "transformer.h.11.attn.c_attn.bias", "h.0.ln_1.weight"}) {
    EXPECT_EQ(UnwrappedName(name), name);
  }
}

TEST(WrappedNames, WhatWrappersPutBeforeOrIntoANameIsTakenAway) {
  constexpr char kName[] = "model.layers.0.mlp.up_proj.weight";
  for (const char* name :
       {"_orig_mod.model.layers.0.mlp.up_proj.weight", "module.model.layers.0.mlp.up_proj.weight",
        "module._orig_mod.model.layers.0.mlp.up_proj.weight",
        "model.layers.0._orig_mod.mlp.up_proj.weight",
        "_fsdp_wrapped_module.model.layers.0._fsdp_wrapped_module._checkpoint_wrapped_module.mlp."
        "up_proj.weight",
        "base_model.model.model.layers.0.mlp.up_proj.weight",
        "base_model.model.model.layers.0.mlp.up_proj.base_layer.weight",
        "model.language_model.layers.0.mlp.up_proj.weight",
        "language_model.model.layers.0.mlp.up_proj.weight",
        "model.model.layers.0.mlp.up_proj.weight"}) {
    EXPECT_EQ(UnwrappedName(name), kName) << name;
  }
  EXPECT_EQ(UnwrappedName("language_model.lm_head.weight"), "lm_head.weight");
  EXPECT_EQ(UnwrappedName("module.transformer.h.0.ln_1.bias"), "transformer.h.0.ln_1.bias");
  EXPECT_EQ(UnwrappedName("model.transformer.h.0.ln_1.bias"), "transformer.h.0.ln_1.bias");
}

TEST(WrappedNames, TensorsThatNoModelHasHaveACause) {
  EXPECT_THAT(
      CauseOfUnknownTensor("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"),
      HasSubstr("merge_and_unload"));
  EXPECT_THAT(CauseOfUnknownTensor("model.visual.patch_embed.proj.weight"), HasSubstr("images"));
  EXPECT_THAT(CauseOfUnknownTensor("model.layers.0.mlp.up_proj.qweight"), HasSubstr("quantized"));
  EXPECT_EQ(CauseOfUnknownTensor("model.layers.0.mlp.extra.weight"), "");
}

}  // namespace
}  // namespace forebay
