"""``hookonce listen``: the real service's deliveries on this machine, through a tunnel.

The interface has no operation that lists or deletes endpoints, and a workspace has few. So the
command creates one endpoint, keeps its id and secret in a file, and continues with it at each
later start, also after it was killed.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import click

from hookonce import Receiver
from hookonce.client import (
    Client,
    ClientError,
    LimitError,
    NotFoundError,
    PermissionDeniedError,
)
from hookonce.client.addresses import segment
from hookonce.emulator.rules import SUBSCRIBABLE
from hookonce.errors import SecretError
from hookonce.receiver.receiver import replaced
from hookonce.senders import publishing
from hookonce.verification.providers import FileSecrets
from hookonce.verification.secrets import secret_lines

from .ending import end_with_its_threads, ended_by_signals
from .endpoints import created, event_option
from .listeners import DEFAULT_PORT
from .loading import Loaded, factory_option, load, stand_in_secrets
from .logs import log_options, start_logging
from .output import Output, system_fault
from .rotate import changing
from .secrets_file import SecretsFile
from .serve import loopback_listener, open_once, served_app, serving_at
from .service import service_options, with_client
from .statuses import CannotBegin, Nothing, Status
from .stores import run

_ID = re.compile(r"^# hookonce listen: endpoint (\S+)$", re.MULTILINE)

_REMEDY = "Name another --secrets-file; or remove this one, and its endpoint in the service's app"

# How long the command, at its end, waits for the service to disable the endpoint.
_DISABLE_SECONDS = 10.0


def _read_url(_: click.Context, __: click.Parameter, text: str) -> str:
    """Refuse a text that is not the URL of a server."""
    try:
        parts = urlsplit(text)
        is_url = parts.scheme in {"https", "http"} and parts.hostname and not parts.query
    except ValueError:
        is_url = False
    if not is_url:
        raise click.BadParameter(f"{text!r} is not a URL such as https://name.trycloudflare.com")
    return text


@click.command()
@click.argument("receiver", metavar="MODULE:RECEIVER")
@click.option(
    "--tunnel",
    "tunnel_url",
    required=True,
    metavar="URL",
    callback=_read_url,
    help="The public https URL of a tunnel to --port. Without a path, the path of deliveries is"
    " added.",
)
@event_option
@click.option(
    "--secrets-file",
    default="hookonce-listen.secrets",
    show_default=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The file for the endpoint's id and secret.",
)
@click.option(
    "--port",
    default=DEFAULT_PORT,
    show_default=True,
    envvar="PORT",
    show_envvar=True,
    type=click.IntRange(0, 65535),
    help="The port to listen on, at 127.0.0.1; 0 picks a free port.",
)
@click.option("--path", default="/webhooks", show_default=True, help="The path of deliveries.")
@log_options
@factory_option
@service_options
def listen(
    receiver: str,
    tunnel_url: str,
    events: tuple[str, ...],
    secrets_file: Path,
    port: int,
    path: str,
    log_level: str,
    log_format: str,
    api_url: str,
    key_file: Path | None,
    *,
    log_tracebacks: bool,
    factory: bool,
    as_json: bool,
) -> None:
    """Receive the service's deliveries on this machine, through a tunnel.

    The first start creates an endpoint at the service, and writes its id and secret into a file
    that only its owner can read. Each start sets the endpoint's URL to that of the tunnel and its
    event types to those of --event, by default all types with a handler; then it serves
    MODULE:RECEIVER with the endpoint's secret. At SIGTERM or Ctrl-C the command disables the
    endpoint. After a kill the endpoint stays enabled, and the next start continues with it.

    Start the tunnel first. To delete the endpoint, use the service's app, and remove the file.

    The API key comes from HOOKONCE_API_KEY or --key-file, and needs the role admin.

    For example: hookonce listen app:receiver --tunnel https://name.trycloudflare.com
    """
    if not path.startswith("/"):
        raise click.BadParameter(f"a path starts with a slash, unlike {path!r}")
    start_logging(log_level, log_format, every_traceback=log_tracebacks)
    with stand_in_secrets():  # only for the import: the endpoint's secret comes later
        loaded = load(receiver, factory=factory)
    if len(loaded.receivers) > 1:
        raise CannotBegin(
            f"{receiver} has {len(loaded.receivers)} receivers, and an endpoint delivers to one;"
            " name one with MODULE:RECEIVER"
        )
    [(own_path, target)] = loaded.receivers.items()
    if target.sender.envelope != publishing.envelope:
        raise CannotBegin(
            f"{receiver} is for the sender {target.sender.name!r}, but this command registers an"
            " endpoint at the Social Publishing Service; register the tunnel's URL with that"
            " sender, and run hookonce serve"
        )
    wanted = events or _handled_types(target)
    if not wanted:
        raise click.UsageError(
            f"{receiver} has no handler of an event type; name one --event at least:"
            f" {', '.join(SUBSCRIBABLE)}"
        )
    # A store that cannot be used must end the command before an endpoint is created.
    run(open_once(target))
    delivery_path = own_path or path
    listening = _Listening(
        file=_EndpointFile(SecretsFile(secrets_file)),
        output=Output(as_json=as_json),
        loaded=loaded,
        receiver=target,
        url=_delivery_url(tunnel_url, delivery_path),
        events=wanted,
        path=delivery_path,
        port=port,
    )
    is_disabled = with_client(api_url, key_file, listening.run)
    end_with_its_threads()
    if not is_disabled:
        raise SystemExit(Status.FOUND)


class _EndpointFile:
    """The file with the endpoint's secret, below a comment with its id."""

    def __init__(self, secrets: SecretsFile) -> None:
        self.secrets = secrets
        self.path = secrets.path

    def webhook_id(self) -> str | None:
        """Return the endpoint's id; None if the file is missing or empty.

        Raises:
            CannotBegin: the file cannot be used.
        """
        try:
            text = self.secrets.read()
            if not text.strip():
                return None
            is_shared = stat.S_IMODE(self.path.stat().st_mode) & 0o077
        except (SecretError, OSError) as error:
            fault = system_fault(error) if isinstance(error, OSError) else str(error)
            raise CannotBegin(f"cannot use {str(self.path)!r}: {fault}. {_REMEDY}") from None
        if is_shared:
            raise CannotBegin(
                f"other users can read the secret in {str(self.path)!r}: chmod 600 it, and rotate"
                " the secret with hookonce endpoints rotate if somebody may have read it"
            )
        found = _ID.findall(text)
        if len(found) != 1 or not _is_id(found[0]) or not secret_lines(text):
            raise CannotBegin(
                f"{str(self.path)!r} does not hold the id and the secret of one endpoint. {_REMEDY}"
            )
        return str(found[0])

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other commands from using this file during the block."""
        file = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CannotBegin(
                    f"another hookonce listen uses {str(self.path)!r}; end that one first"
                ) from None
            yield
        finally:
            os.close(file)


@dataclass(frozen=True, kw_only=True)
class _Listening:
    """A run of the command.

    Attributes:
        url: the public URL of deliveries.
        events: the event types to subscribe to.
        path: the path of deliveries at this server.
        port: the port of this server.
    """

    file: _EndpointFile
    output: Output
    loaded: Loaded
    receiver: Receiver
    url: str
    events: Sequence[str]
    path: str
    port: int
    _ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, client: Client) -> bool:
        """Serve until a signal; return whether the endpoint is disabled at the end."""
        loop = asyncio.get_running_loop()
        async with AsyncExitStack() as stack:
            stack.enter_context(
                ended_by_signals(lambda: loop.call_soon_threadsafe(self._ended.set))
            )
            # Begin with the steps that may fail here, so that a failure creates no endpoint.
            app = served_app(self.loaded, self.path, None, with_metrics=False)
            listener = stack.enter_context(loopback_listener(self.port))
            webhook_id = await self._registered(client)
            stack.enter_context(self.file.held())
            own = self.receiver.copy(secrets=FileSecrets(self.file.path))
            stack.enter_context(replaced(self.receiver, own))
            try:
                base_url = await stack.enter_async_context(serving_at(listener, app))
                await self._point(client, webhook_id)
                self._say(
                    webhook_id,
                    "listening",
                    f"{self.url} delivers {', '.join(self.events)} to {base_url}{self.path};"
                    " Ctrl-C disables the endpoint",
                )
                await self._ended.wait()
            except NotFoundError:
                raise Nothing(
                    f"the workspace of this API key has no endpoint {webhook_id}. If it was"
                    f" deleted, remove {str(self.file.path)!r} and run this again, which creates"
                    " another"
                ) from None
            except PermissionDeniedError:  # with this key, `_disable` would fail as well
                raise
            except BaseException:
                await self._disable(client, webhook_id)
                raise
            # Disable the endpoint while the server still answers, so that no delivery fails.
            return await self._disable(client, webhook_id)

    async def _registered(self, client: Client) -> str:
        """Return the id of the endpoint; create it at the first start."""
        with changing(self.file.secrets):
            webhook_id = self.file.webhook_id()
            if webhook_id is not None:
                return webhook_id
            try:
                made = await created(
                    client,
                    self.file.secrets,
                    self.url,
                    self.events,
                    description="hookonce listen",
                    comment=lambda made_id: f"# hookonce listen: endpoint {made_id}\n",
                )
            except SystemExit:
                # A signal has arrived. If the endpoint exists by now, continue, in order to disable
                # it.
                webhook_id = self.file.webhook_id()
                if webhook_id is None:
                    raise
                self._ended.set()
                return webhook_id
            except LimitError as error:
                if error.status == 429:
                    raise
                raise Nothing(
                    f"{error}. The interface has no operation that lists or deletes endpoints:"
                    " delete one in the service's app"
                ) from None
        self._say(made.id, "created", f"created; its secret is in {self.file.path}")
        return made.id

    async def _point(self, client: Client, webhook_id: str) -> None:
        """Set the URL and the event types of the endpoint, and enable it."""
        if not self._ended.is_set():
            await client.webhooks.update(webhook_id, url=self.url, events=self.events, enabled=True)

    async def _disable(self, client: Client, webhook_id: str) -> bool:
        try:
            async with asyncio.timeout(_DISABLE_SECONDS):
                await client.webhooks.disable(webhook_id)
        except (ClientError, TimeoutError) as error:
            fault = str(error) or f"no answer within {_DISABLE_SECONDS:g} s"
            self._say(
                webhook_id,
                "enabled",
                f"could not disable it: {fault}. Disable it with hookonce endpoints disable"
                f" {webhook_id}, or start this again",
                "red",
            )
            return False
        self._say(
            webhook_id,
            "disabled",
            "disabled, and kept for the next start; to delete it, use the service's app and remove"
            f" {self.file.path}",
        )
        return True

    def _say(self, webhook_id: str, step: str, line: str, style: str = "") -> None:
        record = {
            "webhook": webhook_id,
            "step": step,
            "url": self.url,
            "events": self.events,
            "file": str(self.file.path),
        }
        self.output.record(record, f"{webhook_id}: {line}", style)


def _handled_types(receiver: Receiver) -> tuple[str, ...]:
    test_type = receiver.sender.rules.test_type
    return tuple(
        one
        for one in SUBSCRIBABLE
        if any(handler.wants(one, known=True, test_type=test_type) for handler in receiver.handlers)
    )


def _delivery_url(tunnel_url: str, path: str) -> str:
    base = tunnel_url.rstrip("/")
    return base if urlsplit(base).path else base + path


def _is_id(text: str) -> bool:
    try:
        segment(text)
    except ValueError:
        return False
    return True
