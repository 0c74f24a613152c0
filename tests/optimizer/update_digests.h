// What the update kernels left, by optimizer and format (update_test.cc). The same on every
// instruction set and machine, so that a CPU which has others than the one it was made on is
// checked too.
#pragma once

#include <map>
#include <string>

namespace forebay {

inline const std::map<std::string, std::string>& StoredDigests() {
  static const std::map<std::string, std::string> digests = {
      {"AdamWSplitWithBf16Gradients", "041c36001c1344008b99dd33061a877e"},
      {"AdamWFp16WithBf16Gradients", "d16100f032cb6504f00274cc16ab067a"},
      {"AdamWFp32WithBf16Gradients", "8e3619bd54c14c0cc2c162ec1601df6a"},
      {"AdamWSplitBf16MomentsWithBf16Gradients", "e57b00d06b3ade8667c712bcf6e21fe7"},
      {"AdamWSplitInt8MomentsWithBf16Gradients", "8f78bd5f8d9f9595430f1d796cf07029"},
      {"AdamSplitWithBf16Gradients", "e9e0b9e944c186f25fa68a335c68d480"},
      {"AdamFp16WithBf16Gradients", "f02a257f96d5c9af1dacf44fd6a2ad3b"},
      {"AdamFp32WithBf16Gradients", "d0b1e82572bd8162f2b25a918fdb1d5c"},
      {"AdamSplitBf16MomentsWithBf16Gradients", "b9ca9c31c3b6dc3684453ae0e6c6286e"},
      {"AdamSplitInt8MomentsWithBf16Gradients", "026452cec9037f2e2b52a12245f5fbb1"},
      {"AdagradSplitWithBf16Gradients", "f7308889946334b895135558d62ca338"},
      {"AdagradFp16WithBf16Gradients", "56fc5ac40f8b7e1be908430f6b1ed945"},
      {"AdagradFp32WithBf16Gradients", "19a1f79fb249daa345658cea8877fe02"},
      {"AdagradSplitBf16MomentsWithBf16Gradients", "675104b1ec7047046e1f88f27cb9cfc1"},
      {"AdagradSplitInt8MomentsWithBf16Gradients", "bafec1a5be0ec7262ee97bbb8704b68c"},
      {"LionSplitWithBf16Gradients", "727201f758b1716c6277bd97ecfa0273"},
      {"LionFp16WithBf16Gradients", "01b146ede043d1a464b2d6a4fa1060f7"},
      {"LionFp32WithBf16Gradients", "c3c20226b35df9976f72256059b86f30"},
      {"LionSplitBf16MomentsWithBf16Gradients", "88570e787ae5b82b373f178cdf145740"},
      {"LionSplitInt8MomentsWithBf16Gradients", "1c479067278a171f06c25288ba069fb7"},
      {"SgdSplitWithBf16Gradients", "bf958d5defa27b2c8eccfc1e9d4d87e4"},
      {"SgdFp16WithBf16Gradients", "f40cc4d895f4fe7396cd52b996ebb976"},
      {"SgdFp32WithBf16Gradients", "2a519d0fc00efe89c3419ca80b5e1b60"},
      {"SgdSplitBf16MomentsWithBf16Gradients", "bf958d5defa27b2c8eccfc1e9d4d87e4"},
      {"SgdSplitInt8MomentsWithBf16Gradients", "bf958d5defa27b2c8eccfc1e9d4d87e4"},
      {"SgdMomentumSplitWithBf16Gradients", "4a8abe21b5868f9afd26c8427a0921c0"},
      {"SgdMomentumFp16WithBf16Gradients", "504700f739e094ab875a5e8427637879"},
      {"SgdMomentumFp32WithBf16Gradients", "4be1d9b6607a8223352d73966158a712"},
      {"SgdMomentumSplitBf16MomentsWithBf16Gradients", "e9e907b61da807e3e429ccab544ba917"},
      {"SgdMomentumSplitInt8MomentsWithBf16Gradients", "5c54ef7b513feda6cd69d490679f2a01"},
      {"SgdNesterovSplitWithBf16Gradients", "f6f3fc5e18b30764adb1391f95260f2d"},
      {"SgdNesterovFp16WithBf16Gradients", "469ca23f2dce418ea25cff518d708bbb"},
      {"SgdNesterovFp32WithBf16Gradients", "919ae9f1be86eedb359ba4ec7907f384"},
      {"SgdNesterovSplitBf16MomentsWithBf16Gradients", "26e84e5c9e42d1279be85557213df94b"},
      {"SgdNesterovSplitInt8MomentsWithBf16Gradients", "d62df8019b1e0da0963b5e4c37620f4e"},
  };
  return digests;
}

}  // namespace forebay
