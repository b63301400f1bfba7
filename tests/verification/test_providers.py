"""Secrets are loaded again when a file changes; a bad change never loses the good secrets."""

import base64
import logging
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hookonce import (
    EnvironmentSecrets,
    FileSecrets,
    SecretError,
    SecretsProvider,
    VerificationError,
    Verifier,
    sign,
)

OLD = "whsec_" + base64.b64encode(b"the old secret, of 24 B.").decode()
NEW = "whsec_" + base64.b64encode(b"the new secret, of 24 B.").decode()
THIRD = "whsec_" + base64.b64encode(b"a third secret of 24 B..").decode()
NOW = 1_700_000_000
BODY = b"{}"
BY_OLD, BY_NEW = (sign(secret, "evt_1", BODY, timestamp=NOW) for secret in (OLD, NEW))


def test_an_error_of_a_provider_is_reported_without_its_message() -> None:
    class Vault:
        def current(self) -> tuple[str, ...]:
            raise ConnectionError(f"no answer for {NEW}")

    with pytest.raises(SecretError) as caught:
        Verifier(Vault()).verify(BODY, BY_NEW, now=NOW)
    assert str(caught.value) == (
        "Vault.current() raised ConnectionError;"
        " as long as it does, there is no secret to verify with"
    )
    cause = caught.value.__cause__
    assert isinstance(cause, ConnectionError)
    assert cause.__traceback__ is not None
    assert cause.__traceback__.tb_frame.f_code.co_name == "current", "where it happened, no more"


def test_a_provider_of_one_secret_may_give_it_as_it_is() -> None:
    class Vault:
        def current(self) -> str:
            return NEW

    assert Verifier(Vault()).verify(BODY, BY_NEW, now=NOW).secret_index == 0


_ADDS_A_SECRET = """
import sys
from pathlib import Path
from hookonce import FileSecrets
from hookonce.cli.secrets_file import SecretsFile

path, secret = Path(sys.argv[1]), sys.argv[2]
file = SecretsFile(path)
with file.locked():
    file.replace(f"{secret}\\n{file.read()}")
assert FileSecrets(path).current()[0] == secret
"""


@pytest.mark.parametrize("comment", ["# clés de production", "# Schlüssel", "# 鍵"])
def test_a_file_of_secrets_is_utf_8_whatever_the_locale_is(tmp_path: Path, comment: str) -> None:
    """Run Python with an ASCII locale; opening a file without an encoding raises an error."""
    file = tmp_path / "secrets"
    file.write_text(f"{comment}\n{OLD}\n", "utf-8")
    flags = ["-X", "utf8=0", "-X", "warn_default_encoding", "-W", "error::EncodingWarning"]
    ended = subprocess.run(
        [sys.executable, *flags, "-c", _ADDS_A_SECRET, str(file), NEW],
        env={**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr.decode()
    assert file.read_text("utf-8") == f"{NEW}\n{comment}\n{OLD}\n"


# Secrets in the environment


@pytest.mark.parametrize("variable", ["HOOKONCE_SECRETS", "MY_OWN"])
@pytest.mark.parametrize("between", [" ", ",", ", ", "\n", "\t"])
def test_the_environment_holds_the_secrets_newest_first(
    monkeypatch: pytest.MonkeyPatch, variable: str, between: str
) -> None:
    monkeypatch.setenv(variable, f" {NEW}{between}{OLD}\n")
    default = variable == "HOOKONCE_SECRETS"
    provider = EnvironmentSecrets() if default else EnvironmentSecrets(variable)
    assert provider.current() == (NEW, OLD)
    assert Verifier(provider).verify(BODY, BY_OLD, now=NOW).secret_index == 1


@pytest.mark.parametrize("value", [None, "", " \n", ","])
def test_a_missing_or_empty_variable_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv("HOOKONCE_SECRETS", raising=False)
    if value is not None:
        monkeypatch.setenv("HOOKONCE_SECRETS", value)
    with pytest.raises(SecretError, match="set the environment variable HOOKONCE_SECRETS"):
        EnvironmentSecrets()


def test_a_variable_with_one_bad_secret_is_an_error_that_shows_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOOKONCE_SECRETS", f"{NEW} {OLD}!")
    with pytest.raises(SecretError, match="characters outside") as caught:
        EnvironmentSecrets()
    assert not leaked(str(caught.value))


# Secrets in files


def leaked(text: str) -> list[str]:
    """Return each part of a secret in a text: its base64, or any eight characters of it."""
    cores = [secret.removeprefix("whsec_") for secret in (OLD, NEW, THIRD)]
    return [
        core[n : n + 8] for core in cores for n in range(len(core) - 7) if core[n : n + 8] in text
    ]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "secrets"
    path.write_text(f"{OLD}\n")
    os.utime(path, (NOW, NOW))  # tests write faster than the clock of the file system ticks
    return path


@pytest.fixture(autouse=True)
def _no_secret_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.DEBUG)
    yield
    for record in caplog.get_records("call"):
        assert not leaked(f"{record.getMessage()} {vars(record)} {record.exc_text}")


def faults(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("hookonce") and record.levelno >= logging.ERROR
    ]


def test_providers_are_secrets_providers(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOKONCE_SECRETS", OLD)
    assert isinstance(FileSecrets(file), SecretsProvider)
    assert isinstance(EnvironmentSecrets(), SecretsProvider)


def test_a_file_holds_one_secret_a_line_newest_first(file: Path) -> None:
    file.write_text(f"# the new one\n\n  {NEW}  \r\n#{THIRD}\n\t# old\n{OLD}")
    assert FileSecrets(file).current() == (NEW, OLD)
    assert FileSecrets(str(file)).current() == (NEW, OLD)


def test_several_files_are_read_in_their_order(file: Path, tmp_path: Path) -> None:
    newer = tmp_path / "newer"
    newer.write_text(f"{NEW}\n{THIRD}\n")
    provider = FileSecrets(newer, file)
    assert provider.current() == (NEW, THIRD, OLD)
    newer.write_text(THIRD)
    assert provider.current() == (THIRD, OLD)
    file.write_text(NEW)
    assert provider.current() == (THIRD, NEW)


def write_in_place(file: Path, text: str) -> None:
    file.write_text(text)


def replace(file: Path, text: str) -> None:
    beside = file.with_name("beside")
    beside.write_text(text)
    os.replace(beside, file)


def test_a_file_that_cannot_be_read_is_reported_in_the_systems_words(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(SecretError, match=r"missing: No such file or directory; write"):
        FileSecrets(missing)
    with pytest.raises(SecretError, match=r"ValueError$"):
        FileSecrets("no\0path")
    (tmp_path / "binary").write_bytes(b"\xff")
    with pytest.raises(SecretError, match=r"secrets in .*binary: it is not UTF-8 text; write"):
        FileSecrets(tmp_path / "binary")


def test_a_change_is_said_with_how_many_secrets_there_are(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    verifier = Verifier(FileSecrets(file))
    replace(file, f"{NEW}\n{OLD}\n")
    verifier.verify(BODY, BY_NEW, now=NOW)
    verifier.verify(BODY, BY_NEW, now=NOW)
    said = [line.getMessage() for line in caplog.records if line.levelno == logging.INFO]
    assert said == ["reloaded 2 secrets"]


def replace_by_a_twin(file: Path, text: str) -> None:
    """Replace the file by another file of the same size and the same modification time."""
    before = file.stat()
    beside = file.with_name("beside")
    beside.write_text(text)
    os.utime(beside, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.replace(beside, file)
    assert (file.stat().st_mtime_ns, file.stat().st_size) == (before.st_mtime_ns, before.st_size)


def delete_and_write(file: Path, text: str) -> None:
    file.unlink()
    file.write_text(text)


def point_a_link(file: Path, text: str) -> None:
    target = file.with_name("target")
    target.write_text(text)
    file.unlink()
    file.symlink_to(target)


@pytest.mark.parametrize(
    "change", [write_in_place, replace, replace_by_a_twin, delete_and_write, point_a_link]
)
def test_a_change_is_seen_at_the_next_delivery(
    file: Path, change: Callable[[Path, str], None], caplog: pytest.LogCaptureFixture
) -> None:
    verifier = Verifier(FileSecrets(file))
    assert verifier.verify(BODY, BY_OLD, now=NOW).secret_index == 0
    change(file, f"{NEW}\n")
    assert verifier.verify(BODY, BY_NEW, now=NOW).secret_index == 0
    with pytest.raises(VerificationError):
        verifier.verify(BODY, BY_OLD, now=NOW)
    assert not faults(caplog)


def test_the_swap_of_a_mounted_kubernetes_secret_is_seen(tmp_path: Path) -> None:
    """kubelet writes a new directory, points a new link at it, and renames the link to ..data."""
    mount = tmp_path / "mount"
    mount.mkdir()

    def project(name: str, text: str) -> None:
        (mount / name).mkdir()
        (mount / name / "secrets").write_text(text)
        os.utime(mount / name / "secrets", ns=(NOW * 10**9, NOW * 10**9))
        (mount / "..data_tmp").symlink_to(name)
        os.rename(mount / "..data_tmp", mount / "..data")

    project("..2026_01", OLD)
    (mount / "secrets").symlink_to("..data/secrets")
    verifier = Verifier(FileSecrets(mount / "secrets"))
    assert verifier.verify(BODY, BY_OLD, now=NOW).secret_index == 0
    project("..2026_02", NEW)  # the new file has the size and time of the old file
    (mount / "..2026_01" / "secrets").unlink()
    (mount / "..2026_01").rmdir()
    assert verifier.verify(BODY, BY_NEW, now=NOW).secret_index == 0


# Changes that make a file unusable


def delete(file: Path) -> None:
    file.unlink()


def empty(file: Path) -> None:
    file.write_text("")


def leave_only_comments(file: Path) -> None:
    file.write_text(f"# {NEW}\n\n")


def write_binary(file: Path) -> None:
    file.write_bytes(NEW.encode() + b"\xff\xfe")


def cut_a_secret(file: Path) -> None:
    file.write_text(f"{NEW}\n{THIRD[:-3]}\n")


def write_a_public_key(file: Path) -> None:
    file.write_text(NEW.replace("whsec_", "whpk_"))


def write_two_on_a_line(file: Path) -> None:
    file.write_text(f"{NEW} {OLD}")


def put_a_directory(file: Path) -> None:
    file.unlink()
    file.mkdir()


def point_a_link_nowhere(file: Path) -> None:
    file.unlink()
    file.symlink_to("nowhere")


def point_a_link_at_itself(file: Path) -> None:
    file.unlink()
    file.symlink_to(file)


SPOILS = [
    delete,
    empty,
    leave_only_comments,
    write_binary,
    cut_a_secret,
    write_a_public_key,
    write_two_on_a_line,
    put_a_directory,
    point_a_link_nowhere,
    point_a_link_at_itself,
]


def clear(file: Path) -> None:
    if file.is_dir() and not file.is_symlink():
        file.rmdir()
    else:
        file.unlink(missing_ok=True)


@pytest.mark.parametrize("spoil", SPOILS)
def test_the_last_good_secrets_stay_in_force_until_there_are_better_ones(
    file: Path, spoil: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    verifier = Verifier(FileSecrets(file))
    spoil(file)
    for _ in range(5):
        assert verifier.verify(BODY, BY_OLD, now=NOW).secret_index == 0
    assert len(faults(caplog)) == 1, "a fault is logged once, not with every delivery"
    assert str(file) in faults(caplog)[0]
    clear(file)
    file.write_text(f"{NEW}\n{OLD}\n")
    assert verifier.verify(BODY, BY_NEW, now=NOW).secret_index == 0
    assert verifier.verify(BODY, BY_OLD, now=NOW).secret_index == 1
    assert len(faults(caplog)) <= 2


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_file_that_cannot_be_used_at_the_start_is_an_error_that_names_it(
    file: Path, spoil: Callable[[Path], None]
) -> None:
    spoil(file)
    with pytest.raises(SecretError) as caught:
        FileSecrets(file)
    assert str(file) in str(caught.value)
    assert not leaked(str(caught.value))


@pytest.mark.parametrize("spoil", SPOILS)
def test_a_provider_says_what_is_wrong_while_the_last_good_secrets_are_in_force(
    file: Path, spoil: Callable[[Path], None]
) -> None:
    provider = FileSecrets(file)
    assert provider.fault is None
    spoil(file)
    assert str(file) in (provider.fault or "")
    assert not leaked(provider.fault or "")
    assert provider.current() == (OLD,)
    clear(file)
    file.write_text(NEW)
    assert provider.fault is None


def test_a_file_that_was_away_for_a_moment_has_no_fault_afterwards(file: Path) -> None:
    provider = FileSecrets(file)
    aside = file.rename(file.with_name("aside"))
    assert provider.fault
    aside.rename(file)
    assert provider.fault is None


def test_a_bad_change_of_one_file_leaves_the_secrets_of_all(file: Path, tmp_path: Path) -> None:
    newer = tmp_path / "newer"
    newer.write_text(NEW)
    provider = FileSecrets(newer, file)
    file.write_text(THIRD)
    newer.unlink()
    assert provider.current() == (NEW, OLD)
    newer.write_text(NEW)
    assert provider.current() == (NEW, THIRD)


def test_two_bad_changes_are_two_faults(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    provider = FileSecrets(file)
    file.write_text("nonsense!")
    provider.current()
    file.write_text("")
    provider.current()
    assert len(faults(caplog)) == 2
    assert provider.current() == (OLD,)


def test_file_secrets_without_a_file_are_refused() -> None:
    with pytest.raises(SecretError, match="at least one file"):
        FileSecrets()


@contextmanager
def no_more_open_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_new_file_that_could_not_be_read_for_a_moment_is_tried_again(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that has no free file descriptor for a moment must still notice the rotation."""
    verifier = Verifier(FileSecrets(file))
    replace(file, f"{NEW}\n{OLD}\n")
    with no_more_open_files():
        assert verifier.verify(BODY, BY_OLD, now=NOW).secret_index == 0
    assert faults(caplog)
    assert verifier.verify(BODY, BY_NEW, now=NOW).secret_index == 0


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_new_file_whose_mode_is_mended_afterwards_is_read(file: Path) -> None:
    verifier = Verifier(FileSecrets(file))
    beside = file.with_name("beside")
    beside.write_text(NEW)
    beside.chmod(0)
    os.replace(beside, file)
    assert verifier.verify(BODY, BY_OLD, now=NOW).secret_index == 0
    file.chmod(0o600)
    assert verifier.verify(BODY, BY_NEW, now=NOW).secret_index == 0
