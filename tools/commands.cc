#include "forebay/tools/command.h"

namespace forebay {

const std::vector<CommandEntry>& Commands() {
  static const std::vector<CommandEntry> commands = {
      {"train", "fine-tune a model, with its state on NVMe inside a memory budget",
       "forebay train --model=models/smollm2 --data=book.txt --out=runs/book --ram=1GiB --steps=60",
       MakeTrainCommand},
      {"plan", "what a run would need: bytes per tier, fits or not",
       "forebay plan models/smollm2 --ram=1GiB --batch=4 --seq=256", MakePlanCommand},
      {"generate", "continue a prompt or answer a chat message",
       "forebay generate --model=runs/book/model --prompt='In the beginning' --max_tokens=50",
       MakeGenerateCommand},
      {"eval", "loss and perplexity of a model on text",
       "forebay eval --model=runs/book/model --data=held_out.txt", MakeEvalCommand},
      {"inspect", "tensors, shapes, dtypes, bytes and digest of a model folder or a run",
       "forebay inspect runs/book --hash", MakeInspectCommand},
      {"init", "a model with random weights from a config.json",
       "forebay init --config=config.json --out=models/fresh --seed=1", MakeInitCommand},
      {"clean", "give the swap space of a run back", "forebay clean runs/book", MakeCleanCommand},
      {"version", "the version of forebay", "forebay version", MakeVersionCommand},
  };
  return commands;
}

}  // namespace forebay
