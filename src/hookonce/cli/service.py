"""The service's API for commands: the client, from options and the environment."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from hookonce.client import ApiError, ApiKeyError, Client, ClientError, EnvironmentKey, FileKey
from hookonce.client.connection import segment
from hookonce.client.keys import KEY_VARIABLE

from .output import cut, json_option, together
from .statuses import Nothing

T = TypeVar("T")

URL_VARIABLE = "HOOKONCE_API_URL"

# Characters of an error's details, whose shape depends on its code.
_MOST = 500


def read_id(_: click.Context, __: click.Parameter, value: str) -> str:
    """Refuse what cannot be an id, such as the empty text of a variable that is not set."""
    try:
        segment(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return value


service_options = together(
    click.option(
        "--api-url",
        envvar=URL_VARIABLE,
        required=True,
        help=f"Where the service's API is; by default ${URL_VARIABLE}.",
    ),
    click.option(
        "--key-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help=f"Read the API key from this file instead of from ${KEY_VARIABLE}.",
    ),
    json_option,
)


def opened_client(api_url: str, key_file: Path | None) -> Client:
    """Return a client, or end with the usage."""
    try:
        key = EnvironmentKey() if key_file is None else FileKey(key_file)
        return Client(api_url, key)
    except ApiKeyError as error:
        raise click.UsageError(str(error)) from None
    except ValueError as error:
        raise click.UsageError(str(error).replace("base_url", "--api-url")) from None


def with_client(api_url: str, key_file: Path | None, use: Callable[[Client], Awaitable[T]]) -> T:
    """Return what ``use`` returns for a client, or end with what is wrong."""
    client = opened_client(api_url, key_file)

    async def use_it() -> Any:
        async with client:
            return await use(client)

    try:
        result: T = asyncio.run(use_it())
    except ApiError as error:
        details = "" if error.details is None else f" {cut(json.dumps(error.details), _MOST)}"
        raise Nothing(f"{error}{details}") from None
    except ClientError as error:
        raise Nothing(str(error)) from None
    return result
