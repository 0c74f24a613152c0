"""`forebay report` of runs that were trained for it: the page as a parser and as a browser see it, CSV, and what
TensorBoard reads."""

import csv
import html.parser
import io
import json
import os
import re
import shutil
import struct
import subprocess
import zlib

import numpy as np
import pytest
from conftest import make_model, random_rows, read_metrics, write_rows

SEQ = 32
STEPS = 4
CHARTS = 5
VOID = {"meta", "link", "br", "hr", "img", "input"}
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def runs(forebay, tmp_path_factory):
    """Two runs that differ in their learning rate; all state of the first is on disk."""
    folder = tmp_path_factory.mktemp("runs")
    model = make_model(forebay, folder / "model")
    tokens, flags = random_rows(16, SEQ, 256, seed=1)
    data = write_rows(folder / "train.packed", tokens, flags, 256)
    shared = dict(model=model, data=data, eval_data=data, eval_every=2, batch=2, steps=STEPS, ram="1GiB", export="none")
    forebay.run("train", out=folder / "one", lr=1e-3, weights_tier="nvme", state_tier="nvme", commit_every=1, **shared)
    forebay.run("train", out=folder / "two", lr=2e-3, **shared)
    return folder / "one", folder / "two"


class Page(html.parser.HTMLParser):
    """Checks that every tag is closed in its order, and collects what charts hold."""

    def __init__(self, text):
        super().__init__()
        self.open, self.figures, self.cells, self.links = [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.links += [attributes[name] for name in ("src", "href", "xlink:href") if name in attributes]
        if tag == "figure":
            self.figures.append({"circle": 0, "bar": 0, "plot": 0, "caption": ""})
        if tag == "circle":
            self.figures[-1]["circle"] += 1
        if attributes.get("class") in ("bar", "plot"):
            self.figures[-1][attributes["class"]] += 1
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, (tag, self.open)

    def handle_data(self, data):
        if self.open and self.open[-1] == "figcaption":
            self.figures[-1]["caption"] += data
        if self.open and self.open[-1] == "td":
            self.cells.append(data)


def test_a_page_has_every_step_of_a_run(forebay, runs):
    done = forebay.run("report", runs[0])
    page = Page((runs[0] / "report.html").read_text(encoding="utf-8"))
    assert [figure["caption"].split(" (")[0] for figure in page.figures] == [
        "Loss", "Speed", "Read per step", "Written per step", "Where the time of a step went"]
    evaluations = 1 + STEPS // 2
    assert [figure["circle"] for figure in page.figures] == [STEPS + evaluations, STEPS, STEPS, STEPS, 0]
    assert page.figures[-1]["bar"] == STEPS and not page.links
    # The text says the same as the page.
    values = [line[31:] for line in done.stdout.splitlines()[1:] if line[31:]]
    assert values == page.cells
    # Nothing that a resume minds.
    forebay.run("inspect", runs[0])


def test_runs_are_side_by_side(forebay, runs, tmp_path):
    out = tmp_path / "both.html"
    forebay.run("report", *runs, out=out)
    page = Page(out.read_text(encoding="utf-8"))
    assert [figure["circle"] for figure in page.figures[1:4]] == [2 * STEPS] * 3
    assert page.figures[-1]["plot"] == 2 and page.figures[-1]["bar"] == 2 * STEPS
    document = json.loads(forebay.run("report", *runs, "--to=text", "--format=json").stdout)
    assert {"flag": "--lr", "values": ["0.001", "0.002"]} in document["differing_settings"]


def test_figures_are_those_of_the_steps(forebay, runs):
    run = json.loads(forebay.run("report", runs[0], "--to=text", "--format=json").stdout)["runs"][0]
    lines = read_metrics(runs[0])
    assert run["last_loss"] == {"step": STEPS, "value": lines[-1]["loss"]}
    # With the making of the swap area, which no line has.
    assert run["written_bytes"] == json.loads((runs[0] / "written.json").read_text())["written_bytes"]
    assert run["written_bytes"] > sum(line["write_bytes"] for line in lines) and run["written_bytes_exact"]
    median = run["median_step"]
    assert median["step_s"] == sorted(line["step_s"] for line in lines)[(STEPS - 1) // 2]
    assert abs(sum(median["parts_s"].values()) - median["step_s"]) < 1e-6 * median["step_s"]
    plan = json.loads((runs[0] / "plan.json").read_text())
    assert run["planned_read_bytes_per_step"] == plan["read_bytes_per_step"]
    assert not run["notes"] and run["num_lines"] == run["num_steps"] == STEPS


def test_csv_has_every_number_of_every_line(forebay, runs):
    rows = list(csv.DictReader(io.StringIO(forebay.run("report", *runs, "--to=csv").stdout)))
    lines = [json.loads(line) for run in runs for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == len(lines) == 2 * (STEPS + 1)
    for row, line in zip(rows, lines):
        flat = {**line, **{f"waits.{cause}": seconds for cause, seconds in line.pop("waits", {}).items()}}
        flat.pop("waits", None)
        assert {name: float(value) for name, value in row.items() if value and name != "run"} == flat


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def records_of(data):
    """The events of a TFRecord file, whose checksums are compared."""
    def unmasked(masked):
        rotated = (masked - 0xA282EAD8) % 2**32
        return (rotated >> 17 | rotated << 15) % 2**32

    while data:
        (length,), (length_crc,) = struct.unpack("<Q", data[:8]), struct.unpack("<I", data[8:12])
        event, (event_crc,) = data[12 : 12 + length], struct.unpack("<I", data[12 + length : 16 + length])
        assert unmasked(length_crc) == crc32c(data[:8]) and unmasked(event_crc) == crc32c(event)
        yield event
        data = data[16 + length :]


def fields_of(message):
    """(number, value) of a protocol buffer's fields."""
    def varint(at):
        value = shift = 0
        while True:
            value |= (message[at] & 127) << shift
            shift += 7
            at += 1
            if message[at - 1] < 128:
                return value, at

    at = 0
    while at < len(message):
        key, at = varint(at)
        size = {1: 8, 5: 4}.get(key & 7)
        if key & 7 == 0:
            value, at = varint(at)
        else:
            if size is None:
                size, at = varint(at)
            value, at = message[at : at + size], at + size
        yield key >> 3, value


def test_tensorboard_reads_every_scalar(forebay, runs, tmp_path):
    forebay.run("report", *runs, "--to=tensorboard", out=tmp_path)
    for run in runs:
        (path,) = (tmp_path / run.name).iterdir()
        version, *events = map(dict, map(fields_of, records_of(path.read_bytes())))
        assert version[3] == b"brain.Event:2"
        scalars = {}
        for event in events:
            for _, value in fields_of(event[5]):
                tag, number = (part for _, part in fields_of(value))
                scalars.setdefault(tag.decode(), {})[event.get(2, 0)] = struct.unpack("<f", number)[0]
        lines = read_metrics(run)
        assert scalars["loss"] == {line["step"]: np.float32(line["loss"]) for line in lines}
        assert scalars["waits/state"] == {line["step"]: np.float32(line["waits"]["state"]) for line in lines}
        assert set(scalars["eval_loss"]) == {0, 2, 4}
        times = [struct.unpack("<d", event[1])[0] for event in events]
        assert times == sorted(times) and abs(times[-1] - os.stat(run / "metrics.jsonl").st_mtime) < 0.01


def test_tensorboard_itself_agrees(forebay, runs, tmp_path):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    forebay.run("report", runs[0], "--to=tensorboard", out=tmp_path)
    accumulator = accumulators.EventAccumulator(str(tmp_path / runs[0].name))
    accumulator.Reload()
    losses = [(event.step, event.value) for event in accumulator.Scalars("loss")]
    assert losses == [(line["step"], np.float32(line["loss"])) for line in read_metrics(runs[0])]


def test_what_is_no_run_or_cannot_be_written_is_an_error(forebay, runs, tmp_path):
    assert forebay.run("report", tmp_path, check=False).returncode == 3
    assert forebay.run("report", runs[0], runs[0], check=False).returncode == 2
    assert forebay.run("report", runs[0], "--to=text", check=False, out=tmp_path / "x").returncode == 2
    assert forebay.run("report", runs[0], "--to=csv", "--format=json", check=False).returncode == 2
    refused = forebay.run("report", runs[0], check=False, out="/proc/none/report.html")
    assert refused.returncode == 5 and "--out=PATH" in refused.stderr


# ---- In a browser

def browse(page, folder, *arguments, dark=False):
    """Standard output of a headless browser that shows the page, and what it logged."""
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr",
               f"--user-data-dir={folder / 'profile'}", "--window-size=900,1100", "--virtual-time-budget=2000",
               f"--blink-settings=preferredColorScheme={0 if dark else 1}", *arguments, page.as_uri()]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def pixels_of(path):
    """[height, width, channels] of a PNG file of 8 bits a channel."""
    data, at, packed = path.read_bytes(), 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", body[:10])
            channels = {2: 3, 6: 4}[colour]
            assert depth == 8
        packed += body if kind == b"IDAT" else b""
        at += 12 + length
    rows = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(height, 1 + width * channels)
    pixels = np.zeros((height, width * channels), np.uint8)
    above = np.zeros(width * channels, np.uint8)
    for number, (kind, *_) in enumerate(rows):
        pixels[number] = above = unfiltered(kind, rows[number, 1:], above, channels)
    return pixels.reshape(height, width, channels)


def unfiltered(kind, row, above, channels):
    """A row of a PNG file without its filter, as the format's specification has them."""
    if kind == 0:
        return row
    if kind == 1:
        return np.cumsum(row.reshape(-1, channels), axis=0, dtype=np.uint8).reshape(-1)
    if kind == 2:
        return row + above
    values, up = [int(value) for value in row], [int(value) for value in above]
    for i, value in enumerate(values):
        a, c = (values[i - channels], up[i - channels]) if i >= channels else (0, 0)
        b = up[i]
        if kind == 3:
            predicted = (a + b) // 2
        else:
            predicted = min((abs(b - c), 0, a), (abs(a - c), 1, b), (abs(a + b - 2 * c), 2, c))[2]
        values[i] = (value + predicted) % 256
    return np.array(values, np.uint8)


@pytest.mark.skipif(BROWSER is None, reason="no browser: apt-get install chromium")
def test_a_browser_shows_the_page_in_light_and_dark(forebay, runs, tmp_path):
    out = tmp_path / "report.html"
    forebay.run("report", *runs, out=out)
    shots = []
    for dark in (False, True):
        shot = tmp_path / f"shot{dark}.png"
        _, log = browse(out, tmp_path, f"--screenshot={shot}", dark=dark)
        assert "CONSOLE" not in log, log
        shots.append(pixels_of(shot)[..., :3].astype(int))
    light, dark = shots
    assert light[5, 5].min() > 200 and dark[5, 5].max() < 60
    for shot in shots:  # much of it is not the background
        assert (np.abs(shot - shot[5, 5]).max(axis=2) > 8).mean() > 0.2


@pytest.mark.skipif(BROWSER is None, reason="no browser: apt-get install chromium")
def test_in_a_browser_charts_have_a_size_and_nothing_overlaps(forebay, runs, tmp_path):
    forebay.run("report", *runs, out=tmp_path / "report.html")
    # The page forbids scripts; a copy of it measures itself.
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    text = re.sub('<meta http-equiv="Content-Security-Policy"[^>]*>', "", text)
    script = """<script>
      const box = e => { const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
      const found = [...document.querySelectorAll('svg.plot')].map(
        svg => ({plot: box(svg), labels: [...svg.querySelectorAll('text')].map(box)}));
      document.body.innerHTML = '<pre id=found>' + JSON.stringify(found) + '</pre>';
    </script></body>"""
    (tmp_path / "measured.html").write_text(text.replace("</body>", script), encoding="utf-8")
    shown, _ = browse(tmp_path / "measured.html", tmp_path, "--dump-dom")
    charts = json.loads(re.search("<pre id=.found.>(.*?)</pre>", shown)[1])
    assert len(charts) == CHARTS + 1  # a panel for each run in the last one
    for chart in charts:
        left, top, right, bottom = chart["plot"]
        assert right - left > 300 and bottom - top > 100
        for number, one in enumerate(chart["labels"]):
            inside = left <= one[0] and one[2] <= right + 1 and top <= one[1] and one[3] <= bottom + 1
            assert inside, (chart["plot"], one)
            for other in chart["labels"][number + 1 :]:
                apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
                assert apart, (one, other)
