"""Editors show docstrings, and `hookonce guide api` their first lines: each public name has one."""

import re
from collections.abc import Iterator

import pytest

from hookonce.guide.reference import MODULES, Name, public_names, reference


@pytest.mark.parametrize("module", MODULES)
def test_the_docstring_of_every_public_name_begins_with_one_sentence(module: str) -> None:
    wrong = [
        name.path
        for name in public_names(module)
        if not name.summary.rstrip("`)").endswith((".", ":", "…"))
    ]
    assert wrong == []


# In these modules parameters need no description: the interface describes the fields of models, and
# nobody calls a fixture.
NOT_CALLED = {
    "hookonce.events",
    "hookonce.events.openai",
    "hookonce.events.standard",
    "hookonce.resources",
    "hookonce.testing.pytest_plugin",
}
# Users do not call these functions: Django's ``RunPython`` calls them, and passes the parameters.
GIVEN = {"create_table", "drop_table"}


@pytest.mark.parametrize("module", sorted(MODULES.keys() - NOT_CALLED))
def test_every_parameter_is_described(module: str) -> None:
    """The docstring of the function or class names each parameter and describes it."""
    wrong = [
        f"{name.path}({parameter})"
        for name in public_names(module)
        if not name.is_member and name.path not in GIVEN
        for parameter in parameters(name)
        if not re.search(rf"\b{parameter}\b", name.doc)
    ]
    assert wrong == []


def parameters(name: Name) -> Iterator[str]:
    """Yield the names of the parameters in a signature."""
    if not name.signature.startswith("("):
        return
    depth, text = 0, ""
    for character in name.signature.partition(" -> ")[0]:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 1:
            yield from parameter_of(text)
            text = ""
        elif not (character == "(" and depth == 1):
            text += character
    yield from parameter_of(text)


def parameter_of(text: str) -> list[str]:
    return re.findall(r"^\s*([a-z]\w*)", text)


def test_a_class_whose_docstring_says_where_to_get_it_shows_no_constructor() -> None:
    names = {name.path: name for name in public_names("hookonce.receiver")}
    assert names["DeadLetters"].signature == ""
    assert names["Gap"].signature != ""
    assert "Get it from ``Receiver.dead``." in reference()


def test_members_of_a_base_class_and_names_of_another_module_are_listed_once() -> None:
    names = {name.path: name for name in public_names("hookonce")}
    assert names["Receiver"].contracts == ("Router",)
    assert "Receiver.on" not in names
    assert reference().count("    async check() -> Readiness\n") == 1
    assert "    Receiver\n        See hookonce.\n" in reference()
