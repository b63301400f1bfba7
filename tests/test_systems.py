"""Without the modules that Windows lacks, the library works, and the command refuses to run."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from support.deliveries import SECRET

# On Linux, some standard modules need the modules that Windows lacks. So the program imports these
# standard modules first, and only then hides the modules that Windows lacks.
_WINDOWS = """
import asyncio, contextlib, logging.config, multiprocessing, os, shutil, signal, socket, sqlite3
import subprocess, sys, tempfile, threading, unittest.mock

MODULES = {"fcntl", "grp", "pty", "pwd", "resource", "termios"}

class Without:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name in MODULES else self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Without, sys.meta_path)
for name in MODULES:
    sys.modules.pop(name, None)
for name in ("fchmod", "fchown", "fork", "geteuid", "getuid", "O_DIRECTORY", "O_NOFOLLOW",
             "O_NONBLOCK", "register_at_fork", "sysconf"):
    delattr(os, name)
for name in ("SIGHUP", "SIGKILL", "SIGUSR1", "SIGCHLD"):
    delattr(signal, name)
"""


def run_as_on_windows(here: Path, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", _WINDOWS + textwrap.dedent(code)],
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.sample(1)
@pytest.mark.parametrize("store", ["memory://", "sqlite:///hooks.db"])
def test_a_receiver_handles_a_delivery(store: str, tmp_path: Path) -> None:
    ended = run_as_on_windows(
        tmp_path,
        f"""
        from hookonce import Receiver
        from hookonce.events import CommentReceived
        from hookonce.testing import make_event, signed_request
        import hookonce.client, hookonce.emulator, hookonce.stores.redis

        receiver = Receiver(secrets={SECRET!r}, store={store!r})

        @receiver.on(CommentReceived)
        async def greet(event): ...

        async def main():
            request = signed_request(make_event(CommentReceived), {SECRET!r})
            async with receiver:
                for _ in range(2):
                    print((await receiver.handle(request.body, request.headers)).reason)

        asyncio.run(main())
        """,
    )
    assert (ended.stdout, ended.stderr) == ("handled\nduplicate\n", "")


def test_a_backup_of_a_store_in_use_is_refused(tmp_path: Path) -> None:
    ended = run_as_on_windows(
        tmp_path,
        """
        from hookonce.clock import system_clock
        from hookonce.errors import StoreError
        from hookonce.stores import open_store

        async def main():
            store = open_store("sqlite:///hooks.db", clock=system_clock)
            await store.open()
            try:
                await store.backup("copy.db")
            except StoreError as error:
                print(error)
            await store.aclose()

        asyncio.run(main())
        """,
    )
    assert "end all processes that use the store, and copy its file" in ended.stdout, ended.stderr
    assert not (tmp_path / "copy.db").exists()


def test_the_command_refuses_in_one_sentence(tmp_path: Path) -> None:
    ended = run_as_on_windows(
        tmp_path, "import hookonce.cli; sys.argv = ['hookonce', 'demo']; hookonce.cli.main()"
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith("the command line needs Linux or macOS")
    assert ended.stderr.count("\n") == 1
