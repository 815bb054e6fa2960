"""The public names as an object: each documented and typed, and final where it should be."""

from __future__ import annotations

import ast
import inspect
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Protocol

import attrs
import pytest

import trio_skills
import trio_skills.testing

MODULES = (trio_skills, trio_skills.testing)


def exports(module: ModuleType) -> dict[str, object]:
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }


EVERY = [
    pytest.param(value, id=f"{module.__name__}.{name}")
    for module in MODULES
    for name, value in exports(module).items()
]
CLASSES = [param for param in EVERY if inspect.isclass(param.values[0])]


def test_what_the_main_job_needs_is_there() -> None:
    promised = (
        "plan_skills find_skills install Limits open_runtime Report InstallError PlanError Upload "
        "Plan Skill"
    )
    assert set(promised.split()) <= set(exports(trio_skills))


def test_types_ship() -> None:
    assert Path(trio_skills.__file__).with_name("py.typed").exists()


@pytest.mark.parametrize("value", EVERY)
def test_every_export_is_documented(value: object) -> None:
    if inspect.isclass(value) or inspect.isfunction(value):
        assert value.__doc__
        assert not value.__doc__.startswith(value.__name__ + "(")  # what attrs would make


@pytest.mark.parametrize("cls", CLASSES)
def test_every_public_method_is_documented_and_typed(cls: type) -> None:
    for name, method in vars(cls).items():
        function = method.fget if isinstance(method, property) else method
        function = getattr(function, "__func__", function)
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        if function.__module__.startswith("trio_skills"):
            assert function.__doc__, f"{cls.__name__}.{name} has no docstring"
            assert "return" in function.__annotations__, f"{cls.__name__}.{name} is not typed"


@pytest.mark.parametrize("cls", CLASSES)
def test_every_field_is_documented(cls: type) -> None:
    if not attrs.has(cls):
        return
    body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
    assert isinstance(body, ast.ClassDef)
    documented = {
        field.target.id
        for field, doc in zip(body.body, body.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(doc, ast.Expr)
        and isinstance(doc.value, ast.Constant)
    }
    own = [field for field in attrs.fields(cls) if not field.inherited]
    fields = {field.name for field in own if not field.name.startswith("_")}
    assert fields <= documented


@pytest.mark.parametrize("cls", CLASSES)
def test_what_holds_state_is_final(cls: type) -> None:
    """Data is frozen, errors and protocols are for deriving from, and so is the fake sandbox."""
    if attrs.has(cls) or issubclass(cls, BaseException | trio_skills.testing.MemoryRuntime):
        return
    if Protocol in cls.__mro__:
        return
    assert getattr(cls, "__final__", False)


@pytest.mark.parametrize("cls", CLASSES)
def test_data_is_frozen(cls: type) -> None:
    mutable = (trio_skills.testing.Call, trio_skills.testing.Latency)
    if attrs.has(cls) and cls not in mutable:
        assert cls.__setattr__.__name__ == "_frozen_setattrs"
