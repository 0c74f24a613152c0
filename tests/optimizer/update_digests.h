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
      {"AdamWSplitBf16MomentsWithBf16Gradients", "2e432e232c27f988f474b5a3669a8ccd"},
      {"AdamWSplitInt8MomentsWithBf16Gradients", "9d728c1a33122715527d210e8008fff0"},
      {"AdamSplitWithBf16Gradients", "e9e0b9e944c186f25fa68a335c68d480"},
      {"AdamFp16WithBf16Gradients", "f02a257f96d5c9af1dacf44fd6a2ad3b"},
      {"AdamFp32WithBf16Gradients", "d0b1e82572bd8162f2b25a918fdb1d5c"},
      {"AdamSplitBf16MomentsWithBf16Gradients", "cdb9360009a4b3d06204b94188133004"},
      {"AdamSplitInt8MomentsWithBf16Gradients", "247a0a30032f548206148c8164ee7a67"},
      {"AdagradSplitWithBf16Gradients", "f7308889946334b895135558d62ca338"},
      {"AdagradFp16WithBf16Gradients", "56fc5ac40f8b7e1be908430f6b1ed945"},
      {"AdagradFp32WithBf16Gradients", "19a1f79fb249daa345658cea8877fe02"},
      {"AdagradSplitBf16MomentsWithBf16Gradients", "10a2d170e02bac6bd6406af603f3605a"},
      {"AdagradSplitInt8MomentsWithBf16Gradients", "0159bdd1fa5413d51f7337a4236268a5"},
      {"LionSplitWithBf16Gradients", "727201f758b1716c6277bd97ecfa0273"},
      {"LionFp16WithBf16Gradients", "01b146ede043d1a464b2d6a4fa1060f7"},
      {"LionFp32WithBf16Gradients", "c3c20226b35df9976f72256059b86f30"},
      {"LionSplitBf16MomentsWithBf16Gradients", "a3d7be8fdb7a2fb52b91d7f8b097054c"},
      {"LionSplitInt8MomentsWithBf16Gradients", "55c87f53b9688676996f533782d67e32"},
      {"SgdSplitWithBf16Gradients", "bf958d5defa27b2c8eccfc1e9d4d87e4"},
      {"SgdFp16WithBf16Gradients", "f40cc4d895f4fe7396cd52b996ebb976"},
      {"SgdFp32WithBf16Gradients", "2a519d0fc00efe89c3419ca80b5e1b60"},
      {"SgdSplitBf16MomentsWithBf16Gradients", "bf958d5defa27b2c8eccfc1e9d4d87e4"},
      {"SgdSplitInt8MomentsWithBf16Gradients", "bf958d5defa27b2c8eccfc1e9d4d87e4"},
      {"SgdMomentumSplitWithBf16Gradients", "4a8abe21b5868f9afd26c8427a0921c0"},
      {"SgdMomentumFp16WithBf16Gradients", "504700f739e094ab875a5e8427637879"},
      {"SgdMomentumFp32WithBf16Gradients", "4be1d9b6607a8223352d73966158a712"},
      {"SgdMomentumSplitBf16MomentsWithBf16Gradients", "5b4902b58001a17fc4ecd3ba6f1f445b"},
      {"SgdMomentumSplitInt8MomentsWithBf16Gradients", "a27a021c75f2e687c7dea7a3dcfba7c9"},
      {"SgdNesterovSplitWithBf16Gradients", "f6f3fc5e18b30764adb1391f95260f2d"},
      {"SgdNesterovFp16WithBf16Gradients", "469ca23f2dce418ea25cff518d708bbb"},
      {"SgdNesterovFp32WithBf16Gradients", "919ae9f1be86eedb359ba4ec7907f384"},
      {"SgdNesterovSplitBf16MomentsWithBf16Gradients", "51a71b99d1394633c636584812bdbe64"},
      {"SgdNesterovSplitInt8MomentsWithBf16Gradients", "3307f6b8d32cb1736f86e9b2ee4a8acb"},
  };
  return digests;
}

}  // namespace forebay
