"""What a run keeps beside its store: copies of its model's small files, and second copies of its records. A run outlives the
loss of any one of them, and trusts none that is not what its commits were made with."""

import json
import os
import pathlib
import shutil
import struct

import pytest
import xxhash
from conftest import make_model, write_tokenizer

SEQ = 32
SECRET = b"not what was written"


@pytest.fixture(scope="module")
def task(forebay, tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    model = make_model(forebay, folder / "model", rope_theta=20000.0)
    write_tokenizer(model)
    (pathlib.Path(model) / "generation_config.json").write_text('{"eos_token_id": 254}')
    (folder / "d.txt").write_text("Some words of some text. " * 60)
    return dict(model=model, data=folder / "d.txt", batch=2, seq=SEQ, steps=4, lr=1e-3, ram="1GiB", commit_every=1)


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="module")
def whole(forebay, task, tmp_path_factory):
    """The digest and the exported configuration of a run that nothing disturbs."""
    out = tmp_path_factory.mktemp("whole") / "run"
    forebay.run("train", out=out, **task)
    return forebay.digest(out), (out / "model" / "config.json").read_text()


@pytest.fixture
def stopped(forebay, task, tmp_path):
    """A run after step 2 of 4, from a model folder of its own."""
    model = shutil.copytree(task["model"], tmp_path / "model")
    done = forebay.run("train", check=False, out=tmp_path / "run", stop_after=2, **dict(task, model=model))
    assert done.returncode == 75, done.stderr
    return tmp_path / "run"


def config_of(folder):
    return json.loads((folder / "config.json").read_text())


def change(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


# ---- The run's own copies of its model's files

def test_a_run_goes_on_when_its_model_folder_is_gone(forebay, stopped, whole, task, tmp_path):
    shutil.rmtree(tmp_path / "model")
    shutil.rmtree(os.environ["XDG_CACHE_HOME"])  # the text is packed again, by the run's own tokenizer
    exported = tmp_path / "exported"
    forebay.run("export", stopped, out=exported)
    assert {"tokenizer.json", "tokenizer_config.json", "generation_config.json"} < set(os.listdir(exported))
    # The same command as the first, as the message of the stop says.
    done = forebay.run("train", "--resume", out=stopped, **dict(task, model=tmp_path / "model"))
    assert "goes on with its own copies" in done.stderr
    assert forebay.digest(stopped) == whole[0]
    assert (stopped / "model" / "config.json").read_text() == whole[1]
    forebay.run("generate", model=stopped, prompt="Some", max_tokens=2)


@pytest.mark.parametrize("edit", [dict(rope_theta=5.0), dict(num_attention_heads=2, num_key_value_heads=2),
                                  dict(hidden_size=32), dict(num_hidden_layers=2)])
def test_an_edited_model_folder_gets_into_no_export(forebay, stopped, whole, tmp_path, edit):
    change(tmp_path / "model" / "config.json", **edit)
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    forebay.run("export", stopped, out=tmp_path / "exported")
    assert config_of(tmp_path / "exported") == json.loads(whole[1])
    assert forebay.run("inspect", tmp_path / "exported", "--verify").returncode == 0
    forebay.run("train", "--resume", out=stopped)
    assert (stopped / "model" / "config.json").read_text() == whole[1]
    assert forebay.digest(stopped) == whole[0]


def test_a_model_that_a_command_names_must_be_the_runs(forebay, stopped, task, tmp_path):
    settings = dict(task, out=stopped, model=tmp_path / "model")
    before = (tmp_path / "model" / "config.json").read_text()
    change(tmp_path / "model" / "config.json", rope_theta=5.0)
    refused = forebay.run("train", "--resume", check=False, **settings)
    assert refused.returncode == 2 and "the configuration in --model is not the one" in refused.stderr, refused.stderr
    (tmp_path / "model" / "config.json").write_text(before)
    # What changes no result is not refused, and not used.
    (tmp_path / "model" / "generation_config.json").write_text('{"eos_token_id": 1}')
    (tmp_path / "model" / "added_tokens.json").write_text("{}")
    done = forebay.run("train", "--resume", **settings)
    assert "'generation_config.json'" in done.stderr and "not used" in done.stderr
    assert json.loads((stopped / "model" / "generation_config.json").read_text()) == {"eos_token_id": 254}
    assert not (stopped / "model" / "added_tokens.json").exists()


def test_a_damaged_copy_is_taken_from_the_model_folder_or_named(forebay, stopped, whole, tmp_path):
    for name in ("config.json", "tokenizer.json"):
        own = stopped / "files" / name
        for contents in (b"", SECRET, own.read_bytes()[:-1], None):
            before = own.read_bytes()
            own.unlink()
            if contents is not None:
                own.write_bytes(contents)
            refused = forebay.run("export", stopped, check=False, out=tmp_path / "exported")
            assert refused.returncode == 8 and f"'{own}'" in refused.stderr, refused.stderr
            assert not (tmp_path / "exported").exists()
            repaired = json.loads(forebay.run("inspect", stopped, "--repair", "--format=json").stdout)
            assert repaired["written_anew"] == [str(own)]
            assert own.read_bytes() == before
    own.write_bytes(SECRET)
    (tmp_path / "model" / name).write_bytes(SECRET)
    refused = forebay.run("train", "--resume", check=False, out=stopped)
    assert refused.returncode == 8 and f"'{own}'" in refused.stderr and "xxh128sum" in refused.stderr, refused.stderr
    own.write_bytes(before)
    forebay.run("train", "--resume", out=stopped)
    assert forebay.digest(stopped) == whole[0]


def lose(path):
    path.write_bytes(path.read_bytes()[:-1])


def test_a_lost_file_that_a_model_can_do_without_ends_nothing(forebay, stopped, whole, tmp_path):
    shutil.rmtree(tmp_path / "model")
    own = stopped / "files" / "generation_config.json"
    for damage in (lose, pathlib.Path.unlink):
        damage(own)
        exported = tmp_path / damage.__name__
        done = forebay.run("export", stopped, out=exported)
        assert f"'{own}'" in done.stderr and "go without it" in done.stderr, done.stderr
        assert "generation_config.json" not in os.listdir(exported)
        forebay.run("inspect", exported, "--verify")
        repaired = json.loads(forebay.run("inspect", stopped, "--repair", "--format=json").stdout)
        assert f"'{own}'" in repaired["lost"][0] and repaired["written_anew"] == []
    done = forebay.run("train", "--resume", out=stopped)
    assert f"warning: the run's own copy '{own}'" in done.stderr, done.stderr
    assert forebay.digest(stopped) == whole[0]


def test_lost_copies_come_from_the_folder_that_a_resume_names(forebay, stopped, whole, tmp_path):
    shutil.move(tmp_path / "model", tmp_path / "moved")
    own = stopped / "files" / "config.json"
    before = own.read_bytes()
    lose(own)
    damaged = own.read_bytes()
    refused = forebay.run("train", "--resume", out=stopped, check=False)
    assert refused.returncode == 8 and f"'{tmp_path / 'model'}' does not have it" in refused.stderr, refused.stderr
    assert "train --resume --model=FOLDER" in refused.stderr
    done = forebay.run("train", "--resume", "--dry_run", out=stopped, model=tmp_path / "moved")
    assert "would be written anew" in done.stderr and own.read_bytes() == damaged
    done = forebay.run("train", "--resume", out=stopped, model=tmp_path / "moved")
    assert f"'{own}' was not what it was any more" in done.stderr, done.stderr
    assert own.read_bytes() == before and forebay.digest(stopped) == whole[0]


def test_other_weights_in_a_model_that_a_resume_names_can_be_left_out(forebay, stopped, whole, tmp_path):
    weights = tmp_path / "model" / "model.safetensors"
    other = bytearray(weights.read_bytes())
    other[-8:] = bytes(8)
    for contents in (other, other[:100]):
        weights.write_bytes(contents)
        refused = forebay.run("train", "--resume", out=stopped, model=tmp_path / "model", check=False)
        assert refused.returncode in (2, 3, 8) and "leave --model out" in refused.stderr, refused.stderr
    forebay.run("train", "--resume", out=stopped)
    assert forebay.digest(stopped) == whole[0]


def test_a_repair_that_fails_says_what_it_did_to_the_store(forebay, stopped, tmp_path):
    shutil.rmtree(tmp_path / "model")
    lose(stopped / "files" / "config.json")
    with open(stopped / "swap" / "weights.fbs", "r+b") as file:
        file.write(SECRET)
    refused = forebay.run("inspect", stopped, "--repair", check=False)
    assert refused.returncode == 8 and "set back from step 2 to step 1: " in refused.stderr, refused.stderr
    refused = forebay.run("inspect", stopped, "--repair", check=False)
    assert refused.returncode == 8 and "the store is whole, at step 1: " in refused.stderr, refused.stderr


def test_a_run_in_a_folder_named_files_makes_its_parent_no_run(forebay, task, tmp_path):
    forebay.run("train", out=tmp_path / "files", stop_after=1, check=False, **task)
    shown = forebay.run("inspect", tmp_path, check=False)
    assert shown.returncode == 3 and "neither" in shown.stderr, shown.stderr
    assert forebay.run("inspect", tmp_path / "files").returncode == 0


def test_the_weights_must_be_those_of_the_configuration(forebay, task, tmp_path):
    """Of a run without files of its own, as `init --run` makes one."""
    out = tmp_path / "run"
    forebay.run("init", "--run", config=task["model"], out=out)
    change(out / "source" / "config.json", num_attention_heads=2, num_key_value_heads=2)
    for command in (["export", str(out)], ["train", "--resume", f"--out={out}", f"--data={task['data']}"]):
        refused = forebay.run(*command, check=False)
        assert refused.returncode == 8 and "is not the configuration of the run's weights" in refused.stderr, refused.stderr
        assert "self_attn" in refused.stderr
    assert not (out / "exports").exists()


def test_verify_says_when_an_export_is_no_model(forebay, stopped, tmp_path):
    """Files that are what was exported, but do not belong together."""
    model = tmp_path / "exported"
    forebay.run("export", stopped, out=model)
    change(model / "config.json", num_attention_heads=2, num_key_value_heads=2)
    manifest = json.loads((model / "forebay_export.json").read_text())
    for entry in manifest["files"]:
        contents = (model / entry["name"]).read_bytes()
        entry.update(bytes=len(contents), xxh3_128=xxhash.xxh3_128_hexdigest(contents))
    (model / "forebay_export.json").write_text(json.dumps(manifest))
    found = forebay.run("inspect", model, "--verify", check=False)
    assert found.returncode == 8 and "config.json" in found.stdout + found.stderr


def test_a_run_of_random_weights_moves_with_its_model(forebay, task, tmp_path):
    forebay.run("init", "--run", config=task["model"], out=tmp_path / "made")
    moved = (tmp_path / "made").rename(tmp_path / "moved")
    settings = {key: value for key, value in task.items() if key != "model"}
    forebay.run("train", "--resume", out=moved, **settings)
    forebay.run("export", moved, out=tmp_path / "exported")
    assert {"config.json", "tokenizer.json"} <= set(os.listdir(moved / "files"))


# ---- Second copies of the records

DAMAGES = [None, b"", b"{", b"[]", b'{"format": 2}', bytes(4096), b"\xff\xfe"]


@pytest.mark.parametrize("name", ["run.json", "resolved_config.json"])
@pytest.mark.parametrize("which", ["", "files"])
@pytest.mark.parametrize("damage", range(len(DAMAGES)))
def test_a_lost_record_does_not_end_a_run(forebay, stopped, whole, tmp_path, name, which, damage):
    path = stopped / which / name
    text = path.read_text()
    path.unlink()
    if DAMAGES[damage] is not None:
        path.write_bytes(DAMAGES[damage])
    if (name, which) == ("run.json", ""):
        for command in (["inspect"], ["export", f"--out={tmp_path / 'exported'}"]):
            done = forebay.run(command[0], str(stopped), *command[1:])
            assert f"'{stopped}/files/run.json' is used" in done.stdout + done.stderr
        refused = forebay.run("train", check=False, out=stopped, model=tmp_path / "model", data=tmp_path / "model")
        assert refused.returncode == 2 and "holds another run" in refused.stderr, refused.stderr
    repaired = json.loads(forebay.run("inspect", stopped, "--repair", "--format=json").stdout)
    is_readable = name == "resolved_config.json" and DAMAGES[damage] == b'{"format": 2}'
    if not is_readable:  # settings of nothing are settings
        assert repaired["written_anew"] == [str(path)]
        assert json.loads(path.read_text()) == json.loads(text)
    assert json.loads(forebay.run("inspect", stopped, "--repair", "--format=json").stdout)["written_anew"] == []
    # Without a repair too.
    path.unlink()
    done = forebay.run("train", "--resume", out=stopped)
    assert ("is used" in done.stderr) == (which == "")
    assert json.loads(path.read_text()) == json.loads((stopped / ("files" if which == "" else "") / name).read_text())
    assert forebay.digest(stopped) == whole[0]


def test_settings_that_are_lost_twice_are_those_of_run_json(forebay, stopped, whole, task):
    for folder in (stopped, stopped / "files"):
        (folder / "resolved_config.json").unlink()
    refused = forebay.run("train", "--resume", check=False, out=stopped)
    assert refused.returncode == 2 and "--data is required" in refused.stderr, refused.stderr
    done = forebay.run("train", "--resume", out=stopped, data=task["data"])
    assert "say the others again" in done.stderr
    assert forebay.digest(stopped) == whole[0]


def test_a_record_of_another_run_is_not_believed_and_repaired(forebay, stopped, task, whole, tmp_path):
    other = tmp_path / "other"
    forebay.run("train", check=False, out=other, stop_after=1, **dict(task, lr=2e-3))
    mine, theirs = json.loads((stopped / "run.json").read_text()), json.loads((other / "run.json").read_text())
    for changes in (dict(fingerprint=None), dict(fingerprint=theirs["fingerprint"]), dict(fingerprint={}),
                    dict(files=None), dict(files=mine["files"][:-1]), dict(store_uuid=theirs["store_uuid"])):
        (stopped / "run.json").write_text(json.dumps({**mine, **changes}))
        for command in (["train", "--resume", f"--out={stopped}"], ["export", f"--out={tmp_path / 'e'}", str(stopped)]):
            refused = forebay.run(*command, check=False)
            assert refused.returncode == 8, (changes, refused.stderr)
            if "store_uuid" not in changes:
                assert f"'{stopped}/run.json' has other" in refused.stderr, (changes, refused.stderr)
        repaired = json.loads(forebay.run("inspect", stopped, "--repair", "--format=json").stdout)
        assert repaired["written_anew"] == [str(stopped / "run.json")], changes
        assert json.loads((stopped / "run.json").read_text()) == mine
    # Where the copy is no better, nothing is guessed.
    for folder in (stopped, stopped / "files"):
        (folder / "run.json").write_text(json.dumps({**mine, "fingerprint": None}))
    refused = forebay.run("inspect", stopped, "--repair", check=False)
    assert refused.returncode == 8 and "has other settings" in refused.stderr, refused.stderr
    (stopped / "run.json").write_text(json.dumps(mine))
    forebay.run("train", "--resume", out=stopped)
    assert forebay.digest(stopped) == whole[0]


# ---- Nothing that was read is trusted

WRONG = [None, True, 3, -1, 2**63, 2**64, 1e300, 0.5, "x", "", [], {}, [None], {"a": 1}]


def test_each_field_of_a_damaged_run_json_is_named(forebay, stopped):
    mine = json.loads((stopped / "run.json").read_text())
    (stopped / "files" / "run.json").unlink()
    fine = {"fingerprint": [None, {}, {"a": 1}], "files": [None, []], "model": ["x", ""], "stores": []}
    for field in mine:
        for value in WRONG:
            if value is None and mine[field] is None:  # as it is
                continue
            (stopped / "run.json").write_text(json.dumps({**mine, field: value}))
            refused = forebay.run("export", stopped, check=False)
            assert refused.returncode == 8 or field == "model", (field, value, refused.stderr)
            named = f"'{field}'" in refused.stderr or field == "format"
            assert named or value in fine.get(field, []), (field, value, refused.stderr)


TRAINER_AT = 88  # in a commit record


def seal(record):
    record[4088:4096] = struct.pack("<Q", xxhash.xxh3_64_intdigest(bytes(record[:4088])))
    return record


def commit_files(stopped):
    return [path for path in (stopped / "swap").rglob("commit.fbs")]


def write_trainer(stopped, before, change_record):
    """Both copies of the newest record with other contents that are whole."""
    for path in commit_files(stopped):
        data = bytearray(before[path])
        record = data[:4096]
        change_record(record)
        path.write_bytes(seal(record) + data[4096:])


def trainer_of(record):
    (size,) = struct.unpack_from("<I", record, 56)
    return json.loads(bytes(record[TRAINER_AT:TRAINER_AT + size]))


def put_trainer(record, trainer):
    text = json.dumps(trainer).encode()
    record[TRAINER_AT:TRAINER_AT + 3072] = text + bytes(3072 - len(text))
    struct.pack_into("<I", record, 56, len(text))


def test_each_field_of_what_a_commit_carries_is_checked(forebay, stopped, whole):
    before = {path: path.read_bytes() for path in commit_files(stopped)}
    trainer = trainer_of(next(iter(before.values())))
    wrong = {
        "num_steps": [None, "4", 0, 1, -4, 2**63, 1e300, 4.5, [], {}], "rows_per_step": [None, "2", 0, -1, 2**40, 0.5, []],
        "seed": [None, "0", -1, 2**64, 0.5, {}], "settings": [None, 3, "", "x" * 32, "0" * 31, []],
        "files": [None, 3, "", "x" * 32, []], "kernel": [None, 7, 1e300, [], {}],
        "metrics": [3, "x", [], {}, {"step": "2"}, {"step": 2, "loss": "x"}, {"step": 2, "loss": {}}],
        "written_bytes": [None, "1", -1, 2**63, 0.5, []], "updates": [None, -1, 2**63, "x", 3], "loss_scaler": [None, 3, "x", []], "skipped": [None, 3, "x"],
    }
    assert set(trainer) <= set(wrong)
    for field, values in wrong.items():
        for value in values:
            write_trainer(stopped, before, lambda record: put_trainer(record, {**trainer, field: value}))
            for command in (["export", str(stopped)], ["inspect", str(stopped)]):
                refused = forebay.run(*command, check=False)
                assert refused.returncode == 8 and f"'{field}'" in refused.stderr, (field, value, refused.stderr)
    for all_of_it in (None, 3, "x", []):
        write_trainer(stopped, before, lambda record: put_trainer(record, all_of_it))
        refused = forebay.run("train", "--resume", check=False, out=stopped)
        assert refused.returncode == 8 and "'the trainer's state'" in refused.stderr, refused.stderr
    for step in (-1, -2**63, 5, 2**40, 2**63 - 1):
        write_trainer(stopped, before, lambda record: struct.pack_into("<q", record, 40, step))
        refused = forebay.run("train", "--resume", check=False, out=stopped)
        assert refused.returncode == 8, (step, refused.stderr)
    for path, data in before.items():
        path.write_bytes(data)
    forebay.run("train", "--resume", out=stopped)
    assert forebay.digest(stopped) == whole[0]


def test_each_field_of_recorded_settings_is_checked(forebay, stopped, whole):
    """Those that are wrong are not taken: their copy is, or they are named."""
    mine = json.loads((stopped / "resolved_config.json").read_text())
    cases = [("optim", "lr", value) for value in (None, "x", -1, [], {}, True, 1e300)]
    cases += [("data", "batch", value) for value in (None, "x", -1, 0, 2**63, 0.5, [])]
    cases += [("offload", "nvme", value) for value in (3, {}, [3], True)]
    cases += [("data", "data", value) for value in (3, [], {})]
    for section, key, value in cases:
        text = json.dumps({**mine, section: {**mine[section], key: {"value": value, "origin": "flag"}}})
        (stopped / "resolved_config.json").write_text(text)
        done = forebay.run("train", "--resume", "--dry_run", out=stopped)
        assert f"'{section}.{key}' is" in done.stderr and "is used" in done.stderr, (key, value, done.stderr)
    for entry in (3, None, [], {"value": 1}, {"value": 1, "origin": 3}):
        (stopped / "resolved_config.json").write_text(json.dumps({**mine, "optim": {**mine["optim"], "lr": entry}}))
        done = forebay.run("train", "--resume", "--dry_run", out=stopped)
        assert "'optim.lr' is" in done.stderr, (entry, done.stderr)
    forebay.run("train", "--resume", out=stopped)
    assert forebay.digest(stopped) == whole[0]


@pytest.mark.parametrize("name", ["config.json", "generation_config.json"])
@pytest.mark.parametrize("value", [2**64, 2**63, 2**31, -2**63, 1e300, "x", {}, [2**64], [[1]], ["x"]])
def test_a_token_that_ends_a_text_must_be_one(forebay, task, tmp_path, name, value):
    model = shutil.copytree(task["model"], tmp_path / "model")
    path = pathlib.Path(model) / name
    change(path, eos_token_id=value)
    refused = forebay.run("generate", check=False, model=model, prompt="Some", max_tokens=2)
    assert refused.returncode == 3 and "eos_token_id" in refused.stderr and name in refused.stderr, refused.stderr
