"""Templates, tokenizers and lines that would take all memory or never end: each is refused within limits, and named."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from conftest import make_model, write_lines

PROGRAMS = pathlib.Path(__file__).resolve().parents[2] / "python"
CHAT = {"messages": [{"role": "user", "content": "a\nb"}, {"role": "assistant", "content": "c"}]}
# The limit of the whole program, below --ram=400M.
MOST_MEMORY_BYTES = 380 << 20

# Runs the program with other limits than its own.
RUN = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from forebay_data import bounds
bounds.CPU_SECONDS = float(sys.argv.pop(1))
import forebay_data_main
sys.exit(forebay_data_main.run())
"""


def start(*arguments, cpu_s=60, **streams):
    return subprocess.Popen([sys.executable, "-c", RUN, str(PROGRAMS), str(cpu_s), *map(str, arguments)],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **streams)


def refusal(*arguments, expect=3, **options):
    """The error of the program, which must have kept within bounds."""
    process = start(*arguments, "--format=json", **options)
    output, errors = process.stdout.read(), process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == expect, (process.returncode, output, errors)
    error = json.loads(output)["error"]
    assert error["exit_code"] == expect and errors.endswith(f"forebay-data: error: {error['message']}\n")
    assert "Traceback" not in errors
    assert usage.ru_maxrss << 10 < MOST_MEMORY_BYTES
    return error["message"]


def refusal_of_template(tmp_path, template, **options):
    """The error of a template for the chat in the second line, named as both are."""
    model = make_model(tmp_path / "model", template=template)
    data = write_lines(tmp_path / "d.jsonl", [{"text": "the cat"}, CHAT])
    message = refusal("pack", f"--model={model}", f"--data={data}", f"--out={tmp_path / 'o'}", **options)
    assert "the chat template in" in message and "tokenizer_config.json'" in message
    if "compil" not in message and "nested" not in message:
        assert "d.jsonl:2: " in message
    assert not (tmp_path / "o").exists()
    return message


DOUBLED = "{% set n = namespace(s='x') %}{% for i in range(40) %}{% set n.s = BOTH %}{% endfor %}{{ n.s }}"


@pytest.mark.parametrize("template", [
    "{{ messages[0].role * 10**10 }}",
    "{{ 'x' * 10**10 }}",
    "{{ [0] * 10**10 }}",
    "{{ ([messages[0].role] * 10**7) | join('x' * 1000) }}",
    "{{ '%1000000000d' | format(1) }}",
    "{{ '{:1000000000}'.format(1) }}",
    "{{ messages[0].role | center(10**9) }}",
    "{{ messages[0].content | indent(10**9) }}",
    "{{ ('x' * 10**5) | replace('x', 'y' * 10**5) }}",
    DOUBLED.replace("BOTH", "n.s + n.s"),
    DOUBLED.replace("BOTH", "n.s ~ n.s"),
    "{% for i in range(99999) %}{{ messages[0].role * 10000 }}{% endfor %}",
])
def test_a_template_that_takes_more_memory_is_named_with_the_line_and_the_limit(tmp_path, template):
    message = refusal_of_template(tmp_path, template)
    assert "takes more than 256 MiB of memory, which is the limit: " in message and "--template" in message


LOOP = "{% for i in range(99999) %}BODY{% endfor %}"


@pytest.mark.parametrize("template", [
    LOOP.replace("BODY", LOOP).replace("BODY", ""),
    "{{ (messages | length) ** (10 ** 9) }}",  # of one operation, which nothing within the process can interrupt
    "{{ 7 ** (10 ** 9) }}",                    # while it is compiled
    "{{ 5 | round(-10**9) }}",
])
def test_a_template_that_does_not_end_is_named_with_the_limit(tmp_path, template):
    message = refusal_of_template(tmp_path, template, cpu_s=1)
    assert "takes more than 1 s of processor time, which is the limit: " in message


@pytest.mark.parametrize("template, words", [
    ("{{ " + "(" * 100_000 + ")" * 100_000 + " }}", "is nested too deeply"),
    ("{{ " + "[" * 100_000, "is nested too deeply"),
    ("{% if 1 %}" * 100_000, "is nested too deeply"),
    ("{{ " + "1 + " * 100_000 + "1 }}", "is nested too deeply"),
    ("{{ " + "(" * 150 + ")" * 150 + " }}", "the chat template in"),
    ("{% macro m(n) %}{{ m(n) }}{% endmacro %}{{ m(1) }}", "recursion"),
    ("{{ ('x' * 4999999) }}", "writes it, has 4,999,999 bytes"),
    ("{{ raise_exception('x' * 10**6) }}", " [...] xxx"),
    ("{{ messages | map('attribute') | list }}", "refuses this chat"),
])
def test_other_templates_of_excess_are_errors_of_them(tmp_path, template, words):
    assert words in refusal_of_template(tmp_path, template, cpu_s=20)


def test_the_template_of_a_prompt_is_within_the_same_limits(tmp_path):
    model = make_model(tmp_path / "model", template="{{ messages[0].role * 10**10 }}")
    (tmp_path / "p.jsonl").write_text(json.dumps({"messages": CHAT["messages"][:1]}) + "\n")
    message = refusal("encode", f"--model={model}", f"--prompts={tmp_path / 'p.jsonl'}")
    assert "p.jsonl:1: " in message and "256 MiB of memory" in message


def changed_tokenizer(folder, **changes):
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return folder


@pytest.mark.parametrize("changes, text, words", [
    ({"normalizer": {"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 100_000}}, "a" * 100_000,
     "256 MiB of memory"),
    ({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "a*b[^x]"}, "behavior": "Isolated", "invert": False}},
     "a" * 400_000 + "bx", "1 s of processor time"),
])
def test_a_tokenizer_of_excess_is_named_with_the_line_and_the_limit(tmp_path, changes, text, words):
    model = changed_tokenizer(make_model(tmp_path / "model"), **changes)
    data = write_lines(tmp_path / "d.jsonl", [{"text": text}])
    message = refusal("pack", f"--model={model}", f"--data={data}", f"--out={tmp_path / 'o'}", cpu_s=1)
    assert "d.jsonl:1: tokenizing with '" in message and "tokenizer.json' takes more than " + words in message


def write_line(path, begin, size, end):
    """A line of `begin`, so many x, and `end`."""
    with open(path, "w", encoding="utf-8") as file:
        file.write('{"text": "the cat"}\n' + begin)
        for _ in range(size >> 20):
            file.write("x" * (1 << 20))
        file.write(end + "\n")


@pytest.mark.parametrize("begin, end", [
    ('{"text": "', '"}'), ('{"prompt": "a", "completion": "', '"}'),
    ('{"messages": [{"role": "user", "content": "', '"}, {"role": "assistant", "content": "b"}]}'),
])
@pytest.mark.parametrize("size, words", [
    (300 << 20, ("the line has 314,57", "the longest that is read has 16,777,216", "split the record")),
    (5 << 20, (" bytes", "4,194,304")),
])
def test_a_huge_line_is_refused_with_its_size_the_limit_and_the_cure(tmp_path, begin, end, size, words):
    model = make_model(tmp_path / "model")
    write_line(tmp_path / "d.jsonl", begin, size, end)
    begun = time.process_time()
    message = refusal("pack", f"--model={model}", f"--data={tmp_path / 'd.jsonl'}", f"--out={tmp_path / 'o'}")
    (tmp_path / "d.jsonl").unlink()
    assert "d.jsonl:2: " in message
    assert all(word in message for word in words), message
    assert time.process_time() - begun < 30


@pytest.mark.parametrize("line, words", [
    ('{"text": "a", "x": [' + "[]," * 5_000_000 + "0]}", "256 MiB of memory"),
    ("{" + "".join(f'"{number}": 0, ' for number in range(300_000)) + '"0": 1}', "the key '0' appears twice"),
    ("{" + ", ".join(f'"{number}": 0' for number in range(300_000)) + "}", "unknown key '0'"),
    ("[" * 100_000, "nested too deeply"),
    ('{"text": 1' + "0" * 1_000_000 + "}", "a number has more than 4300 digits"),
    ('{"' + "k" * 1_000_000 + '": 1}', " [...] "),
])
def test_a_line_of_excess_is_named(tmp_path, line, words):
    model = make_model(tmp_path / "model")
    (tmp_path / "d.jsonl").write_text(f'{{"text": "a"}}\n{line}\n')
    message = refusal("pack", f"--model={model}", f"--data={tmp_path / 'd.jsonl'}", f"--out={tmp_path / 'out'}")
    assert "d.jsonl:2: " in message and words in message


@pytest.mark.parametrize("name, contents, words", [
    ("config.json", "[" * 100_000, "nested too deeply"),
    ("config.json", '{"vocab_size": 1' + "0" * 1_000_000 + "}", "a number has more than 4300 digits"),
    ("config.json", " " * (17 << 20), "more than 16,777,216 bytes"),
    ("tokenizer_config.json", '{"x": ' + "[" * 100_000, "nested too deeply"),
    ("chat_template.jinja", "x" * (17 << 20), "more than 16,777,216 bytes"),
    ("tokenizer.json", "[" * 100_000, "is no tokenizer"),
])
def test_a_file_of_a_model_of_excess_is_named(tmp_path, name, contents, words):
    model = make_model(tmp_path / "model")
    (model / name).write_text(contents)
    data = write_lines(tmp_path / "d.jsonl", [CHAT])
    message = refusal("pack", f"--model={model}", f"--data={data}", f"--out={tmp_path / 'out'}")
    assert f"{name}'" in message and words in message


def test_a_long_text_without_an_end_of_a_word_is_cut_where_it_can_be(tmp_path):
    """As of languages that write no blanks."""
    model = make_model(tmp_path / "model")
    data = write_lines(tmp_path / "d.jsonl", [{"text": "the,cat,sat," * 100_000}])
    process = start("check", f"--model={model}", f"--data={data}", "--format=json")
    report, errors = process.communicate()
    assert process.returncode == 0, errors
    assert json.loads(report)["samples"] == 1


def test_a_token_that_is_no_number_of_one_is_named(tmp_path):
    process = start("decode", f"--model={make_model(tmp_path / 'model')}", "--format=json", stdin=subprocess.PIPE)
    output, errors = process.communicate("1" * 10_000 + "\n")
    assert process.returncode == 3 and "is not a token id below" in json.loads(output)["error"]["message"], errors


def children_of(process):
    return list(map(int, pathlib.Path(f"/proc/{process}/task/{process}/children").read_text().split()))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_to_the_program_ends_all_of_it(tmp_path, number):
    process = start("decode", f"--model={make_model(tmp_path / 'model')}", "--stream", stdin=subprocess.PIPE)
    assert process.stdout.read(0) == "" and process.poll() is None
    while not (workers := children_of(process.pid)):
        time.sleep(0.01)
    process.send_signal(number)
    process.communicate()
    assert process.returncode in (-number, 75)
    assert not pathlib.Path(f"/proc/{workers[0]}").exists()


def test_a_program_that_the_kernel_kills_says_so(tmp_path):
    process = start("decode", f"--model={make_model(tmp_path / 'model')}", "--stream", stdin=subprocess.PIPE)
    while not (workers := children_of(process.pid)):
        time.sleep(0.01)
    os.kill(workers[0], signal.SIGKILL)
    _, errors = process.communicate()
    assert process.returncode == 6 and "most likely because memory ran out" in errors


def test_what_works_ends_with_a_program_that_is_killed(tmp_path):
    process = start("decode", f"--model={make_model(tmp_path / 'model')}", "--stream", stdin=subprocess.PIPE)
    while not (workers := children_of(process.pid)):
        time.sleep(0.01)
    process.kill()
    process.stdout.read()  # to the end, which comes when the worker has ended too
    process.communicate()
    assert not pathlib.Path(f"/proc/{workers[0]}/exe").exists()
