"""A shell is offered receivers, stores, and the ids that are in them; by click's own protocol."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete

from hookonce.cli.commands import cli
from hookonce.stores.sqlite import SQLiteStore
from hookonce.stores.values import Delivery, Stored, Token

from .letters import APP, COMMENT, ELSEWHERE, MESSAGE, bury
from .running import COMMAND, PATIENCE_SECONDS

SHOP = '''
"""Every way to name receivers, in a module that must not run for a look at it."""
from fastapi import FastAPI
from hookonce import Receiver

receiver: Receiver = Receiver(secrets=[])
receivers = {name: Receiver(secrets=[], endpoint=name) for name in ("a", "b")}
app = FastAPI()
limit = 5
open("it was imported", "w")


def create_app():
    return app


def handle(event): ...
'''


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a folder with modules, one of them in a package."""
    (tmp_path / "hooks.py").write_text(APP)
    (tmp_path / "broken.py").write_text("receiver = Receiver(")
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").write_text("")
    (tmp_path / "shop" / "web.py").write_text(SHOP)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_it.py").write_text("receiver = Receiver()")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "hooks", raising=False)
    for name in ("HOOKONCE_STORE", "HOOKONCE_SECRETS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def offered(*words: str) -> list[str]:
    """Return what is offered for the last word, which is being typed."""
    shell = ShellComplete(cli, {}, "hookonce", "_HOOKONCE_COMPLETE")
    return [item.value for item in shell.get_completions(list(words[:-1]), words[-1])]


WEB = ["shop.web:receiver", "shop.web:receivers", "shop.web:app"]


@pytest.mark.parametrize(
    "words",
    [
        ["serve"],
        ["worker"],
        ["chaos"],
        ["doctor"],
        ["reconcile"],
        ["dead", "replay"],
        ["dead", "list"],
        ["dead", "show"],
        ["inbox", "stats"],
        ["serve", "--port", "9000"],
    ],
)
def test_receivers_of_modules_here_are_offered(words: list[str], here: Path) -> None:
    assert offered(*words, "") == ["hooks:receiver", *WEB]
    assert offered(*words, "sh") == offered(*words, "shop.web:") == WEB
    assert offered(*words, "shop.web:receivers") == ["shop.web:receivers"]
    assert offered(*words, "nowhere") == []
    assert not (here / "it was imported").exists()


@pytest.mark.usefixtures("here")
def test_with_factory_functions_are_offered() -> None:
    assert offered("serve", "--factory", "shop") == ["shop.web:create_app"]


def test_files_of_stores_are_offered_where_a_store_is_named(here: Path) -> None:
    bury(here, COMMENT)
    assert offered("dead", "list", "sql") == ["sqlite:///hookonce.db"]
    assert offered("dead", "list", "")[0] == "sqlite:///hookonce.db"
    assert offered("dead", "list", "sqlite:///hookonce.db", "") == []  # it takes no ids


@pytest.mark.parametrize("command", ["show", "discard"])
@pytest.mark.parametrize("store", ["sqlite:///hookonce.db", "hooks:receiver"])
def test_ids_of_dead_letters_are_offered(command: str, store: str, here: Path) -> None:
    bury(here, COMMENT, MESSAGE, ELSEWHERE)
    assert offered("dead", command, store, "") == ["evt_comment", "evt_message", "evt_elsewhere"]
    assert offered("dead", command, store, "evt_m") == ["evt_message"]
    assert offered("dead", command, store, "evt_message", "evt_m") == []


def test_ids_for_a_replay_are_offered(here: Path) -> None:
    bury(here, COMMENT, MESSAGE)
    assert offered("dead", "replay", "hooks:receiver", "evt_c") == ["evt_comment"]
    assert offered("dead", "replay", "hooks:receiver", "evt_comment", "") == ["evt_message"]


@pytest.mark.parametrize("command", ["show", "retry"])
def test_ids_of_the_inbox_are_offered(command: str, here: Path) -> None:
    async def put() -> None:
        store = SQLiteStore(here / "hookonce.db")
        for number in range(3):
            delivery = Delivery("default", f"evt_{number}", "a.b", 1e9, b"{}")
            assert await store.put(delivery, Token(str(number))) == Stored()
        await store.aclose()

    asyncio.run(put())
    store = "sqlite:///hookonce.db"
    assert offered("inbox", command, store, "") == ["evt_0", "evt_1", "evt_2"]
    assert offered("inbox", command, store, "evt_2") == ["evt_2"]


def test_a_store_in_a_file_or_in_the_environment_needs_no_word(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = bury(here, COMMENT)
    (here / "store").write_text(url)
    assert offered("dead", "show", "--store-file", "store", "evt") == ["evt_comment"]
    monkeypatch.setenv("HOOKONCE_STORE", url)
    assert offered("dead", "show", "evt") == ["evt_comment"]


@pytest.mark.parametrize(
    "store",
    ["sqlite:///missing.db", "mysql://", "nowhere:receiver", "broken:receiver", "memory://"],
)
def test_what_cannot_be_read_offers_nothing_and_says_nothing(
    store: str, here: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert offered("dead", "show", store, "") == []
    assert capfd.readouterr() == ("", "")
    assert not (here / "missing.db").exists()


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("shell", "expected"),
    [
        ("bash", "plain,evt_comment\n"),
        ("zsh", "plain\nevt_comment\n_\n"),
        ("fish", "plain,evt_comment"),
    ],
)
def test_every_shell_is_answered_though_the_module_prints(
    shell: str, expected: str, here: Path
) -> None:
    (here / "hooks.py").write_text(f"print('hello')\n{APP}")
    bury(here, COMMENT, MESSAGE)
    words = "hookonce dead show hooks:receiver evt_c"
    typed = {"COMP_WORDS": words, "COMP_CWORD": "evt_c" if shell == "fish" else "4"}
    done = subprocess.run(
        COMMAND,
        cwd=here,
        env={**os.environ, **typed, "_HOOKONCE_COMPLETE": f"{shell}_complete"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.stdout.strip() == expected.strip()
    assert done.stderr == ""
