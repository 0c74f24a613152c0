"""The monitors of a configuration: tensorboard, csv_monitor, wandb and comet. Events have DeepSpeed's names, and the
number of samples so far as their step."""

from __future__ import annotations

import csv
import importlib
import os
from collections.abc import Callable, Iterable
from typing import Any

from forebay.errors import UsageError

Event = tuple[str, float, int]  # name, value, step
Writer = Callable[[Iterable[Event]], None]
_PACKAGES = {"tensorboard": "torch.utils.tensorboard", "wandb": "wandb", "comet": "comet_ml"}


class Monitors:
    """settings: those that are enabled, by their sections. UsageError: the package of one is not installed."""

    def __init__(self, settings: dict[str, dict[str, Any]]) -> None:
        self._writers = [_MAKERS[section](given) for section, given in settings.items()]
        self.is_enabled = bool(self._writers)

    def write_events(self, events: list[Event]) -> None:
        for write in self._writers:
            write(events)


def _package(section: str) -> Any:
    try:
        return importlib.import_module(_PACKAGES[section])
    except ImportError as error:
        name = _PACKAGES[section] if section != "tensorboard" else section
        raise UsageError(f"forebay: {section}.enabled is true, and its Python package cannot be used: {error}. Install "
                         f"it (pip install {name}), or set {section}.enabled to false.") from error


def _folder(settings: dict[str, Any]) -> str:
    folder: str = os.path.join(settings["output_path"], settings["job_name"])
    os.makedirs(folder, exist_ok=True)
    return folder


def _tensorboard(settings: dict[str, Any]) -> Writer:
    writer = _package("tensorboard").SummaryWriter(log_dir=_folder(settings))

    def write(events: Iterable[Event]) -> None:
        for name, value, step in events:
            writer.add_scalar(name, value, step)
        writer.flush()

    return write


def _csv(settings: dict[str, Any]) -> Writer:
    folder, begun = _folder(settings), set()

    def write(events: Iterable[Event]) -> None:
        for name, value, step in events:
            path = os.path.join(folder, name.replace("/", "_").replace(" ", "_") + ".csv")
            with open(path, "a", encoding="utf-8", newline="") as file:
                rows = csv.writer(file)
                if path not in begun:
                    begun.add(path)
                    rows.writerow(["step", name.rsplit("/", 1)[-1]])
                rows.writerow([step, value])

    return write


def _wandb(settings: dict[str, Any]) -> Writer:
    wandb = _package("wandb")
    wandb.init(project=settings["project"], group=settings.get("group"), entity=settings.get("team"))

    def write(events: Iterable[Event]) -> None:
        for name, value, step in events:
            wandb.log({name: value}, step=step)

    return write


def _comet(settings: dict[str, Any]) -> Writer:
    names = ("api_key", "project", "workspace", "experiment_key", "mode", "online")
    experiment = _package("comet").start(**{name: settings.get(name) for name in names})
    if settings.get("experiment_name") is not None:
        experiment.set_name(settings["experiment_name"])
    logged: dict[str, int] = {}  # by name: the step of the last value

    def write(events: Iterable[Event]) -> None:
        for name, value, step in events:
            if name not in logged or step - logged[name] >= settings["samples_log_interval"]:
                logged[name] = step
                experiment.log_metric(name, value, step=step)

    return write


_MAKERS: dict[str, Callable[[dict[str, Any]], Writer]] = {
    "tensorboard": _tensorboard, "csv_monitor": _csv, "wandb": _wandb, "comet": _comet}

__all__ = ["Monitors"]
