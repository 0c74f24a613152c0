"""What --data names: files and folders of them, each with a weight.

"a.jsonl", "a.jsonl:2,b.parquet:0.5" (how often an epoch passes over each), "folder". Which rows the files have is
row_files.py.
"""

import os
import re
import stat
from dataclasses import dataclass, field
from fractions import Fraction

import xxhash

from .errors import BadInputError
from .files import refuse_lfs_pointer
from .packed_file import is_packed

TEXT, ROWS, PARQUET = ".txt", ".jsonl", ".parquet"
SUFFIXES = {".txt": TEXT, ".jsonl": ROWS, ".ndjson": ROWS, ".json": ROWS, ".parquet": PARQUET}
COMPRESSIONS = (".gz", ".zst")
MAX_WEIGHT = 1000
# 2, 0.5 or 1/3.
_WEIGHT = re.compile(r"[0-9.]{1,20}(/[0-9]{1,20})?")
# The purpose of a file, in errors.
DATA_FILE = "--data names .txt, .jsonl, .json or .parquet files, folders of them, or one packed file"
_NAMES_SHOWN = 8
_HUB_NAME = re.compile(r"[\w-]+/[\w.-]+")
# Names of files that hold data in other forms.
_TO_JSON_LINES = "write its rows as JSON lines (with the package 'datasets': load_{}.to_json('data.jsonl'))"
_CURES = {
    **dict.fromkeys((".csv", ".tsv"), _TO_JSON_LINES.format("dataset('csv', data_files='FILE', split='train')")),
    ".arrow": _TO_JSON_LINES.format("from_disk('FOLDER')"),
    **dict.fromkeys((".bz2", ".xz", ".zip", ".tar", ".tgz", ".7z", ".rar"), "unpack it first"),
}
# What 'datasets' and the Hub leave next to data.
_NO_DATA = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}
# Parts of published data that are for testing, by the first word of a file's or folder's name.
_HELD_OUT = {"test", "tests", "testing", "val", "valid", "validation", "dev", "eval", "evaluation"}


@dataclass(frozen=True)
class DataFile:
    path: str
    kind: str               # a value of SUFFIXES
    compression: str = ""   # one of COMPRESSIONS


@dataclass
class Source:
    name: str               # as --data has it, without the weight
    weight: Fraction
    files: list
    notes: list = field(default_factory=list)
    _digest: str = ""

    @property
    def size_bytes(self):
        return sum(os.path.getsize(file.path) for file in self.files)

    @property
    def digest(self):
        """A digest of the contents and kinds of the files in their order, which are read once."""
        if not self._digest:
            hasher = xxhash.xxh3_128()
            for file in self.files:
                hasher.update(f"{file.kind}{file.compression} {_file_digest(file.path)} ".encode())
            self._digest = hasher.hexdigest()
        return self._digest


def find_sources(data):
    """The sources that the text of --data names, looked up; BadInputError with every problem of them."""
    sources, problems = [], []
    items = [data] if os.path.lexists(data) else data.split(",")
    for item in items:
        try:
            path, weight = _path_and_weight(item)
            if is_packed(path):
                raise BadInputError(f"'{path}' is packed already: a packed file is given by itself, without a weight. Give the texts "
                                    "that it was made of")
            sources.append(_source_at(path, weight))
        except BadInputError as error:
            problems.append(str(error))
    if problems:
        raise BadInputError("; ".join(problems))
    return sources


def _path_and_weight(item):
    head, colon, tail = item.rpartition(":")
    if not colon or os.path.lexists(item):
        if not item:
            raise BadInputError("--data has an empty name between its commas: give a path there, or leave the comma out")
        return item, Fraction(1)
    try:
        weight = Fraction(tail) if _WEIGHT.fullmatch(tail) else None
    except (ValueError, ZeroDivisionError):
        weight = None
    if weight is None and not os.path.lexists(head):
        return item, Fraction(1)  # a name with a colon, which does not exist
    if weight is None or not 0 < weight <= MAX_WEIGHT:
        raise BadInputError(f"--data: the weight '{tail}' of '{head}' is no number above 0 and up to {MAX_WEIGHT}: it says how often "
                            "an epoch passes over the file, as in 'chat.jsonl:2,book.txt:0.5'")
    return head, weight


def _source_at(path, weight):
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        hub = (". A data set of the Hugging Face Hub is fetched first: hf download --repo-type=dataset "
               f"{path} --local-dir=FOLDER")
        raise BadInputError(f"'{path}' does not exist: {DATA_FILE}{hub if _HUB_NAME.fullmatch(path) else ''}") from None
    if stat.S_ISDIR(mode):
        return _folder(path, weight)
    if not stat.S_ISREG(mode):
        # It is read twice, and a pipe without a writer would be waited for without a word.
        raise BadInputError(f"'{path}' is no regular file: {DATA_FILE}")
    file = _data_file(path)
    if file is None:
        with open(path, "rb") as unknown:
            refuse_lfs_pointer(path, unknown.read(1024))
        cure = _CURES.get(os.path.splitext(path.lower())[1], "name it after what it holds")
        raise BadInputError(f"'{path}' is neither a packed file, nor named {', '.join(SUFFIXES)} (or one of these with "
                            f"{' or '.join(COMPRESSIONS)} after it): {cure}")
    return Source(path, weight, [file])


def _data_file(path):
    """None: its name does not say what it holds."""
    stem, suffix = os.path.splitext(path.lower())
    compression = suffix if suffix in COMPRESSIONS else ""
    kind = SUFFIXES.get(os.path.splitext(stem)[1] if compression else suffix)
    # Parquet files are compressed within.
    return None if kind is None or (kind == PARQUET and compression) else DataFile(path, kind, compression)


def _folder(folder, weight):
    found, others = [], []
    for here, folders, names in os.walk(folder, onerror=_raise):
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        for name in names:
            path = os.path.join(here, name)
            file = _data_file(path)
            if name.startswith((".", "_")) or name in _NO_DATA or file is None or not os.path.isfile(path):
                others.append(path)
            else:
                found.append(file)
    if not found:
        cures = {cure for path in others if (cure := _CURES.get(os.path.splitext(path)[1]))}
        raise BadInputError(f"'{folder}' is a folder without data: none of its files is named {', '.join(SUFFIXES)}, or one of "
                            f"these with {' or '.join(COMPRESSIONS)} after it"
                            + "".join(f": {cure}" for cure in sorted(cures)[:1]))
    found.sort(key=lambda file: file.path)
    _refuse_held_out(folder, found)
    notes = [f"the folder '{folder}' has {len(found):,} file{'s' * (len(found) > 1)} of data: "
             f"{_some(folder, [file.path for file in found])}"]
    if others:
        notes[0] += f"; no data, and not read: {_some(folder, sorted(others))}"
    return Source(folder, weight, found, notes)


def _raise(error):
    raise error


def _refuse_held_out(folder, files):
    """Published data often comes in parts, and what is for testing is not to be trained on."""
    relative = [os.path.relpath(file.path, folder) for file in files]
    first_words = [{_first_word(part) for part in path.split(os.sep)} for path in relative]
    held_out = [path for path, words in zip(relative, first_words) if words & _HELD_OUT]
    to_train = [path for path, words in zip(relative, first_words) if "train" in words]
    if held_out and to_train:
        raise BadInputError(f"the folder '{folder}' has files to train on and files to test with (such as '{held_out[0]}'): name "
                            f"those to train on, as in --data={os.path.join(folder, to_train[0])}, and give the others as "
                            "--eval_data")


def _first_word(name):
    for separator in "-_.":
        name = name.split(separator, 1)[0]
    return name.lower()


def _some(folder, paths):
    names = ", ".join(f"'{os.path.relpath(path, folder)}'" for path in paths[:_NAMES_SHOWN])
    return names + (f" and {len(paths) - _NAMES_SHOWN:,} more" if len(paths) > _NAMES_SHOWN else "")


def _file_digest(path):
    hasher = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            hasher.update(block)
    return hasher.hexdigest()
