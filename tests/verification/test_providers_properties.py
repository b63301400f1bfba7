"""Whatever a file contains, the last usable secrets stay in force."""

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from hookonce import EnvironmentSecrets, FileSecrets, SecretError
from hookonce.verification.secrets import new_secret, verifying_key

SECRETS = [new_secret() for _ in range(4)]

good_lists = st.lists(st.sampled_from(SECRETS), min_size=1, max_size=3)
good_files = good_lists.map("\n".join)
junk_files = st.text(st.characters(codec="utf-8"), max_size=30)


def usable(content: str) -> tuple[str, ...] | None:
    """Return the secrets of a file; None if a secret cannot be used, or if there is none."""
    lines = (line.strip() for line in content.splitlines())
    secrets = tuple(line for line in lines if line and not line.startswith("#"))
    try:
        for secret in secrets:
            verifying_key(secret)
    except SecretError:
        return None
    return secrets or None


@given(good_files, st.lists(st.one_of(good_files, junk_files), max_size=6))
def test_a_file_gives_the_last_secrets_in_it_that_could_be_used(
    first: str, later: list[str]
) -> None:
    with TemporaryDirectory() as folder:
        path, new = Path(folder, "secrets"), Path(folder, "new")
        path.write_text(first, encoding="utf-8", newline="")
        provider = FileSecrets(path)
        expected = usable(first)
        assert provider.current() == expected
        for content in later:
            new.write_text(content, encoding="utf-8", newline="")
            new.replace(path)
            expected = usable(content) or expected
            assert provider.current() == expected


@given(good_lists, st.sampled_from([" ", ",", "\n", " , ", "\t"]))
def test_the_environment_gives_its_secrets_in_their_order(
    secrets: list[str], separator: str
) -> None:
    with patch.dict(os.environ, {"HOOKONCE_SECRETS": separator.join(secrets)}):
        assert EnvironmentSecrets().current() == tuple(secrets)
