"""`hookonce serve` behind a proxy: which proxies may name the client's address."""

from pathlib import Path

import httpx2
import pytest

from .dead_letters import APP
from .inboxes import url_of
from .running import PATIENCE_SECONDS, SECRET, eventually, invoke, running

FAR = "203.0.113.9"
TOKEN = "a token for the inspector of these tests"


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ((), FAR),
        (("--forwarded-allow-ips", "10.0.0.0/8,127.0.0.0/8"), FAR),
        (("--forwarded-allow-ips", "10.0.0.1"), "127.0.0.1"),
        (("--no-proxy-headers",), "127.0.0.1"),
    ],
)
def test_only_a_proxy_that_is_named_says_who_the_client_is(
    options: tuple[str, ...], expected: str, tmp_path: Path
) -> None:
    """The inspector logs this address after a wrong password, and limits logins by it."""
    (tmp_path / "hooks.py").write_text(APP)
    command = ["serve", "hooks:receiver", "--port", "0", "--inspector", *options]
    environment = {"HOOKONCE_INSPECTOR_TOKEN": TOKEN}
    with running(*command, here=tmp_path, secrets=[SECRET], environment=environment) as server:
        headers = {"x-forwarded-for": FAR, "authorization": "Bearer wrong"}
        url = f"{url_of(server)}/inspector/"
        answer = httpx2.get(url, headers=headers, timeout=PATIENCE_SECONDS, trust_env=False)
        assert answer.status_code == 401
        line = f"a wrong token for the inspector, from {expected}"
        eventually(lambda: line in server.errors + server.output, what=line)


def test_behind_several_proxies_the_client_is_the_last_address_that_is_no_trusted_proxy(
    tmp_path: Path,
) -> None:
    """A client can forge the earlier addresses, so the server ignores them."""
    (tmp_path / "hooks.py").write_text(APP)
    command = ["serve", "hooks:receiver", "--port", "0", "--inspector"]
    environment = {
        "HOOKONCE_INSPECTOR_TOKEN": TOKEN,
        "FORWARDED_ALLOW_IPS": "127.0.0.1,10.0.0.0/8",
    }
    with running(*command, here=tmp_path, secrets=[SECRET], environment=environment) as server:
        headers = {
            "x-forwarded-for": f"127.0.0.1, {FAR}, 10.1.2.3",
            "authorization": "Bearer wrong",
        }
        url = f"{url_of(server)}/inspector/"
        httpx2.get(url, headers=headers, timeout=PATIENCE_SECONDS, trust_env=False)
        line = f"a wrong token for the inspector, from {FAR}"
        eventually(lambda: line in server.errors + server.output, what=line)


@pytest.mark.parametrize("names", ["proxy.internal", "10.0.0.0/33", "127.0.0.1;::1", ""])
def test_an_invalid_address_is_refused(names: str) -> None:
    result = invoke("serve", "hooks:receiver", "--forwarded-allow-ips", names)
    result.says("write * to trust every client", status=2)
