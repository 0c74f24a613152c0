"""A model that is made on the meta device, streamed from files, and saved again. test_torch_saving.py starts it, and
reads the line that it prints: bytes of the model, bytes that it had in memory at most, what state_dict() said."""

import resource
import sys

import forebay.torch
import torch
import torch._dynamo  # which the first optimizer imports
import transformers


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


files, store, saved, ram = sys.argv[1:]
torch.set_num_threads(1)
with torch.device("meta"):
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(files))
before = peak()
engine = forebay.torch.stream(model, nvme=store, weights=files, ram=ram)
engine.save_pretrained(saved, max_shard_size="40MB")
try:
    engine.state_dict()
    said = ""
except forebay.DoesNotFitError as error:
    said = str(error)
print(sum(parameter.numel() * parameter.element_size() for parameter in model.parameters()), peak() - before, said)
