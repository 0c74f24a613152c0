// Mistakes of a caller that hands gradients over in parts. That parts give the bits of the whole is
// in layer_session_test.cc.
#include <memory>
#include <span>
#include <vector>

#include "forebay/base/errors.h"
#include "forebay/collective/communicator.h"
#include "forebay/offload/layer_session.h"
#include "forebay/tests/offload/module_run.h"
#include "gmock/gmock.h"

namespace forebay {
namespace {

using testing::HasSubstr;

bool IsUsageError(const absl::Status& status) {
  return ExitCodeOf(status) == ExitCode::kUsage;
}

TEST(GradientParts, ComeInOrderAndWhole) {
  const TemporaryFolder folder;
  ModuleRun run(folder.path(), SmallSettings());
  ASSERT_EQ(run.Open(), absl::OkStatus());
  LayerSession& session = run.session();
  const int64_t num_elems = session.store().inventory().layers()[5].num_elems;
  const std::vector<float> zeros(static_cast<size_t>(num_elems));
  const auto hand = [&](int layer, int64_t first, int64_t count) {
    return session.Hand(Fp32Gradient(layer, std::span(zeros).subspan(0, count), first));
  };
  EXPECT_TRUE(IsUsageError(hand(5, 0, 2048)));  // no step has begun
  ASSERT_EQ(session.BeginStep(run.UpdateOfStep()), absl::OkStatus());
  EXPECT_TRUE(IsUsageError(hand(7, 0, 2048)));
  EXPECT_THAT(MessageOf(hand(5, 2048, 2048)), HasSubstr("the next is of 'layer5', from element 0"));
  EXPECT_THAT(MessageOf(hand(5, 0, 100)), HasSubstr("a part of it: a multiple of 2048"));
  EXPECT_THAT(MessageOf(hand(5, 0, 0)), HasSubstr("with 0 elements"));
  ASSERT_EQ(hand(5, 0, 4096), absl::OkStatus());
  EXPECT_THAT(MessageOf(hand(5, 0, 4096)), HasSubstr("the next is of 'layer5', from element 4096"));
  EXPECT_THAT(MessageOf(hand(4, 0, 2048)), HasSubstr("the next is of 'layer5', from element 4096"));
  EXPECT_THAT(MessageOf(hand(5, 4096, num_elems)), HasSubstr("elements"));
  // A step that is abandoned between them leaves no trace, and the next begins anew.
  session.Abandon();
  ASSERT_EQ(session.BeginStep(run.UpdateOfStep()), absl::OkStatus());
  ASSERT_EQ(hand(5, 0, 2048), absl::OkStatus());
  EXPECT_TRUE(IsUsageError(session.FinishBackward().status()));
  ASSERT_EQ(hand(5, 2048, num_elems - 2048), absl::OkStatus());
  EXPECT_TRUE(IsUsageError(hand(5, 0, 2048)));  // it was handed over
  session.Abandon();
}

TEST(GradientParts, HaveNothingBetweenThemThatIsAddedOrClosed) {
  const TemporaryFolder folder;
  ModuleSettings settings = SmallSettings();
  settings.adds_tensors = true;
  ModuleRun run(folder.path(), settings);
  ASSERT_EQ(run.Open(), absl::OkStatus());
  LayerSession& session = run.session();
  const Inventory& inventory = session.store().inventory();
  ASSERT_EQ(session.BeginStep(run.UpdateOfStep()), absl::OkStatus());
  const std::vector<float> zeros(static_cast<size_t>(inventory.layers()[5].num_elems));
  ASSERT_EQ(session.Hand(Fp32Gradient(5, std::span(zeros).first(2048))), absl::OkStatus());
  const TensorSpec& tensor =
      inventory.tensors()[static_cast<size_t>(inventory.layers()[5].first_tensor)];
  const auto bytes = std::as_bytes(std::span(zeros)).first(tensor.num_elems * 4);
  EXPECT_THAT(
      MessageOf(session.AddGradient(inventory.layers()[5].first_tensor, DType::kF32, bytes)),
      HasSubstr("between parts of the gradient of 'layer5'"));
  EXPECT_TRUE(IsUsageError(session.CloseLayer(4)));
  EXPECT_THAT(MessageOf(session.FinishBackward().status()),
              HasSubstr("FinishBackward comes between parts"));
  ASSERT_EQ(session.Hand(Fp32Gradient(5, std::span(zeros).subspan(2048), 2048)), absl::OkStatus());
  EXPECT_TRUE(session.FinishBackward().ok());
}

TEST(GradientParts, AreNotForRanks) {
  const std::unique_ptr<Communicator> alone = Communicator::CreateAlone();
  const TemporaryFolder folder;
  ModuleRun run(folder.path(), SmallSettings());
  run.ChangeOptions([&](LayerSessionOptions& options) { options.ranks = alone.get(); });
  ASSERT_EQ(run.Open(), absl::OkStatus());
  ASSERT_EQ(run.session().BeginStep(run.UpdateOfStep()), absl::OkStatus());
  const std::vector<float> zeros(2048);
  EXPECT_THAT(MessageOf(run.session().Hand(Fp32Gradient(6, zeros))),
              HasSubstr("takes whole layers"));
}

}  // namespace
}  // namespace forebay
