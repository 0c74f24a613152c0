"""forebay.hf.Trainer: training, evaluation, a stop, resuming and saving, beside transformers' own Trainer."""

import multiprocessing
import os
import random
import time

import forebay
import forebay.hf
import forebay.torch
import pytest
import torch
import transformers
from test_stream_architectures import Tokens, make

transformers.utils.logging.disable_progress_bar()


class Stop(transformers.TrainerCallback):
    """As a kill would, at the begin of a step."""

    def __init__(self, step):
        self.step = step

    def on_step_begin(self, args, state, control, **_):
        if state.global_step == self.step:
            raise InterruptedError


def arguments(folder, **more):
    settings = {"per_device_train_batch_size": 4, "num_train_epochs": 2, "report_to": [], "save_strategy": "steps",
                "save_steps": 3, "save_total_limit": 1, "eval_strategy": "epoch", "logging_steps": 1, "use_cpu": True,
                "seed": 3, "disable_tqdm": True, "max_grad_norm": 0.7, "learning_rate": 1e-2, "weight_decay": 0.1,
                "warmup_steps": 2, "lr_scheduler_type": "cosine"}
    return transformers.TrainingArguments(output_dir=folder, **{**settings, **more})


def history_of(trainer):
    return [{key: entry[key] for key in ("loss", "eval_loss", "grad_norm", "learning_rate", "step") if key in entry}
            for entry in trainer.state.log_history]


def assert_same(history, expected):
    assert len(history) == len(expected) > 5
    for ours, theirs in zip(history, expected):
        # A sum of another order.
        assert ours.pop("grad_norm", 0) == pytest.approx(theirs.pop("grad_norm", 0), rel=1e-9)
        assert ours == theirs


def plain(name, folder, **more):
    """With our optimizer in RAM, which clips by itself."""
    args = arguments(folder, **more)
    model = make(name)
    trainer = transformers.Trainer(model=model, args=args, train_dataset=Tokens(), eval_dataset=Tokens())
    decayed = set(trainer.get_decay_parameter_names(model))
    groups = [{"params": [p for n, p in model.named_parameters() if (n in decayed) == is_decayed],
               "weight_decay": 0.1 if is_decayed else 0.0} for is_decayed in (True, False)]
    optimizer = forebay.torch.AdamW(groups, lr=1e-2, clip=0.7)
    args.max_grad_norm = 0.0
    trainer = transformers.Trainer(model=model, args=args, train_dataset=Tokens(), eval_dataset=Tokens(),
                                   optimizers=(optimizer, None))
    trainer._get_grad_norm = lambda *_, **__: None
    log = trainer._maybe_log_save_evaluate
    trainer._maybe_log_save_evaluate = lambda loss, _, *rest, **more: log(loss, optimizer.grad_norm, *rest, **more)
    trainer.train()
    return history_of(trainer), model.state_dict()


def streamed(name, tmp_path, model=None, callbacks=None, weights=None, **more):
    return forebay.hf.Trainer(model=make(name) if model is None else model, args=arguments(tmp_path / "out", **more),
                              train_dataset=Tokens(), eval_dataset=Tokens(), nvme=tmp_path / "store",
                              callbacks=callbacks, weights=weights)


@pytest.mark.parametrize("name, accumulation", [("gpt2", 1), ("llama", 2)])
def test_train_evaluate_stop_resume_save(tmp_path, name, accumulation):
    more = {"gradient_accumulation_steps": accumulation, "save_steps": 2}
    expected, state = plain(name, tmp_path / "plain", **more)
    assert expected[0]["grad_norm"] > 0.7

    first = streamed(name, tmp_path, callbacks=[Stop(3)], **more)
    with pytest.raises(InterruptedError):
        first.train(resume_from_checkpoint=True)
    assert os.listdir(tmp_path / "out") == ["checkpoint-2"]
    first.engine.optimizer.close()  # step 3 is lost

    second = streamed(name, tmp_path, **more)
    second.train(resume_from_checkpoint=True)
    assert_same(history_of(second), expected)
    for key, value in second.engine.state_dict().items():
        assert torch.equal(value, state[key]), key
    assert second.evaluate()["eval_loss"] == expected[-2]["eval_loss"]
    prompt = {"input_ids": torch.tensor([[5, 6, 7]]), "max_new_tokens": 4, "do_sample": False, "pad_token_id": 0}
    generated = second.model.generate(**prompt)

    second.save_model(tmp_path / "saved")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    for key, value in loaded.state_dict().items():
        assert torch.equal(value, state[key]), key
    assert torch.equal(loaded.generate(**prompt), generated)


def test_a_store_that_is_gone_does_not_begin_anew_over_checkpoints(tmp_path):
    first = streamed("gpt2", tmp_path, max_steps=4, eval_strategy="no")
    first.train(resume_from_checkpoint=True)
    first.engine.optimizer.close()
    newest = (tmp_path / "out" / "checkpoint-4" / "trainer_state.json").read_bytes()
    (tmp_path / "store").rename(tmp_path / "unmounted")
    for wanted in (True, str(tmp_path / "out" / "checkpoint-4")):
        with pytest.raises(forebay.BadInputError, match="checkpoint-4 is of a run whose store is gone"):
            streamed("gpt2", tmp_path, max_steps=8, eval_strategy="no").train(resume_from_checkpoint=wanted)
    assert (tmp_path / "out" / "checkpoint-4" / "trainer_state.json").read_bytes() == newest
    (tmp_path / "unmounted").rename(tmp_path / "store")
    again = streamed("gpt2", tmp_path, max_steps=8, eval_strategy="no")
    again.train(resume_from_checkpoint=True)
    assert history_of(again)[0]["step"] == 1 and again.state.global_step == 8
    again.engine.optimizer.close()


class Count(transformers.TrainerCallback):
    """A byte in a file for each step."""

    def __init__(self, path):
        self.path = path

    def on_step_end(self, *_, **__):
        with open(self.path, "ab") as file:
            file.write(b".")


def run_until_the_end(folder):
    torch.set_num_threads(1)
    trainer = streamed("gpt2", folder, save_steps=2, eval_strategy="no", callbacks=[Count(folder / "steps")])
    trainer.train(resume_from_checkpoint=True)
    torch.save((history_of(trainer)[:-1], trainer.engine.state_dict()), folder / "end.new")
    (folder / "end.new").rename(folder / "end")


def run_and_kill(context, folder, most_kills):
    """Returns the number of kills."""
    folder.mkdir()
    (folder / "steps").touch()
    rng, kills = random.Random(3), 0
    while not (folder / "end").exists():
        process = context.Process(target=run_until_the_end, args=(folder,))
        process.start()
        wanted = (folder / "steps").stat().st_size + rng.randrange(1, 5)
        while kills < most_kills and process.is_alive() and (folder / "steps").stat().st_size < wanted:
            time.sleep(0.002)
        time.sleep(rng.uniform(0, 0.1))
        if kills < most_kills and process.is_alive():
            process.kill()
            kills += 1
            process.join()
        else:
            process.join()
            assert process.exitcode == 0
    return kills


def test_a_trainer_that_is_killed_again_and_again(tmp_path):
    context = multiprocessing.get_context("forkserver")  # a fork of it needs no time to import torch
    context.set_forkserver_preload(["test_hf", "torch._dynamo"])
    run_and_kill(context, tmp_path / "unbroken", 0)
    assert run_and_kill(context, tmp_path / "killed", 7) >= 3
    history, state = torch.load(tmp_path / "unbroken" / "end")
    ours, our_state = torch.load(tmp_path / "killed" / "end")
    assert len(history) == 12 and ours == history
    for key, value in our_state.items():
        assert torch.equal(value, state[key]), key


def test_a_model_of_the_meta_device_is_evaluated_and_trained(tmp_path):
    make("llama").save_pretrained(tmp_path / "files")
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(make("llama").config)
    trainer = streamed("llama", tmp_path, model=model.train(), weights=tmp_path / "files", save_strategy="no")
    fresh = make("llama")
    reference = transformers.Trainer(model=fresh, args=arguments(tmp_path / "other"), eval_dataset=Tokens())
    assert trainer.evaluate()["eval_loss"] == reference.evaluate()["eval_loss"]
    trainer.train()
    assert_same(history_of(trainer), plain("llama", tmp_path / "plain", save_strategy="no")[0])


def test_what_it_cannot_do_says_so(tmp_path):
    for more, text in (({"load_best_model_at_end": True, "eval_strategy": "steps"}, "best_model_checkpoint"),
                       ({"optim": "adafactor"}, "adamw_torch")):
        with pytest.raises(forebay.UsageError, match=text):
            streamed("gpt2", tmp_path, **more)
    trainer = streamed("gpt2", tmp_path, max_steps=3)
    trainer.train()
    trainer.engine.close()
    again = streamed("gpt2", tmp_path, max_steps=3)
    with pytest.raises(forebay.UsageError, match="keeps the state of its last checkpoint"):
        again.train(resume_from_checkpoint=str(tmp_path / "out" / "checkpoint-1"))
    again.engine.close()
    with pytest.raises(forebay.UsageError, match="there is a store"):
        streamed("gpt2", tmp_path).train()
