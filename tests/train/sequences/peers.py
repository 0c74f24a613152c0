"""Parts of DeepSpeed, imported without the rest of it, whose import compiles things. For the sequences stored here."""

import importlib.machinery
import importlib.util
import json
import logging
import os
import sys
import types

HERE = os.path.dirname(os.path.abspath(__file__))


class StandIn(types.ModuleType):
    """A module in the place of one of DeepSpeed's: classes in it are empty, functions do nothing."""

    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "logger":
            logger = logging.getLogger("deepspeed stand-in")
            logger.setLevel(logging.CRITICAL)
            return logger
        if name == "comm":
            return StandIn("comm")
        return object if name[0].isupper() else lambda *args, **kwargs: None


def deepspeed_folder(arguments=()):
    """The folder of the package: named as an argument or by FOREBAY_DEEPSPEED, or where it is installed; None: nowhere."""
    if arguments:
        return arguments[0]
    if os.environ.get("FOREBAY_DEEPSPEED"):
        return os.environ["FOREBAY_DEEPSPEED"]
    spec = importlib.machinery.PathFinder.find_spec("deepspeed")  # not a stand-in among the modules
    return None if spec is None else os.path.dirname(spec.origin)


def deepspeed_module(path, arguments=()):
    """The module at `path` in the package, alone; None where DeepSpeed is not installed."""
    folder = deepspeed_folder(arguments)
    if folder is None:
        return None
    names = ["deepspeed", "deepspeed.utils", "deepspeed.comm", "deepspeed.runtime", "deepspeed.runtime.utils",
             "deepspeed.runtime.config_utils"]
    kept = {name: sys.modules.get(name) for name in names}
    sys.modules.update({name: StandIn(name) for name in names})
    try:
        name = "alone_" + os.path.basename(path)[:-len(".py")]
        spec = importlib.util.spec_from_file_location(name, os.path.join(folder, path))
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module  # for its dataclasses
        spec.loader.exec_module(module)
        return module
    finally:
        for name, before in kept.items():
            if before is None:
                del sys.modules[name]
            else:
                sys.modules[name] = before


def write(path, items):
    with open(path, "w") as file:
        file.write("[\n" + ",\n".join(json.dumps(item) for item in items) + "\n]\n")


def read(path):
    with open(path) as file:
        return json.load(file)
