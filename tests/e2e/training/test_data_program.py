"""forebay and the Python program beside it: who starts when, who reports, and what is kept between runs."""

import json
import os
import pathlib
import select
import shutil
import subprocess
import time

import pytest
from conftest import Forebay, make_model, write_tokenizer
from option_flags import flag_of


@pytest.fixture(scope="module")
def model(forebay, tmp_path_factory):
    folder = make_model(forebay, tmp_path_factory.mktemp("models") / "model")
    write_tokenizer(folder)
    return folder


@pytest.fixture
def beside(forebay, tmp_path):
    """A copy of forebay whose Python program is the shell script that the test writes: `beside(script)`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    shutil.copy2(forebay.binary, folder / "forebay")

    def install(script):
        program = folder / "forebay-data"
        program.write_text(f"#!/bin/sh\nreal={pathlib.Path(forebay.binary).parent}/forebay-data\n{script}\n")
        program.chmod(0o700)
        return Forebay(str(folder / "forebay"))
    return install


def test_the_speed_of_generation_leaves_the_start_of_the_decoder_out(beside, model):
    slow = beside('[ "$1" != decode ] || sleep 3\nexec "$real" "$@"')
    done = slow.run("generate", "--format=json", model=model, prompt="and it", max_tokens=3, ram="1GiB")
    report = json.loads(done.stdout)
    seconds = (len(report["tokens"]) - 1) / report["tokens_per_s"]
    assert 0 < seconds < 2


@pytest.mark.parametrize("format", [["--format=json"], ["--format", "json"]])
def test_an_error_of_data_is_on_both_streams_with_format_json(forebay, beside, model, tmp_path, format):
    command = ["check", f"--model={model}", f"--data={tmp_path / 'no.txt'}", *format]
    missing_file = forebay.run("data", *command, check=False)
    missing_program = beside("")
    (tmp_path / "bin" / "forebay-data").unlink()
    missing = subprocess.run([missing_program.binary, "data", *command], capture_output=True, text=True,
                             env={**os.environ, "FOREBAY_DATA": "/no/such/program"})
    for done, code, words in ((missing_file, 3, "no.txt' does not exist"), (missing, 9, "FOREBAY_DATA names")):
        error = json.loads(done.stdout)["error"]
        assert done.returncode == error["exit_code"] == code
        assert words in error["message"] and error["message"] in done.stderr and "error: " in done.stderr


def test_an_error_of_the_program_is_reported_once(forebay, model, tmp_path):
    done = forebay.run("train", "--format=json", check=False, model=model, seq=32, data=tmp_path / "no.txt",
                       out=tmp_path / "run")
    assert done.returncode == 3 and done.stderr.count("no.txt' does not exist") == 1


def test_a_run_on_several_sources_says_what_became_of_them_at_each_start(forebay, model, tmp_path, monkeypatch):
    (tmp_path / "a.jsonl").write_text('{"text": "and it came to pass", "id": 1}\n' * 40)
    (tmp_path / "b.txt").write_text("in the beginning " * 40)
    dropping = pathlib.Path(shutil.copytree(model, tmp_path / "model"))
    config = json.loads((dropping / "config.json").read_text())
    (dropping / "config.json").write_text(json.dumps({**config, "attention_dropout": 0.1}))
    monkeypatch.chdir(tmp_path)
    said = []
    for out in ("packed", "cached"):
        done = forebay.run("train", "--data=a.jsonl:2", "--data=b.txt", model=dropping, out=tmp_path / out, seq=32, steps=1, batch=1,
                           ram="1GiB")
        assert "data: columns that are not used: 'id'\n" in done.stderr
        assert "data: 'a.jsonl' (weight 2) gives " in done.stderr
        assert "no dropout, whatever config.json says (attention_dropout 0.1)" in done.stderr
        said.append([line for line in done.stderr.splitlines() if line.startswith(("data: ", "unlike "))])
        config = json.loads((tmp_path / out / "resolved_config.json").read_text())
        # Absolute, so that a resume from anywhere finds them.
        assert config["data"]["data"]["value"] == f"{tmp_path / 'a.jsonl'}:2,{tmp_path / 'b.txt'}"
        assert said[-1][0] in (tmp_path / out / "events.log").read_text()
    assert said[0] == said[1]


@pytest.mark.parametrize("flags", [[], ["--format=json"]])
def test_eval_says_what_became_of_the_data(forebay, model, tmp_path, flags):
    (tmp_path / "a.jsonl").write_text('{"text": "and it came to pass", "id": 1}\n')
    done = forebay.run("eval", *flags, model=model, data=tmp_path / "a.jsonl", seq=32, ram="1GiB")
    assert done.stderr.count("data: columns that are not used: 'id'\n") == 1 and "data:" not in done.stdout


def test_data_that_a_run_has_open_stays_in_the_cache(forebay, model, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "d.txt").write_text("and it came to pass " * 200)
    settings = dict(model=model, data=tmp_path / "d.txt", seq=32, batch=1, steps=100000, ram="1GiB")
    command = [forebay.binary, "train", f"--out={tmp_path / 'run'}"] + [flag_of(k, v) for k, v in settings.items()]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert any("step 1/" in line for line in run.stdout)
        [packed] = (tmp_path / "cache" / "forebay" / "packed").iterdir()
        then = time.time() - 40 * 24 * 60 * 60

        def pack_another(text):
            os.utime(packed, (then, then))
            (tmp_path / "e.txt").write_text(text)
            forebay.run("data", "pack", model=model, data=tmp_path / "e.txt", seq=32, cache=packed.parent)

        pack_another("while the run goes on")
        assert packed.exists()
    finally:
        run.kill()
        run.communicate()
    pack_another("when it is over")
    assert not packed.exists()


CHAT_TEMPLATE = ("<|pad|>{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\\n' }}{% endfor %}"
                 "{% if add_generation_prompt %}assistant>{% endif %}")


def test_chat_is_the_models_template_around_the_message(forebay, model, tmp_path):
    chatty = shutil.copytree(model, tmp_path / "chatty")
    settings = json.loads((chatty / "tokenizer_config.json").read_text())
    (chatty / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": CHAT_TEMPLATE}))

    def generate(**prompt):
        done = forebay.run("generate", "--format=json", model=chatty, max_tokens=12, temperature=0, ram="1GiB", **prompt)
        return {key: json.loads(done.stdout)[key] for key in ("tokens", "text", "prompt_tokens")}

    as_chat = generate(chat="and it")
    assert as_chat == generate(prompt="<|pad|>user: and it\nassistant>")
    plain = generate(prompt="and it")
    assert as_chat["tokens"] != plain["tokens"] and as_chat["prompt_tokens"] != plain["prompt_tokens"]


def test_two_bos_are_noted_once_by_train_and_by_generate(forebay, model, tmp_path):
    chatty = shutil.copytree(model, tmp_path / "chatty")
    settings = json.loads((chatty / "tokenizer_config.json").read_text())
    settings = {**settings, "bos_token": "<|pad|>", "chat_template": CHAT_TEMPLATE.replace("message['role'] + ': ' + ", "")}
    (chatty / "tokenizer_config.json").write_text(json.dumps(settings))
    chat = [{"role": "user", "content": "<|pad|>and it"}, {"role": "assistant", "content": "came to pass"}]
    (tmp_path / "d.jsonl").write_text(2 * (json.dumps({"messages": chat}) + "\n"))
    done = forebay.run("train", model=chatty, data=tmp_path / "d.jsonl", out=tmp_path / "run", seq=32, batch=1, steps=1, ram="1GiB")
    assert (done.stdout + done.stderr).count("two BOS tokens ('<|pad|>')") == 1
    done = forebay.run("generate", model=chatty, chat="<|pad|>and it", max_tokens=1, ram="1GiB")
    assert done.stderr.count("two BOS tokens ('<|pad|>')") == 1


def test_text_is_written_as_it_is_generated(beside, model, tmp_path):
    """The decoder holds back what follows the first text until that has been read from the pipe."""
    held = beside(f"""[ "$1" = decode ] || exec "$real" "$@"
"$real" "$@" | while IFS= read -r line; do
  printf '%s\\n' "$line"
  [ "$line" = '""' ] || while [ ! -e '{tmp_path}/go' ]; do sleep 0.05; done
done""")
    command = [held.binary, "generate", f"--model={model}", "--prompt=and it", "--max_tokens=40", "--ram=1GiB"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert select.select([process.stdout], [], [], 120)[0], "nothing was written before the last token"
        first = os.read(process.stdout.fileno(), 1 << 16)
        assert process.poll() is None
        (tmp_path / "go").touch()
        rest, errors = process.communicate(timeout=120)
    finally:
        (tmp_path / "go").touch()
        process.kill()
        process.communicate()
    assert process.returncode == 0, errors
    whole = Forebay(held.binary).run(*command[1:]).stdout.encode()
    assert first + rest == whole and len(first) < len(whole)


def test_a_file_of_prompts_is_answered_like_its_lines(forebay, model, tmp_path):
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "and it"}\n\n{"prompt": "came"}\n')
    settings = dict(model=model, max_tokens=6, ram="1GiB", precision="fp32")
    together = json.loads(forebay.run("generate", "--format=json", prompts=prompts, **settings).stdout)
    assert [answer.pop("line") for answer in together["answers"]] == [1, 3]
    alone = [json.loads(forebay.run("generate", "--format=json", prompt=text, **settings).stdout)
             for text in ("and it", "came")]
    assert together["answers"] == [{key: each[key] for key in together["answers"][0]} for each in alone]
    assert together["s_per_answer"] > 0 and together["read_bytes_per_token"] == 0
    (tmp_path / "one.txt").write_text("\ncame\n")
    [answer] = json.loads(forebay.run("generate", "--format=json", prompts=tmp_path / "one.txt", **settings).stdout)["answers"]
    assert answer == {**together["answers"][1], "line": 2}
    printed = forebay.run("generate", prompts=prompts, **settings)
    assert printed.stdout == "".join(f"[{line}] {each['text']}\n" for line, each in zip((1, 3), together["answers"]))
    assert " s for each answer, 0 B of weights read for each token" in printed.stderr


def test_a_prompt_that_is_too_long_is_named_with_its_line(forebay, model, tmp_path):
    (tmp_path / "p.txt").write_text("short\n" + "x" * 129 + "\n")
    done = forebay.run("generate", check=False, model=model, prompts=tmp_path / "p.txt", ram="1GiB")
    assert done.returncode == 3 and "p.txt:2: the prompt has 129 tokens, but the model has 128" in done.stderr
    both = forebay.run("generate", check=False, model=model, prompts=tmp_path / "p.txt", prompt="a")
    assert both.returncode == 2 and "or --prompts with a file" in both.stderr


def test_a_long_prompt_cuts_no_other_answer(forebay, model, tmp_path):
    (tmp_path / "p.txt").write_text("short\n" + "x" * 126 + "\n")
    done = forebay.run("generate", "--format=json", model=model, prompts=tmp_path / "p.txt", max_tokens=20, ram="1GiB")
    answers = json.loads(done.stdout)["answers"]
    assert [len(answer["tokens"]) for answer in answers if not answer["ended"]] == [20, 3]


def test_equal_prompts_are_answered_differently_and_the_same_with_the_same_seed(forebay, model):
    command = [forebay.binary, "generate", "--format=json", f"--model={model}", "--prompt=and it", "--prompt=and it",
               "--temperature=1", "--seed=5", "--max_tokens=12", "--ram=1GiB"]
    first, second = (json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["answers"] for _ in range(2))
    assert first == second and first[0]["tokens"] != first[1]["tokens"]


def test_an_answer_ends_before_the_first_of_several_stops(forebay, model):
    command = [forebay.binary, "generate", "--format=json", f"--model={model}", "--prompt=and it", "--prompt=came",
               "--temperature=1", "--max_tokens=40", "--ram=1GiB"]
    whole = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)["answers"]
    text = whole[0]["text"]
    early, late = text[6:9], text[12:15]
    done = subprocess.run([*command, f"--stop={late}", f"--stop={early}"], check=True, capture_output=True)
    stopped = json.loads(done.stdout)["answers"]
    for answer, each in zip(stopped, whole):
        places = [each["text"].find(stop) for stop in (early, late) if stop in each["text"]]
        assert answer["text"] == each["text"][:min(places, default=None)]
        assert answer["ended"] == bool(places) and answer["tokens"] == each["tokens"][:len(answer["tokens"])]
    assert stopped[0]["ended"] and len(stopped[0]["tokens"]) < len(whole[0]["tokens"])
    empty = forebay.run("generate", check=False, model=model, prompt="a", stop="")
    assert empty.returncode == 2 and "--stop is empty" in empty.stderr


def test_inspect_shows_the_end_tokens_of_both_files(forebay, model, tmp_path):
    ended = shutil.copytree(model, tmp_path / "ended")
    config = json.loads((ended / "config.json").read_text())
    (ended / "config.json").write_text(json.dumps({**config, "eos_token_id": [2, 5]}))
    (ended / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    shown = json.loads(forebay.run("inspect", str(ended), "--format=json").stdout)["end_tokens"]
    assert shown == {"generation_config.json": [7, 8], "config.json": [2, 5]}
    text = forebay.run("inspect", str(ended)).stdout
    assert "end tokens   7, 8 (generation_config.json); 2, 5 (config.json)" in text


def test_weights_that_stream_are_counted_for_each_token(forebay, tmp_path):
    """A model of more blocks than the budget holds beside the program's own share."""
    model = make_model(forebay, tmp_path / "model", hidden_size=512, intermediate_size=2048, num_hidden_layers=8)
    write_tokenizer(model)
    weights = os.path.getsize(f"{model}/model.safetensors")
    settings = dict(model=model, prompt="a", max_tokens=4, threads=1)
    refused = forebay.run("generate", check=False, ram="100MiB", **settings)
    least = refused.stderr.split("--ram=")[1].split()[0]
    read = json.loads(forebay.run("generate", "--format=json", ram=least, **settings).stdout)["read_bytes_per_token"]
    assert 0.7 * weights < read <= weights
