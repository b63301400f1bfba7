"""A real nginx with the settings of the guide."""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cli.running import eventually
from documents.reading import GUIDE, blocks
from support.needs import needed
from support.redis_servers import free_port
from support.waiting import PATIENCE_SECONDS

__all__ = ["behind_nginx"]

# The settings of nginx outside the server block; all its files are in a folder of the test.
AROUND = """
daemon off;
pid nginx.pid;
error_log stderr;
{user}
events {{}}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
{server}
}}
"""


def server_of_the_guide(*, listen: int, pass_to: int, body_limit: str | None = None) -> str:
    """Return the server block of the guide, with the ports of the test and without TLS."""
    found = [b.text for b in blocks(GUIDE / "deployment.md") if b.language == "nginx"]
    server = next(text for text in found if "proxy_pass" in text)
    for line, instead in (
        (r"listen 443 ssl;", f"listen 127.0.0.1:{listen};"),
        (r"ssl_certificate\S* .*;", ""),
        (r"127\.0\.0\.1:8000", f"127.0.0.1:{pass_to}"),
        (r"client_body_timeout 5s;", "client_body_timeout 1s;"),
    ):
        server, count = re.subn(line, instead, server)
        assert count, line
    if body_limit is not None:
        limit = f"client_max_body_size {body_limit};"
        server, count = re.subn(r"client_max_body_size \S+;", limit, server)
        assert count == 1
    return server


@contextmanager
def behind_nginx(port: int, *, here: Path, body_limit: str | None = None) -> Iterator[int]:
    """Put nginx in front of a local port; yield the port of nginx.

    Args:
        port: where nginx passes requests on to.
        here: a new folder for the files of nginx.
        body_limit: the largest body, by default that of the guide.

    """
    program, own = needed("nginx", package="nginx"), free_port()
    here.mkdir()
    user = "user root;" if os.geteuid() == 0 else ""
    server = server_of_the_guide(listen=own, pass_to=port, body_limit=body_limit)
    (here / "nginx.conf").write_text(AROUND.format(user=user, server=server))
    with (here / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, "-p", str(here), "-e", "stderr", "-c", "nginx.conf"], stdout=log, stderr=log
        )
    try:
        eventually((here / "nginx.pid").exists, what="nginx has started")
        yield own
        assert process.poll() is None, (here / "log").read_text()
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)
