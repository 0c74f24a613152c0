"""Every command in README.md, CONTRIBUTING.md, docs/ and examples/ is executed by something, every program is compiled, and every
link leads somewhere. What README.md says to run first builds the programs that README.md names.

A block of commands (fenced as ```sh) follows a line that says what executes it:

    <!-- run: test -->          this program, in a scratch folder with a tiny model (ctest doc_commands)
    <!-- run: scripts/demo -->  a program of the checkout, which then has to be the block's commands

`doc_commands.py list ROOT` checks the marks; `doc_commands.py run ROOT BIN SCRATCH` also executes the blocks
marked "test", in order, in one scratch folder where build/bin is BIN and the models are tiny (make_scratch).

A program in the docs (fenced as ```cpp) is a source of the tree, which the build compiles, letter by letter:

    <!-- source: tests/swap/session/embedding_example.cc -->
"""

import json
import os
import pathlib
import re
import subprocess
import sys

BLOCK = re.compile(r"^(?:<!-- run: (?P<by>[^>]*?) -->\n)?```sh\n(?P<commands>.*?)^```$", re.M | re.S)
PROGRAM = re.compile(r"^(?:<!-- source: (?P<source>[^>]*?) -->\n)?```cpp\n(?P<text>.*?)^```$", re.M | re.S)


def documents_of(root):
    return [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md")),
            *sorted((root / "examples").glob("*.md"))]


def blocks_of(root):
    """Yields (where, marked with, commands)."""
    for path in documents_of(root):
        text = path.read_text()
        for block in BLOCK.finditer(text):
            line = text.count("\n", 0, block.start()) + 1
            yield f"{path.relative_to(root)}:{line}", block["by"], block["commands"]


def problems_of_commands(root):
    for where, by, commands in blocks_of(root):
        if by is None:
            yield f"{where}: say above the block what runs it: <!-- run: test --> or <!-- run: PROGRAM -->"
        elif by != "test":
            for program in by.split():
                if not (root / program).exists():
                    yield f"{where}: is said to be run by {program}, which is not there"
            for command in filter(None, commands.splitlines()):
                program = command.split("#")[0].split()[0]
                if program not in by.split():
                    yield f"{where}: '{command}' is not run by {by}"


def problems_of_programs(root):
    for path in documents_of(root):
        text = path.read_text()
        for program in PROGRAM.finditer(text):
            where = f"{path.relative_to(root)}:{text.count(chr(10), 0, program.start()) + 1}"
            if program["source"] is None:
                yield f"{where}: say above the program which source it is: <!-- source: FILE -->"
            elif not (root / program["source"]).exists():
                yield f"{where}: is said to be {program['source']}, which is not there"
            elif (root / program["source"]).read_text() != program["text"]:
                yield f"{where}: differs from {program['source']}"


def problems_of_links(root):
    for path in documents_of(root):
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()):
            if not (path.parent / target).exists():
                yield f"{path.relative_to(root)}: links to {target}, which is not there"


def problems_of_programs_to_build(root):
    """What README.md sets up has every program that it names; a build of named targets has those alone."""
    readme = root / "README.md"
    names = sorted(set(re.findall(r"build/bin/([\w-]+)", readme.read_text())))
    set_up = {program for where, by, _ in blocks_of(root) if where.startswith(readme.name) and by not in (None, "test")
              for program in by.split() if (root / program).exists()}
    for program in sorted(set_up):
        for targets in re.findall(r"scripts/build(?: release)? -- --target (.+)", (root / program).read_text()):
            for name in names:
                if name not in targets.split():
                    yield f"{readme.name}: {program} does not build build/bin/{name}, which is named here"


def problems_of(root):
    yield from problems_of_commands(root)
    yield from problems_of_programs_to_build(root)
    yield from problems_of_programs(root)
    yield from problems_of_links(root)


def make_tiny_model(folder):
    """A Llama of 2 layers with a tokenizer of bytes, as a model folder without weights."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator([], trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    folder.mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    template = ("{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
                "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")
    documents = {
        "tokenizer_config.json": {"eos_token": "<|endoftext|>", "chat_template": template},
        "config.json": {
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 320, "hidden_size": 64,
            "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
            "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
            "tie_word_embeddings": True, "torch_dtype": "bfloat16", "eos_token_id": 0, "bos_token_id": 0,
            "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "initializer_range": 0.02},
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=2))


def make_scratch(binaries, scratch):
    """What the commands find: the programs, a model where the docs have one, and the reader's own files."""
    bare = scratch / "bare-model"
    make_tiny_model(bare)
    (scratch / "build" / "demo").mkdir(parents=True)
    (scratch / "build" / "bin").symlink_to(binaries)
    (scratch / "config.json").write_bytes((bare / "config.json").read_bytes())
    (scratch / "models").mkdir()
    (scratch / "runs").mkdir()
    subprocess.run([binaries / "forebay", "init", f"--config={bare}", f"--out={scratch / 'models' / 'smollm2'}"],
                   check=True)
    (scratch / "build" / "demo" / "model").symlink_to(scratch / "models" / "smollm2")
    text = "".join(f"And it came to pass in the year {year}, that there was a famine in the land.\n"
                   for year in range(60))
    for name in ("book.txt", "held_out.txt", "my-text.txt"):
        (scratch / name).write_text(text)
    chat = [{"role": "user", "content": "Who are you?"}, {"role": "assistant", "content": "A small model."}]
    (scratch / "chat.jsonl").write_text(json.dumps({"messages": chat}) + "\n")


def main():
    job, root = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    problems = list(problems_of(root))
    print("\n".join(problems))
    if problems or job == "list":
        print(f"doc_commands: {len(problems)} problems")
        return 1 if problems else 0
    binaries, scratch = pathlib.Path(sys.argv[3]).resolve(), pathlib.Path(sys.argv[4])
    subprocess.run(["rm", "-rf", str(scratch)], check=True)
    scratch.mkdir(parents=True)
    make_scratch(binaries, scratch)
    environment = {**os.environ, "PATH": f"{binaries}:{os.environ['PATH']}", "XDG_CACHE_HOME": str(scratch / "cache")}
    for where, by, commands in blocks_of(root):
        if by == "test":
            print(f"---- {where}", flush=True)
            if subprocess.run(["bash", "-euxc", commands], cwd=scratch, env=environment,
                              stdin=subprocess.DEVNULL).returncode != 0:
                print(f"doc_commands: the commands at {where} failed")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
