"""Runs the real `forebay` binary: exit codes, messages and documents of commands that need no tokenizer.

Usage: cli_test.py FOREBAY. Standard library only.
"""

import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import unittest

FOREBAY = ""

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
}


class CliTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="forebay-cli-")
        self.addCleanup(self.folder.cleanup)

    def path(self, *names):
        return os.path.join(self.folder.name, *names)

    def run_forebay(self, *args, expect=0):
        result = subprocess.run(
            [FOREBAY, *args], capture_output=True, text=True, cwd=self.folder.name, timeout=120,
            env={**os.environ, "HOME": self.folder.name, "XDG_CACHE_HOME": self.path("cache")},
        )
        self.assertEqual(result.returncode, expect, f"{args}\n{result.stdout}\n{result.stderr}")
        return result

    def write(self, name, text):
        os.makedirs(os.path.dirname(self.path(name)), exist_ok=True)
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)

    def make_model(self, name="model", **changes):
        self.write("config.json", json.dumps({**CONFIG, **changes}))
        self.run_forebay("init", "--config=config.json", f"--out={name}", "--seed=3")
        return self.path(name)


class Results(CliTest):
    def test_results_that_cannot_be_written_are_an_error(self):
        self.make_model(num_hidden_layers=60)
        # In stdout's buffer, and longer than that.
        for arguments in (["inspect", "model"], ["inspect", "model", "--tensors"], ["help"]):
            with open("/dev/full", "w", encoding="utf-8") as full:
                done = subprocess.run(
                    [FOREBAY, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, cwd=self.folder.name, timeout=120
                )
            self.assertEqual(done.returncode, 5, f"{arguments}: {done.stderr}")
            self.assertIn("could not all be written to stdout", done.stderr)
            if "--tensors" not in arguments:  # whose first part failed long before the end
                self.assertIn("ENOSPC", done.stderr)

    def test_errors_that_nobody_hears_change_nothing(self):
        self.make_model()
        for arguments, code in ((["inspect", "model"], 0), (["inspect", "nowhere"], 3), (["train"], 2)):
            for stderr in ("/dev/full", None):
                with open(stderr or os.devnull, "w", encoding="utf-8") as full:
                    done = subprocess.run(
                        [FOREBAY, *arguments], stdout=subprocess.DEVNULL, stderr=full, cwd=self.folder.name, timeout=120,
                        preexec_fn=None if stderr else lambda: os.close(2),
                    )
                self.assertEqual(done.returncode, code, f"{arguments} {stderr}")
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run([FOREBAY, "help"], stdout=full, stderr=full, timeout=120)
        self.assertEqual(done.returncode, 5)

    def test_a_document_is_one_line(self):
        self.make_model()
        for arguments in (["inspect", "model", "--tensors"], ["plan", "--model=model", "--ram=1GiB", "--seq=64"]):
            text = self.run_forebay(*arguments, "--format=json").stdout
            self.assertEqual(text.count("\n"), 1, text)

    def test_help_says_how_the_command_is_called_and_what_it_must_have(self):
        train = self.run_forebay("train", "--help").stdout
        plan = self.run_forebay("plan", "--help").stdout
        self.assertIn("Usage: forebay train [OPTIONS]", train)
        self.assertIn("--data PATH", plan)
        self.assertEqual(train.count("(required)"), 3)
        self.assertEqual(plan.count("(required)"), 1)
        for text in (train, plan):
            self.assertNotIn("(default: )", text)
            self.assertNotIn("default: required", text)


class InitAndInspect(CliTest):
    def test_model_folder_has_the_tensors_of_its_config(self):
        self.make_model()
        document = json.loads(self.run_forebay("inspect", "model", "--tensors", "--format=json").stdout)
        self.assertEqual(document["kind"], "model")
        self.assertEqual(document["architecture"], "LlamaForCausalLM")
        self.assertEqual(document["dtypes"], {"BF16": 1 + 9 * 3 + 1})
        self.assertEqual(document["bytes"], 2 * document["params"])
        embedding = [t for t in document["tensors"] if t["name"] == "model.embed_tokens.weight"][0]
        self.assertEqual(embedding["shape"], [256, 64])

    def test_the_same_seed_gives_the_same_digest(self):
        self.make_model("a")
        self.make_model("b")
        self.run_forebay("init", "--config=config.json", "--out=c", "--seed=4")
        digests = [
            json.loads(self.run_forebay("inspect", name, "--hash", "--format=json").stdout)["digest"]
            for name in ("a", "b", "c")
        ]
        self.assertRegex(digests[0], "^[0-9a-f]{32}$")
        self.assertEqual(digests[0], digests[1])
        self.assertNotEqual(digests[0], digests[2])

    def test_a_run_is_inspected_and_cleaned(self):
        self.write("config.json", json.dumps(CONFIG))
        self.run_forebay("init", "--config=config.json", "--out=run", "--run")
        document = json.loads(self.run_forebay("inspect", "run", "--hash", "--format=json").stdout)
        self.assertEqual((document["kind"], document["step"], document["layout"]), ("run", 0, "bf16"))
        freed = json.loads(self.run_forebay("clean", "run", "--format=json").stdout)["freed_bytes"]
        self.assertGreaterEqual(freed, 24 * document["params"])
        self.assertFalse(os.path.exists(self.path("run", "swap")))
        self.assertIn("forebay clean", self.run_forebay("inspect", "run", expect=3).stderr)

    def test_a_store_of_another_program_is_inspected_and_repaired(self):
        """The store of a run is one, if only its own folder is named."""
        self.write("config.json", json.dumps(CONFIG))
        self.run_forebay("init", "--config=config.json", "--out=run", "--run")
        store = self.path("run", "swap")
        document = json.loads(self.run_forebay("inspect", "run/swap", "--verify", "--tensors", "--format=json").stdout)
        self.assertEqual((document["kind"], document["step"]), ("store", 0))
        self.assertEqual(document["verified"]["damaged"], [])
        self.assertEqual(len(document["tensors"]), document["num_tensors"])
        self.run_forebay("inspect", "run/swap", "--hash", expect=2)
        for name in ("commit.fbs", os.path.join("copy", "commit.fbs")):
            with open(os.path.join(store, name), "r+b") as file:
                file.write(bytes(4096))
        self.assertIn("--repair", self.run_forebay("inspect", "run/swap", expect=8).stderr)
        self.assertIn("step 0", self.run_forebay("inspect", "run/swap", "--repair").stdout)
        self.assertIn("all of it is what was written", self.run_forebay("inspect", "run/swap", "--verify").stdout)

    def test_models_obey_the_umask(self):
        old_mask = os.umask(0o027)
        try:
            self.make_model()
        finally:
            os.umask(old_mask)
        self.assertEqual(os.stat(self.path("model")).st_mode & 0o777, 0o750)
        for name in os.listdir(self.path("model")):
            self.assertEqual(os.stat(self.path("model", name)).st_mode & 0o777, 0o640, name)

    def test_an_occupied_folder_is_left_alone(self):
        self.make_model()
        before = os.listdir(self.path("model"))
        self.assertIn("not empty", self.run_forebay("init", "--config=config.json", "--out=model", expect=2).stderr)
        self.assertEqual(os.listdir(self.path("model")), before)

    def test_unsupported_and_malformed_configs_are_bad_input(self):
        for text, words in [
            ('{"architectures": ["BertModel"]}', "LlamaForCausalLM"),
            ("{", "config.json"),
            (json.dumps({**CONFIG, "hidden_size": -1}), "hidden_size"),
        ]:
            self.write("config.json", text)
            result = self.run_forebay("init", "--config=config.json", "--out=never", expect=3)
            self.assertIn(words, result.stderr)
            self.assertFalse(os.path.exists(self.path("never")))

    def test_neither_model_nor_run(self):
        os.mkdir(self.path("empty"))
        self.assertIn("neither a model folder", self.run_forebay("inspect", "empty", expect=3).stderr)
        missing = self.run_forebay("inspect", "missing", expect=3).stderr
        self.assertIn("'missing' does not exist. Name a run folder (--out of train), a model folder, or the folder of a store", missing)
        self.assertIn("not a run folder", self.run_forebay("clean", "empty", expect=3).stderr)

    def test_damaged_weights_are_named(self):
        model = self.make_model()
        weights = os.path.join(model, "model.safetensors")
        with open(weights, "r+b") as file:
            file.truncate(os.path.getsize(weights) - 100)
        self.assertIn("model.safetensors", self.run_forebay("inspect", "model", expect=3).stderr)
        with open(weights, "wb") as file:
            file.write(struct.pack("<Q", 1 << 60) + b"{}")
        self.assertIn("model.safetensors", self.run_forebay("inspect", "model", expect=3).stderr)


class PlanAndTrain(CliTest):
    def test_a_plan_that_fits(self):
        self.make_model()
        args = ["model", "--ram=1GiB", "--batch=2", "--seq=64", "--state_tier=nvme", "--weights-tier=nvme"]
        plan = json.loads(self.run_forebay("plan", *args, "--format=json").stdout)
        self.assertEqual(plan["ram_budget_bytes"], 1 << 30)
        self.assertEqual(plan["tokens_per_step"], 128)
        self.assertEqual(sum(t["host_bytes"] for t in plan["terms"]), plan["host_bytes"])
        self.assertIn("verdict    fits", self.run_forebay("plan", *args).stdout)

    def test_a_plan_that_does_not_fit_says_what_would(self):
        self.make_model()
        result = self.run_forebay("plan", "model", "--ram=8MiB", "--seq=64", "--format=json", expect=4)
        error = json.loads(result.stdout)["error"]
        self.assertEqual(error["exit_code"], 4)
        least = re.search(r"The least that works is --ram=(\d+MiB)", error["message"]).group(1)
        self.run_forebay("plan", "model", f"--ram={least}", "--seq=64")

    def test_rows_longer_than_the_model_are_refused(self):
        self.make_model()
        result = self.run_forebay("plan", "model", "--ram=1GiB", "--seq=129", expect=2)
        self.assertIn("--seq=129 is more than the 128 positions", result.stderr)

    def test_all_mistakes_are_reported_at_once_and_nothing_is_written(self):
        self.write("c.json", '{"optim": {"lr": "x"}, "optin": {}}  // why not')
        result = self.run_forebay(
            "train", "--config=c.json", "--bacth=3", "--steps=2", "--epochs=2", "--out=run", expect=2
        )
        for words in ("optim.lr", "'optin'", "--bacth=3", "--steps and --epochs", "--model is required"):
            self.assertIn(words, result.stderr)
        self.assertFalse(os.path.exists(self.path("run")))

    def test_an_occupied_out_is_left_alone(self):
        self.make_model()
        self.write("out/precious", "x")
        self.write("text.txt", "words\n")
        result = subprocess.run(
            [FOREBAY, "train", "--model=model", "--data=text.txt", "--out=out", "--ram=512M", "--seq=64"],
            capture_output=True, text=True, cwd=self.folder.name, timeout=120,
        )
        self.assertNotEqual(result.returncode, 0)
        self.assertEqual(os.listdir(self.path("out")), ["precious"])

    def test_a_missing_model_is_bad_input(self):
        result = self.run_forebay("train", "--model=nowhere", "--data=d", "--out=o", "--ram=512M", expect=3)
        self.assertIn("nowhere", result.stderr)
        self.assertFalse(os.path.exists(self.path("o")))


class Doctor(CliTest):
    def test_a_failing_check_is_exit_code_9_and_one_document(self):
        done = self.run_forebay("doctor", "--json", "--dir=.", "--dir=nowhere", expect=9)
        report = json.loads(done.stdout)
        self.assertEqual((report["schema"], report["verdict"]), (1, "fail"))
        verdicts = {(check["of"], check["id"]): check["verdict"] for check in report["checks"]}
        self.assertEqual(verdicts["nowhere", "folder"], "fail")
        self.assertIn((".", "engine"), verdicts)
        self.assertIn("not fit for training", done.stderr)
        self.assertEqual(os.listdir(self.folder.name), [])

    def test_it_says_the_same_in_text(self):
        done = self.run_forebay("doctor", "--dir=nowhere", expect=9)
        self.assertRegex(done.stdout, r"disk nowhere\n  fail folder +cannot be used\n       fix: It is no folder")
        self.assertRegex(done.stdout, r"\n\d+ ok, \d+ warn, \d+ fail\n$")


if __name__ == "__main__":
    FOREBAY = os.path.abspath(sys.argv[1])
    unittest.main(argv=sys.argv[:1] + sys.argv[2:])
