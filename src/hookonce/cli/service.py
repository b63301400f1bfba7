"""The API client of commands, made from options and environment variables."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from hookonce.client import (
    ApiError,
    ApiKeyError,
    Client,
    ClientError,
    EnvironmentKey,
    FileKey,
    NoAnswerError,
    UnreadableAnswerError,
)
from hookonce.client.addresses import segment
from hookonce.resources import API_KEY_VARIABLE, API_URL_VARIABLE

from .output import Option, cut, json_option, together
from .statuses import Nothing

T = TypeVar("T")

# The most characters of an error's details in a message; some errors have very long details.
_MAX_DETAILS = 500


def read_id(_: click.Context, __: click.Parameter, value: str) -> str:
    """Refuse an invalid id, such as the empty text of an unset shell variable."""
    try:
        segment(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return value


def _check_given(_: click.Context, __: click.Parameter, value: str | None) -> str:
    if value is None:
        raise click.UsageError(
            f"name the service's API: --api-url, or ${API_URL_VARIABLE} in the environment"
        )
    return value


service_options: Option = together(
    click.option(
        "--api-url",
        envvar=API_URL_VARIABLE,
        callback=_check_given,
        help=f"The base URL of the service's API. By default ${API_URL_VARIABLE}.",
    ),
    click.option(
        "--key-file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help=f"Read the API key from this file instead of from ${API_KEY_VARIABLE}.",
    ),
    json_option,
)


def opened_client(api_url: str, key_file: Path | None) -> Client:
    """Return a client, or exit with a usage error."""
    try:
        key = EnvironmentKey() if key_file is None else FileKey(key_file)
        return Client(api_url, key)
    except ApiKeyError as error:
        raise click.UsageError(str(error)) from None
    except ValueError as error:
        raise click.UsageError(str(error).replace("base_url", "--api-url")) from None


def with_client(api_url: str, key_file: Path | None, use: Callable[[Client], Awaitable[T]]) -> T:
    """Call ``use`` with a client and return its result, or exit with an error."""
    client = opened_client(api_url, key_file)

    async def use_it() -> Any:
        async with client:
            return await use(client)

    try:
        result: T = asyncio.run(use_it())
    except ApiError as error:
        details = "" if error.details is None else cut(json.dumps(error.details), _MAX_DETAILS)
        raise Nothing(f"{error} {details}".rstrip()) from None
    except ClientError as error:
        raise Nothing(with_advice(error, api_url)) from None
    return result


def with_advice(error: ClientError, api_url: str) -> str:
    """Return the text of an error; add the API's URL if that URL may be wrong."""
    is_elsewhere = isinstance(error, UnreadableAnswerError) or (
        isinstance(error, NoAnswerError) and not error.may_have_arrived
    )
    if not is_elsewhere:
        return str(error)
    url = urlsplit(api_url)
    shown = url._replace(netloc=url.netloc.rpartition("@")[2], query="", fragment="").geturl()
    return f"{error}; check that {shown} is the service's API (--api-url, ${API_URL_VARIABLE})"
