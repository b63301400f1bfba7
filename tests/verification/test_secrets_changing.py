"""Secrets change under running threads: no thread sees half a change, and the last change stays."""

import base64
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from support.secrets import ChangingSecrets

from hookonce import FileSecrets, VerificationError, Verifier, sign

OLD, NEW, THIRD = (
    "whsec_" + base64.b64encode(key).decode() for key in (b"o" * 24, b"n" * 24, b"t" * 24)
)
NOW = 1_700_000_000
BODY = b"{}"
BY_OLD, BY_NEW, BY_THIRD = (
    sign(secret, "evt_1", BODY, timestamp=NOW) for secret in (OLD, NEW, THIRD)
)


def run_held_at(
    step: int,
    method: Callable[..., object],
    run: Callable[[], object],
    meanwhile: Callable[[], None],
) -> bool:
    """Call ``run`` in a thread, and call ``meanwhile`` before a chosen line of the method.

    Return whether the run reached that line.
    """
    source = method.__code__.co_filename
    lines = 0

    def watch(frame: FrameType, event: str, _: object) -> Any:
        nonlocal lines
        if frame.f_code.co_filename != source:
            return None
        if event == "line":
            if lines == step:
                meanwhile()
            lines += 1
        return watch

    def watched() -> None:
        sys.settrace(watch)
        try:
            run()
        except VerificationError:
            pass  # a delivery may be verified with the secrets between two changes
        finally:
            sys.settrace(None)

    thread = threading.Thread(target=watched)
    thread.start()
    thread.join()
    return lines > step


def verifier_overtaken_at(step: int) -> tuple[Verifier, bool]:
    provider = ChangingSecrets(OLD)
    verifier = Verifier(provider)

    def finish_an_older_look() -> None:
        provider.secrets = (NEW,)  # another thread has just read this secret
        with pytest.raises(VerificationError):
            verifier.verify(BODY, BY_THIRD, now=NOW)
        provider.secrets = (THIRD,)

    provider.secrets = (THIRD,)
    return verifier, run_held_at(
        step,
        Verifier.verify,
        lambda: verifier.verify(BODY, BY_THIRD, now=NOW),
        finish_an_older_look,
    )


def test_a_verifier_ends_with_the_last_secrets_wherever_one_thread_overtakes_another() -> None:
    for step in range(1000):
        verifier, was_held = verifier_overtaken_at(step)
        assert verifier.verify(BODY, BY_THIRD, now=NOW).id == "evt_1", f"held at line {step}"
        if not was_held:
            break
    assert step > 3


def file_changed_at(step: int, file: Path) -> tuple[FileSecrets, bool]:
    replace(file, OLD)
    provider = FileSecrets(file)
    replace(file, NEW)
    return provider, run_held_at(
        step, FileSecrets.current, provider.current, lambda: replace(file, THIRD)
    )


def test_a_file_that_changes_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    for step in range(1000):
        provider, was_held = file_changed_at(step, tmp_path / "secrets")
        expected = THIRD if was_held else NEW
        assert provider.current() == (expected,), f"held at line {step}"
        if not was_held:
            break
    assert step > 3


def replace(file: Path, text: str) -> None:
    beside = file.with_name("beside")
    beside.write_text(text)
    os.replace(beside, file)


def write_in_place(file: Path, text: str) -> None:
    file.write_text(text)


@pytest.mark.parametrize("change", [replace, write_in_place])
def test_threads_refuse_nothing_genuine_while_the_file_changes_around_the_old_secret(
    tmp_path: Path, change: Callable[[Path, str], None]
) -> None:
    file = tmp_path / "secrets"
    file.write_text(OLD)
    verifier = Verifier(FileSecrets(file))
    stop = threading.Event()
    wrong: list[Exception] = []
    verified = [0] * 4

    def verify_on(thread: int) -> None:
        while not stop.is_set():
            try:
                verifier.verify(BODY, BY_OLD, now=NOW)
            except Exception as error:  # noqa: BLE001 - the test reports every error of its threads
                wrong.append(error)
            verified[thread] += 1

    threads = [threading.Thread(target=verify_on, args=(n,)) for n in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for n in range(150):
            change(file, f"{(NEW, THIRD)[n % 2]}\n{OLD}\n")
        while min(verified) < 10 and not wrong:
            time.sleep(0.001)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
    assert not wrong
    change(file, NEW)
    assert verifier.verify(BODY, BY_NEW, now=NOW).secret_index == 0
