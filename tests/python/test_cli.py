"""The program as a user and as the forebay binary run it."""

import json
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import time

import pytest
from conftest import make_model, write_lines

MAIN = pathlib.Path(__file__).resolve().parents[2] / "python" / "forebay_data_main.py"


def run(*args, stdin="", environment=None):
    return subprocess.run([sys.executable, str(MAIN), *map(str, args)], input=stdin, capture_output=True, text=True,
                          encoding="utf-8", env={**os.environ, **(environment or {})})


def run_json(*args, **others):
    done = run(*args, "--format=json", **others)
    assert done.returncode == 0, done
    return json.loads(done.stdout)


def test_pack_show_and_check_agree(model, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", [{"prompt": "the", "completion": " cat"}])
    packed = run_json("pack", "--model", model, "--data", data, "--seq=32", "--out", tmp_path / "o")
    shown = run_json("show", "--model", model, "--data", tmp_path / "o", "-n1")
    checked = run_json("check", "--model", model, "--data", data, "--seq=32")
    [sample] = shown["samples"]
    assert packed["tokens"] == checked["tokens"] == sample["num_tokens"] == len(sample["tokens"])
    assert packed["trained"] == sample["num_trained"] == sum(token["trained"] for token in sample["tokens"])
    assert "".join(part["text"] for part in sample["parts"] if part["trained"]) == " cat<|im_end|>"


@pytest.mark.parametrize("streams", ["<&- >&- 2>&-", ">&-"])
def test_without_standard_streams_files_hold_what_they_hold_with_them(model, tmp_path, streams):
    data = write_lines(tmp_path / "d.jsonl", [{"prompt": "the", "completion": " cat"}])
    flags = f"pack --model={model} --data={data} --seq=32 --format=json"
    for name, closed in (("with", ""), ("without", streams)):
        done = subprocess.run(f"{sys.executable} {MAIN} {flags} --out={tmp_path / name} {closed}", shell=True, capture_output=True,
                              text=True)
        assert done.returncode == 0, done
    with_them, without = (sorted(path.relative_to(folder) for path in folder.rglob("*"))
                          for folder in (tmp_path / "with", tmp_path / "without"))
    assert with_them == without
    for name in with_them:
        assert not (tmp_path / "with" / name).is_file() or (tmp_path / "with" / name).read_bytes() == (
            tmp_path / "without" / name).read_bytes()


def test_rows_have_1024_tokens_where_seq_is_not_given(model, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", [{"text": "the cat"}])
    assert run_json("check", "--model", model, "--data", data)["seq"] == 1024
    assert run_json("pack", "--model", model, "--data", data, "--out", tmp_path / "o")["seq"] == 1024
    for command in ("check", "pack"):
        assert "default: 1024" in run(command, "--help").stdout
    # A packed file has rows already.
    run_json("pack", "--model", model, "--data", data, "--seq=32", "--out", tmp_path / "p")
    assert run_json("check", "--model", model, "--data", tmp_path / "p")["seq"] == 32


def test_show_marks_trained_tokens_in_plain_text(model, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", [{"prompt": "the", "completion": " cat é"}])
    done = run("show", "--model", model, "--data", data, environment={"LC_ALL": "C"})
    assert done.returncode == 0 and "the« cat é<|im_end|>»" in done.stdout
    assert "more" not in done.stdout


def test_show_says_that_there_are_more(model, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", [{"text": "the cat"}] * 3)
    done = run("show", "--model", model, "--data", data, "-n2")
    assert "--- there are more; -n 8 shows more of them ---" in done.stdout
    assert run_json("show", "--model", model, "--data", data, "-n2")["more"] is True
    assert run_json("show", "--model", model, "--data", data, "-n3")["more"] is False


def test_check_with_problems_exits_3(model, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", [{"text": "the cat"}, {"text": ""}])
    done = run("check", "--model", model, "--data", data, "--seq=32")
    assert done.returncode == 3 and "d.jsonl:2: the sample has no trained token" in done.stdout


def test_error_goes_to_standard_error_with_its_exit_code(model, tmp_path):
    done = run("pack", "--model", model, "--data", tmp_path / "no.txt", "--seq=32", "--out", tmp_path / "o")
    assert done.returncode == 3 and done.stdout == ""
    assert done.stderr.startswith("forebay-data: error: ") and "no.txt' does not exist" in done.stderr


def test_pack_tells_all_problems_and_exits_3(model, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", [{"texts": "a"}, {"text": "the cat"}, {"x" * 5000: ""}, {"text": ""}])
    done = run("pack", "--model", model, "--data", data, "--seq=32", "--out", tmp_path / "o", "--format=json")
    message = json.loads(done.stdout)["error"]["message"]
    assert done.returncode == 3 and done.stderr == f"forebay-data: error: {message}\n"
    assert [line.split(": ")[0].rsplit(":", 1)[-1] for line in message.split("\n")[1:]] == ["1", "3", "4"]
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("format", [["--format=json"], ["--format", "json"]])
def test_error_is_a_document_too_with_format_json(model, tmp_path, format):
    done = run("pack", "--model", model, "--data", tmp_path / "no.txt", "--seq=32", "--out=x", *format)
    error = json.loads(done.stdout)["error"]
    assert done.returncode == error["exit_code"] == 3
    assert done.stderr == f"forebay-data: error: {error['message']}\n"


def test_program_that_reports_errors_itself_gets_the_document_alone(model, tmp_path):
    done = run("pack", "--model", model, "--data", tmp_path / "no.txt", "--seq=32", "--out=x", "--format=json",
               "--errors=document")
    assert done.returncode == 3 and done.stderr == ""
    assert json.loads(done.stdout)["error"]["exit_code"] == 3


@pytest.mark.parametrize("args", [[], ["pack"], ["nonsense"], ["pack", "--model=m", "--data=d", "--seq=x"],
                                  ["eos", "--model=m", "--colour"]])
def test_usage_errors_exit_2(args):
    done = run(*args)
    assert done.returncode == 2 and "--help" in done.stderr


@pytest.mark.parametrize("args, words", [
    (["pack", "--modle=m"], "unknown flag '--modle'; did you mean '--model'?"),  # and both required flags are missing
    (["pack", "--model=m", "--data=d", "--trunc"], "unknown flag '--trunc'; did you mean '--truncate'?"),
    (["show", "--model", "m", "--data", "d", "--sqe", "3"], "unknown flag '--sqe'; did you mean '--seq'?"),
    (["eos", "--model=m", "--colour"], "unknown flag '--colour'; see"),
    (["eos", "--model", "--no such folder"], "no such folder"),  # with blanks it is a value
    (["--hel"], "--help"),
])
def test_unknown_flags_are_named_first_with_the_nearest(args, words):
    done = run(*args)
    assert done.returncode in (2, 3) and words in done.stderr, done
    assert "required: --" not in done.stderr


def test_every_folder_on_the_way_to_the_cache_is_the_users_alone(model, tmp_path):
    data = write_lines(tmp_path / "d.txt", ["the cat"])
    cache = tmp_path / "a" / "b" / "c"
    old_mask = os.umask(0)
    try:
        run_json("pack", "--model", model, "--data", data, "--seq=32", "--cache", cache)
    finally:
        os.umask(old_mask)
    for folder in (cache, cache.parent, cache.parent.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, folder


def test_a_cache_that_cannot_be_made_is_named_with_the_variable_that_moves_it(model, tmp_path):
    data = write_lines(tmp_path / "d.txt", ["the cat"])
    done = run("pack", "--model", model, "--data", data, "--seq=32", "--cache=/proc/nope/forebay/packed")
    assert done.returncode == 5
    for words in ("the cache of packed text '/proc/nope/forebay/packed'", "No such file or directory", "XDG_CACHE_HOME"):
        assert words in done.stderr


def test_unwritable_output_exits_5(model, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", [{"text": "the cat"}])
    done = run("pack", "--model", model, "--data", data, "--seq=32", "--out=/proc/nowhere/o")
    assert done.returncode == 5 and "/proc/nowhere" in done.stderr


def test_missing_package_exits_9_and_says_how_to_install(tmp_path):
    (tmp_path / "tokenizers.py").write_text("raise ImportError('gone', name='tokenizers')")
    done = run("eos", "--model=m", environment={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 9 and done.stdout == ""
    assert "'tokenizers' cannot be imported" in done.stderr and "run scripts/build" in done.stderr
    # Debian's own Python refuses pip.
    assert "pip install" not in done.stderr
    done = run("eos", "--model=m", "--format=json", environment={"PYTHONPATH": str(tmp_path)})
    error = json.loads(done.stdout)["error"]
    assert error["exit_code"] == 9 and done.stderr == f"forebay-data: error: {error['message']}\n"


def test_launcher_without_python_says_so_in_both_ways(tmp_path):
    folder = os.environ.get("FOREBAY_BIN")
    if folder is None:
        pytest.skip("FOREBAY_BIN is not set; ctest sets it")
    # Away from the build's own environment, which comes first.
    shutil.copy(f"{folder}/forebay-data", tmp_path / "forebay-data")
    done = subprocess.run([tmp_path / "forebay-data", "eos", "--model=m", "--format=json"], capture_output=True,
                          text=True, env={**os.environ, "FOREBAY_PYTHON": "/no/python"})
    error = json.loads(done.stdout)["error"]
    assert done.returncode == error["exit_code"] == 9 and "FOREBAY_PYTHON" in error["message"]
    assert done.stderr == f"forebay-data: error: {error['message']}\n"


def test_prompts_are_encoded_line_by_line(model, tokenizer):
    chat = [{"role": "user", "content": "Hello"}]
    lines = "".join(json.dumps(record) + "\n" for record in [{"prompt": "the é"}, {"messages": chat}])
    plain, messages = map(json.loads, run("encode", "--model", model, stdin=lines).stdout.splitlines())
    assert plain == {"tokens": tokenizer.encode("the é"), "eos": [2]}
    assert tokenizer.decode(messages["tokens"]) == "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"
    as_chat = run_json("encode", "--model", model, "--chat", stdin='{"prompt": "Hello"}')
    assert as_chat == messages


def test_prompts_of_a_file_come_with_their_lines(model, tokenizer, tmp_path):
    (tmp_path / "p.txt").write_bytes("\ufeff the cat\r\n \n{\"prompt\": 1}".encode())
    plain = run_json("encode", "--model", model, "--prompts", tmp_path / "p.txt")
    expected = [(" the cat", 1), ('{"prompt": 1}', 3)]
    assert plain == [{"tokens": tokenizer.encode(text), "eos": [2], "line": line} for text, line in expected]
    chat = {"messages": [{"role": "user", "content": "Hello"}]}
    (tmp_path / "p.jsonl").write_text(f'{json.dumps({"prompt": "the cat"})}\n\n{json.dumps(chat)}\n')
    prompt, messages = run_json("encode", "--model", model, "--prompts", tmp_path / "p.jsonl")
    assert (prompt["tokens"], prompt["line"], messages["line"]) == (tokenizer.encode("the cat"), 1, 3)
    assert tokenizer.decode(messages["tokens"]).startswith("<|im_start|>user\nHello")


@pytest.mark.parametrize("name, contents, message", [
    ("p.jsonl", b'{"prompt": "a"}\n{"prompt": 1}\n', "p.jsonl:2: 'prompt' is a JSON int"),
    ("p.jsonl", b'{"prompt": "a"}\n\nx\n', "p.jsonl:3: not valid JSON"),
    ("p.jsonl", b'{"prompt": "a"}\n{"prompt": ""}\n', "p.jsonl:2: the prompt has no token"),
    ("p.txt", b"a\n\xff\n", "p.txt:2: not UTF-8"),
    ("p.txt", b"\n \n", "has no prompts"),
    ("p.csv", b"a\n", "named neither .txt nor .jsonl"),
])
def test_bad_lines_of_a_prompt_file_are_named(model, tmp_path, name, contents, message):
    (tmp_path / name).write_bytes(contents)
    done = run("encode", "--model", model, "--prompts", tmp_path / name)
    assert done.returncode == 3 and message in done.stderr and not done.stdout


def test_a_prompt_file_that_is_not_there_is_named_with_its_flag(model, tmp_path):
    done = run("encode", "--model", model, "--prompts", tmp_path / "no.txt")
    assert done.returncode == 3 and "no.txt' does not exist: --prompts names" in done.stderr


@pytest.mark.parametrize("line", ["x", '{"prompt": 1}', '{"text": "a"}', '{"prompt": ""}'])
def test_bad_prompt_exits_3(model, line):
    assert run("encode", "--model", model, stdin=line).returncode == 3


def test_chat_without_a_template_advises_a_prompt(tmp_path):
    done = run("encode", "--model", make_model(tmp_path / "m", template=None), "--chat", stdin='{"prompt": "Hello"}')
    assert done.returncode == 3 and "has no chat template" in done.stderr
    assert "--prompt instead of --chat" in done.stderr and "data pack" not in done.stderr


def test_decode_answers_each_token_before_the_next(model, tokenizer):
    text = "the cat 😀 sat"
    with subprocess.Popen([sys.executable, str(MAIN), "decode", "--model", str(model), "--format=json"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as child:
        answers = []
        for token in tokenizer.encode(text):
            child.stdin.write(f"{token}\n")
            answers.append(json.loads(child.stdout.readline()))
        child.stdin.close()
        answers.append(json.loads(child.stdout.readline()))
        assert child.wait(timeout=200) == 0
    assert "".join(answers) == text


def test_decode_begins_a_text_anew_behind_an_end(model, tokenizer):
    emoji = tokenizer.encode("😀")
    assert len(emoji) > 1  # so that half of it is left over
    tokens = [*emoji[:1], "end", *tokenizer.encode("a😀")]
    done = run("decode", "--model", model, "--format=json", stdin="".join(f"{token}\n" for token in tokens))
    texts = [json.loads(line) for line in done.stdout.splitlines()]
    assert texts[:2] == ["", "\ufffd"] and "".join(texts[2:]) == "a😀"


def test_decode_keeps_the_texts_of_several_numbers_apart(model, tokenizer):
    emoji = tokenizer.encode("😀")
    lines = [f"{text} {token}" for token in emoji for text in (0, 12)] + ["12 end", f"12 {emoji[0]}", "0 end", "12 end"]
    done = run("decode", "--model", model, "--format=json", stdin="".join(f"{line}\n" for line in lines))
    texts = [json.loads(line) for line in done.stdout.splitlines()]
    assert texts == [""] * (2 * len(emoji) - 2) + ["😀", "😀", "", "", "", "\ufffd", ""]


def test_streamed_decode_says_when_it_is_ready(model):
    with subprocess.Popen([sys.executable, str(MAIN), "decode", "--model", str(model), "--stream", "--format=json"],
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as child:
        assert json.loads(child.stdout.readline()) == ""
        child.stdin.close()
        assert json.loads(child.stdout.readline()) == "" and child.wait(timeout=200) == 0


@pytest.mark.parametrize("line", ["-1", "400", "a", "1.5", ""])
def test_bad_token_exits_3(model, line):
    assert run("decode", "--model", model, stdin=f"{line}\n").returncode == 3


def test_special_tokens_are_listed(model):
    assert run_json("eos", "--model", model) == {"bos": 1, "eos": 2, "pad": 0, "stop": [2]}


def test_launcher_starts_the_program(model):
    folder = os.environ.get("FOREBAY_BIN")
    if folder is None:
        pytest.skip("FOREBAY_BIN is not set; ctest sets it")
    done = subprocess.run([f"{folder}/forebay-data", "eos", "--model", str(model)], capture_output=True, text=True,
                          env={**os.environ, "FOREBAY_PYTHON": sys.executable})
    assert done.returncode == 0 and json.loads(done.stdout)["eos"] == 2, done.stderr


def test_ctrl_c_at_any_moment_is_quiet(model):
    folder = os.environ.get("FOREBAY_BIN")
    if folder is None:
        pytest.skip("FOREBAY_BIN is not set; ctest sets it")
    command = [f"{folder}/forebay-data", "encode", "--model", str(model)]
    for delay_ms in range(0, 500, 20):
        # In a group of its own, as a terminal makes one for each command.
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True, start_new_session=True) as child:
            time.sleep(delay_ms / 1000)
            os.killpg(child.pid, signal.SIGINT)
            output, errors = child.communicate("", timeout=200)
        assert output == errors == "", f"after {delay_ms} ms: {errors}"
        # 0: it came while Python itself started, where it is ignored.
        assert child.returncode in (-signal.SIGINT, 75, 0), f"after {delay_ms} ms: {child.returncode}"


def test_a_reader_that_has_seen_enough_is_no_error(model, tmp_path):
    data = write_lines(tmp_path / "d.jsonl", [{"text": "the cat"}] * 2000)
    shown = subprocess.Popen([sys.executable, str(MAIN), "show", "--model", str(model), "--data", str(data), "-n2000"],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    shown.stdout.readline()
    shown.stdout.close()
    assert shown.stderr.read() == ""
    assert shown.wait() == 5


def test_a_pipe_as_data_is_named_and_not_waited_for(model, tmp_path):
    os.mkfifo(tmp_path / "d.txt")
    done = run("show", "--model", model, "--data", tmp_path / "d.txt")
    assert done.returncode == 3 and "is no regular file" in done.stderr
