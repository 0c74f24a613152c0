"""GPT-2 on paragraphs. By arguments (--deepspeed_config FILE), or with a configuration as a dict (--by_dict FILE)."""

import argparse
import ast

import forebay.deepspeed as deepspeed
import torch
from published_data import Tokenizer, paragraphs
from transformers import GPT2Config, GPT2LMHeadModel

parser = argparse.ArgumentParser()
parser.add_argument("--deepspeed_config", type=str, default=None)
parser.add_argument("--by_dict", type=str, default=None)
parser.add_argument("--local_rank", type=int, default=0)
parser.add_argument("--cpu_adam", action="store_true")
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--lr", type=float, default=3e-5)
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--width", type=int, default=32)
parser.add_argument("--words", type=int, default=Tokenizer.vocab_size)
args = parser.parse_args()

torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(
    n_layer=args.layers, n_embd=args.width, n_head=max(2, args.width // 64), n_positions=1024, vocab_size=args.words,
    bos_token_id=Tokenizer.eos_token_id, eos_token_id=Tokenizer.eos_token_id))
tokenizer = Tokenizer()
if args.cpu_adam:
    from forebay.deepspeed.ops.adam import DeepSpeedCPUAdam as Adam
else:
    from torch.optim import Adam
optimizer = Adam(model.parameters(), lr=args.lr, weight_decay=3e-7)
if args.by_dict is None:
    engine, optimizer, _, scheduler = deepspeed.initialize(args=args, model=model, optimizer=optimizer)
else:
    with open(args.by_dict) as file:
        config = ast.literal_eval(file.read())
    engine, optimizer, _, scheduler = deepspeed.initialize(model=model, optimizer=optimizer, config=config)

loader = torch.utils.data.DataLoader(paragraphs(8 * (args.steps + 1)), batch_size=8, num_workers=2)
for step, texts in enumerate(loader):
    inputs = tokenizer(texts, padding=True, truncation=True, max_length=1024, return_tensors="pt")
    ids, mask = inputs["input_ids"].cuda(), inputs["attention_mask"].cuda()
    loss = engine(input_ids=ids, attention_mask=mask, labels=ids).loss
    engine.backward(loss)
    engine.step()
    if step % 10 == 0 and torch.distributed.get_rank() == 0:
        print(f"step:{step}, loss:{loss.item()}", flush=True)
    if step >= args.steps:
        break
print(f"scale:{optimizer.cur_scale}, skipped:{engine.skipped_steps}, steps:{engine.global_steps}, "
      f"applied:{scheduler.last_batch_iteration + 1}")
