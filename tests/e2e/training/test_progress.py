"""What takes long says on a terminal how far it is, and how long it still takes; stdout stays what it is."""

import json
import os
import pathlib
import pty
import re
import signal
import subprocess
import threading

import pytest
from confined import in_group
from conftest import make_model, random_rows, write_rows, write_tokenizer
from option_flags import flag_of

RUN = dict(batch=1, seq=32, threads=1, ram="1GiB", export="none")


class OnTerminal:
    """A program whose stderr is a terminal, and all that it writes there."""

    def __init__(self, command, **options):
        own, its = pty.openpty()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=its, text=True, **options)
        os.close(its)
        self._lines = []
        self._reader = threading.Thread(target=self._read, args=(own,))
        self._reader.start()

    def _read(self, terminal):
        with open(terminal, "rb", buffering=0) as file:
            while True:
                try:
                    self._lines.append(file.read(1 << 16))
                except OSError:  # nobody has the other end any more
                    return

    def finish(self):
        """(exit code, stdout, what the terminal was told)."""
        output, _ = self.process.communicate(timeout=120)
        self._reader.join()
        return self.process.returncode, output, b"".join(self._lines).decode()


def told(command):
    code, output, terminal = OnTerminal(command).finish()
    assert code == 0, terminal
    return output, terminal


@pytest.fixture(scope="module")
def model(forebay, tmp_path_factory):
    folder = make_model(forebay, tmp_path_factory.mktemp("model") / "model", hidden_size=512, num_hidden_layers=6,
                        max_position_embeddings=4096)
    write_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def train(forebay, model, tmp_path_factory):
    data = write_rows(tmp_path_factory.mktemp("data") / "data.fbd", *random_rows(64, 32, 256, seed=1), 256)
    flags = [flag_of(key, value) for key, value in (RUN | dict(model=model, data=data)).items()]
    return [forebay.binary, "train", *flags]


def test_a_digest(forebay, model, train, tmp_path):
    subprocess.run([*train, f"--out={tmp_path / 'run'}", "--steps=1"], check=True, capture_output=True)
    for folder in (model, tmp_path / "run"):
        output, terminal = told([forebay.binary, "inspect", str(folder), "--hash", "--format=json"])
        assert json.loads(output)["digest"] == forebay.digest(folder)
        percents = [int(percent) for percent in re.findall(r"hashing \[=* *\] +(\d+)%", terminal)]
        assert percents and percents == sorted(percents) and percents[-1] <= 100


@pytest.fixture(scope="module")
def generate(forebay, model):
    return [forebay.binary, "generate", f"--model={model}", "--prompt=and it", "--ram=1GiB"]


@pytest.mark.parametrize("flags", [["--format=json"], []])
def test_one_answer(generate, flags):
    """The text alone would be seen to grow, were it not sent elsewhere."""
    command = [*generate, "--max_tokens=600"]  # longer than a line on a terminal stays the same
    expected = json.loads(subprocess.run([*command, "--format=json"], check=True, capture_output=True).stdout)
    output, terminal = told([*command, *flags])
    assert (json.loads(output)["text"] if flags else output[:-1]) == expected["text"]
    assert re.search(r"reading the prompt \[ +\]   0%.*generating, \d+ tokens \[", terminal, re.DOTALL), terminal


def test_text_on_the_same_terminal_is_not_interrupted(generate):
    command = [*generate, "--temperature=1", "--max_tokens=40"]
    own, its = pty.openpty()
    subprocess.run(command, check=True, stdout=its, stderr=its)
    os.close(its)
    written = os.read(own, 1 << 16).decode()
    os.close(own)
    text = subprocess.run(command, check=True, capture_output=True).stdout.decode()
    assert text.strip() and text.strip() in written.replace("\r\n", "\n")


def throttle(folder, bytes_per_second):
    """Slows the writes of the group down that in_group has made."""
    device = f"{os.major(os.stat(folder).st_dev)}:{os.minor(os.stat(folder).st_dev)}"
    group = f"forebay-test-{os.getpid()}"
    files = {pathlib.Path(f"/sys/fs/cgroup/blkio/{group}/blkio.throttle.write_bps_device"): f"{device} {bytes_per_second}",
             pathlib.Path(f"/sys/fs/cgroup/{group}/io.max"): f"{device} wbps={bytes_per_second}"}
    for path, text in files.items():
        if path.exists():
            try:
                path.write_text(text)
            except OSError as error:
                pytest.skip(f"the disk of {folder} cannot be slowed down by a control group: {error}")
            return
    pytest.skip("there is no control group for the speed of a disk")


def is_in_ram(folder):
    command = ["stat", "--file-system", "--format=%T", str(folder)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() in ("tmpfs", "ramfs")


def test_saving_what_lies_in_ram(forebay, train, tmp_path):
    """The disk takes 12 MB a second, so that the state and weights of 6 M parameters take some seven seconds."""
    if is_in_ram(tmp_path):
        pytest.skip(f"{tmp_path} is in RAM, and no disk is slow")
    with in_group("blkio", v1={}, v2={}) as enter:
        run = OnTerminal([*train, f"--out={tmp_path / 'run'}", "--steps=100000", "--commit_every=100000"], preexec_fn=enter)
        assert any(line.startswith("step 2/") for line in run.process.stdout)
        throttle(tmp_path, 12_000_000)
        run.process.send_signal(signal.SIGINT)
        code, _, terminal = run.finish()
    assert code == 75, terminal
    assert re.search(r"saving \[=+ *\] +\d+%, \S+ s left", terminal), terminal
