"""Functions that plant a fault in a deployment, and return when its first sign is visible."""

from __future__ import annotations

import os
import pwd
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

import httpx2
from cli.running import SECRET
from integrations.nginx import behind_nginx
from support.disks import NoDiskError, fill, small_disk
from support.needs import missing, needed
from support.postgres import postgres_server
from support.redis_servers import redis_server

from hookonce.samples.events import event_body

from .deployment import PLAIN, Deployment

__all__ = ["COMMANDS", "FAULTS"]

Plant: TypeAlias = Callable[[Deployment], object]

FAULTS: dict[str, Plant] = {}
"""What plants each fault, by the fault's name in the guide."""

COMMANDS: dict[str, tuple[str, ...]] = {
    "`hookonce dead list`": ("dead", "list", "app:receiver"),
    "`hookonce reconcile`": ("reconcile", "app:receiver", "--webhook", "wh_1"),
}
"""The commands that are a step, by their name in the guide; log and doctor come before them."""

_NEW_SECRET = "whsec_" + b64encode(b"the one that a rotation has made").decode()

_FAILING = PLAIN.replace(
    "async def greet(event): ...",
    "async def greet(event):\n    raise TimeoutError('the model did not answer')",
)


def _plants(name: str) -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        FAULTS[name] = plant
        return plant

    return register


def _with_inbox(text: str, settings: str = "") -> str:
    return text.replace("Receiver(**settings)", f"Receiver(**settings, inbox=Inbox({settings}))")


@_plants("wrong secret")
def _(to: Deployment) -> None:
    to.secret = _NEW_SECRET
    to.serve()
    assert to.deliver(times=5) == 401


@_plants("rotation forgotten beyond 24 hours")
def _(to: Deployment) -> None:
    to.set_clock(0)
    to.serve()
    assert to.deliver(times=3, secrets=(_NEW_SECRET, SECRET)) == 200
    a_day_later = 25 * 3600.0
    to.set_clock(a_day_later)
    assert to.deliver(times=5, secrets=(_NEW_SECRET,), skew=-a_day_later) == 401


@_plants("clock off by 10 minutes")
def _(to: Deployment) -> None:
    to.set_clock(600)
    to.serve()
    assert to.deliver(times=5) == 401


@_plants("proxy rewrites bodies")
def _(to: Deployment) -> None:
    to.serve()
    to.proxy(
        """
import json, httpx2
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

async def forward(request):
    body = json.dumps(json.loads(await request.body())).encode()
    headers = {n: v for n, v in request.headers.items() if n not in {"content-length", "host"}}
    async with httpx2.AsyncClient(trust_env=False) as client:
        answer = await client.post(
            "http://127.0.0.1:{port}" + request.url.path, content=body, headers=headers
        )
    return Response(answer.content, answer.status_code, media_type="application/json")

app = Starlette(routes=[Route("/{path:path}", forward, methods=["POST"])])
"""
    )
    assert to.deliver() == 401


@_plants("slash redirect")
def _(to: Deployment) -> None:
    to.write(
        PLAIN
        + """
from starlette.applications import Starlette
from starlette.routing import Mount

app = Starlette(routes=[Mount("/webhooks", receiver)], lifespan=receiver.lifespan)
"""
    )
    to.target = "app:app"
    to.serve()
    assert to.deliver() == 307
    to.logged("did not reach a receiver")


@_plants("proxy's body limit")
def _(to: Deployment) -> None:
    to.serve()
    proxy = behind_nginx(to.port, here=to.here / "nginx", body_limit="1m")
    to.put_before(to.ending.enter_context(proxy))
    assert to.deliver(size=1_500_000) == 413


@_plants("hookonce's body limit")
def _(to: Deployment) -> None:
    to.serve()
    with suppress(httpx2.NetworkError):  # the server closes the connection without reading the rest
        assert to.deliver(size=2_500_000) == 413
    to.logged("refused a body")


@_plants("disk full")
def _(to: Deployment) -> None:
    try:
        disk = to.ending.enter_context(small_disk(to.here, 24))
    except NoDiskError as error:
        what, _, remedy = str(error).partition("; to enable: ")
        missing(what, remedy)
    to.write(PLAIN.replace("hookonce.db", f"{disk}/hookonce.db"))
    to.serve()
    assert to.deliver() == 200
    fill(disk / "filler")
    while to.deliver(size=100_000) != 503:
        pass


@_plants("store down")
def _(to: Deployment) -> None:
    server = to.ending.enter_context(redis_server(append_only=True))
    to.write(PLAIN.replace("sqlite:///hookonce.db", server.url))
    to.serve()
    assert to.deliver() == 200
    server.kill()
    assert to.deliver() == 503


@_plants("Redis without persistence")
def _(to: Deployment) -> None:
    server = to.ending.enter_context(redis_server())
    to.write(PLAIN.replace("sqlite:///hookonce.db", server.url))
    to.serve()


@_plants("Redis evicts")
def _(to: Deployment) -> None:
    policy = ("--maxmemory-policy", "allkeys-lru")
    server = to.ending.enter_context(redis_server(*policy, append_only=True))
    to.write(PLAIN.replace("sqlite:///hookonce.db", server.url))
    to.serve()


@_plants("workers absent")
def _(to: Deployment) -> None:
    to.write(_with_inbox(PLAIN, "embedded=False"))
    to.serve()
    assert to.deliver() == 202
    to.logged("has no worker")


@_plants("no lifespan in a mounted app")
def _(to: Deployment) -> None:
    to.write(
        _with_inbox(PLAIN)
        + """
from starlette.applications import Starlette
from starlette.routing import Mount

inner = Starlette(routes=receiver.routes("/webhooks"), lifespan=receiver.lifespan)
app = Starlette(routes=[Mount("/", inner)])
"""
    )
    to.target = "app:app"
    to.serve()
    assert to.deliver() == 202
    to.logged("has no worker")


@_plants("a handler absent after a deployment")
def _(to: Deployment) -> None:
    to.write(_FAILING)
    before = to.serve()
    assert to.deliver("evt_1") == 500
    to.stop(before)
    to.write(PLAIN.replace('"greet"', '"salute"'))
    to.serve()
    assert to.deliver("evt_1") == 503
    to.logged("waits for the handler")


@_plants("all handlers absent after a deployment")
def _(to: Deployment) -> None:
    to.write(PLAIN.partition("@receiver.on")[0])
    to.serve()
    assert to.deliver() == 200


@_plants("event loop blocked")
def _(to: Deployment) -> None:
    to.write(PLAIN.replace("event): ...", "event):\n    import time; time.sleep(2.5)"))
    to.serve()
    assert to.deliver() == 200
    to.logged("has blocked the event loop")


@_plants("one endpoint name in two applications")
def _(to: Deployment) -> None:
    to.serve()
    to.write(PLAIN.replace('"greet"', '"charge"'), "billing.py")
    to.settings["HOOKONCE_SECRETS"] = to.secret = _NEW_SECRET
    to.target = "billing:receiver"
    to.serve()
    assert to.deliver() == 200


def _service_user() -> int:
    """Return the id of a user with fewer rights than the user of the tests."""
    if os.geteuid() != 0:
        missing("the service cannot run as another user", "run as root")
    needed("setpriv", package="util-linux")
    return pwd.getpwnam("nobody").pw_uid


_FROM_FILE = PLAIN.replace("EnvironmentSecrets()", 'FileSecrets("secrets")')


@_plants("secrets file missing")
def _(to: Deployment) -> None:
    to.write(_FROM_FILE)
    to.fails_to_start("serve", "app:receiver", "--port", "0")


@_plants("secrets file garbled")
def _(to: Deployment) -> None:
    to.write(_FROM_FILE)
    to.write(SECRET, "secrets")
    to.serve()
    assert to.deliver() == 200
    to.write(SECRET[:-5], "secrets")
    assert to.deliver() == 200, "with the old secret"
    to.logged("the new secrets cannot be used")


@_plants("secrets file unreadable for the service")
def _(to: Deployment) -> None:
    user = _service_user()
    os.chown(to.here, user, user)
    file = to.write(SECRET, "secrets")
    to.write(_FROM_FILE)
    to.serve(user=user)
    assert to.deliver() == 200
    file.unlink()
    to.write(f"{_NEW_SECRET}\n{SECRET}", "secrets").chmod(0o600)
    assert to.deliver(secrets=(_NEW_SECRET, SECRET)) == 200, "with the old secret"
    to.logged("the new secrets cannot be used")


@_plants("wrong API URL")
def _(to: Deployment) -> None:
    to.serve()
    to.settings |= {
        "HOOKONCE_API_URL": to.url.removesuffix("/webhooks"),
        "HOOKONCE_API_KEY": "key_of_nobody",
    }


@_plants("port in use")
def _(to: Deployment) -> None:
    server = to.serve()
    port = str(to.port)
    to.url = ""
    to.processes.remove(server)
    to.fails_to_start("serve", "app:receiver", "--port", port)


@_plants("SQLite file deleted")
def _(to: Deployment) -> None:
    to.serve()
    assert to.deliver() == 200
    for file in to.here.glob("hookonce.db*"):
        file.unlink()
    assert to.deliver() == 503
    to.logged("deleted or moved away")


@_plants("restored file not writable")
def _(to: Deployment) -> None:
    user = _service_user()
    server = to.serve()
    assert to.deliver() == 200
    to.stop(server)
    os.chown(to.here, user, user)
    for file in to.here.glob("hookonce.db*"):
        file.chmod(0o644)  # like a backup that root has copied: other users may only read it
    to.start("serve", "app:receiver", "--port", "0", user=user).ended()


@_plants("ledger tables missing")
def _(to: Deployment) -> None:
    server = to.ending.enter_context(postgres_server())
    to.write(
        PLAIN.partition("@receiver.on")[0]
        + f"""
from hookonce.effects.sqlalchemy import SQLAlchemyLedger
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

engine = create_async_engine({server.sqlalchemy_url("asyncpg")!r})

@receiver.on(CommentReceived, name="greet", within=SQLAlchemyLedger(async_sessionmaker(engine)))
async def greet(event, session): ...
"""
    )
    to.fails_to_start("serve", "app:receiver", "--port", "0")


@_plants("another sender's envelope")
def _(to: Deployment) -> None:
    to.serve()
    for _ in range(2):
        body = event_body("comment.received").replace(b'"createdAt"', b'"timestamp"', 1)
        assert to.deliver(body=body) == 202


@_plants("dead letters growing")
def _(to: Deployment) -> None:
    to.write(_with_inbox(_FAILING, "max_attempts=1"))
    server = to.serve()
    assert to.deliver(times=3) == 202
    to.logged("it is a dead letter now")
    to.stop(server)
    to.serve()  # the operator no longer has the log of hours ago
