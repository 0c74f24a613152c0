"""Whatever the package offers says what it is; where buffers or tensors come or go, of which size; and its own errors."""

import ast
import importlib
import inspect
import re
import textwrap

import pytest

PACKAGES = ["forebay", "forebay.errors", "forebay.inventory", "forebay.io", "forebay.kernels", "forebay.layers", "forebay.lease",
            "forebay.tensors", "forebay.torch", "forebay.hf", "forebay.deepspeed", "forebay.deepspeed.comm",
            "forebay.deepspeed.zero", "forebay.deepspeed_ops"]
SAYS_A_SIZE = re.compile(r"\[|shape|element|row-major|\bbytes\b|\ball of\b|as many|flat|0-dim|scalar|sizes?\b", re.IGNORECASE)


def is_ours(thing):
    return getattr(thing, "__module__", "").split(".")[0] == "forebay"


def members_of(owner, name):
    """(name, function or class) of a class of ours and of what it defines itself."""
    yield name, owner
    for key, member in vars(owner).items():
        if key.startswith("_"):
            continue
        function = inspect.unwrap(member.fget if isinstance(member, property) else getattr(member, "__func__", member))
        if inspect.isfunction(function) and is_ours(function):
            yield f"{name}.{key}", function


def public_things(package):
    module = importlib.import_module(package)
    names = getattr(module, "__all__", None) or [name for name in vars(module) if not name.startswith("_")]
    for name in names:
        thing = getattr(module, name)
        if inspect.isclass(thing) and is_ours(thing):
            yield from members_of(thing, f"{package}.{name}")
        elif inspect.isfunction(thing) and is_ours(thing):
            yield f"{package}.{name}", thing


def doc_of(thing):
    """Its own; a class may leave it to its __init__."""
    return thing.__doc__ or (inspect.isclass(thing) and thing.__init__.__doc__) or ""


def overrides(thing):
    """Whether it is a method that torch or Python documents, or whose class in forebay does."""
    owner = getattr(inspect.getmodule(thing), thing.__qualname__.split(".")[0], None)
    return inspect.isclass(owner) and any(thing.__name__ in vars(base) for base in owner.__mro__[1:])


def errors_raised_by(function):
    """The names of the errors of ours that its own lines raise."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    calls = [node.exc for node in ast.walk(tree) if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call)]
    names = {call.func.id for call in calls if isinstance(call.func, ast.Name)}
    errors = importlib.import_module("forebay.errors")
    return {name for name in names if hasattr(errors, name)}


def takes_memory(function):
    """Whether tensors or buffers come or go: not one that says which parameter is meant."""
    return any("Tensor" in str(annotation) or "Buffer" in str(annotation)
               for name, annotation in inspect.get_annotations(function).items() if name != "parameter")


@pytest.mark.parametrize("package", PACKAGES)
def test_everything_public_is_documented(package):
    things = [(name, thing) for name, thing in public_things(package)
              if doc_of(thing) or inspect.isclass(thing) or not overrides(thing)]
    assert things
    missing = [name for name, thing in things if not doc_of(thing).strip()]
    functions = [(name, thing) for name, thing in things if inspect.isfunction(thing) and doc_of(thing)]
    without_size = [name for name, function in functions if takes_memory(function) and not SAYS_A_SIZE.search(doc_of(function))]
    without_error = [f"{name}: {error}" for name, function in functions for error in errors_raised_by(function)
                     if error not in doc_of(function)]
    assert (missing, without_size, without_error) == ([], [], [])
