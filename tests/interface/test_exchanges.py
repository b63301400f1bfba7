"""The emulator's answers match the exchanges, which were written by hand from the interface."""

import re
from base64 import b64decode
from typing import Any

import httpx2
import pytest
from support.exchanges import NOON, SOME_TEXT, Exchange, Script, scripts, workspace_file
from support.service_api import calling

from hookonce.emulator import EmulatedService, VirtualClock, WorkspaceData

pytestmark = pytest.mark.anyio


class Conversation:
    """Runs the exchanges of a script in order; remembers ids and other values of the service.

    Attributes:
        own: what the script writes for such a value, and what the service has made of it.

    """

    def __init__(self, service: EmulatedService, api: httpx2.AsyncClient) -> None:
        self._service = service
        self._api = api
        self.own: dict[str, str] = {}

    async def hold(self, exchange: Exchange) -> None:
        """Send the request, and check the answer."""
        for name, value in exchange.before.items():
            if name == "seconds":
                await self._service.advance(seconds=value)
            else:
                await self._happen(name, value)
        request = self._filled(exchange.request)
        sent = self._api.build_request(
            request["method"],
            request.get("url") or request["path"],
            params=request.get("query"),
            headers=request.get("headers"),
            json=request.get("json"),
            content=body_of(request),
        )
        if "url" in request:
            del sent.headers["authorization"]  # a URL of the storage, which must not get the key
        response = await self._api.send(sent)
        expected = exchange.response
        assert response.status_code == expected["status"], response.text
        for name, value in expected.get("headers", {}).items():
            assert response.headers[name] == value
        if "json" in expected:
            answer = response.json()
            for place in exchange.varies:
                self._learn(expected["json"], answer, place)
            assert_same(answer, self._filled(expected["json"]), "")

    async def _happen(self, name: str, arguments: Any) -> None:
        owner: Any = self._service
        for part in name.split("."):
            owner = getattr(owner, part)
        result = owner(**arguments)
        if hasattr(result, "__await__"):
            await result

    def _learn(self, expected: Any, answer: Any, place: str) -> None:
        for part in place.split("."):
            key: Any = int(part) if part.isdecimal() else part
            expected, answer = expected[key], answer[key]
        assert type(answer) is type(expected), f"{place} is {answer!r}"
        self.own[str(expected)] = str(answer)

    def _filled(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self._filled(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self._filled(one) for one in value]
        if isinstance(value, str) and self.own:
            written = sorted(map(re.escape, self.own), key=len, reverse=True)
            return re.sub("|".join(written), lambda found: self.own[found[0]], value)
        return value


def body_of(request: dict[str, Any]) -> bytes | None:
    if "base64" in request:
        return b64decode(request["base64"])
    return request["text"].encode() if "text" in request else None


def assert_same(answer: Any, expected: Any, place: str) -> None:
    """Fail unless an answer equals the expected one, field by field."""
    if expected == SOME_TEXT:
        assert isinstance(answer, str), place
        assert answer, place
    elif isinstance(expected, dict):
        assert isinstance(answer, dict), place
        may_be_more = {"hint", "details"} if place == ".error" else set()
        assert set(answer) - may_be_more == set(expected) - may_be_more, place
        for name, value in expected.items():
            assert_same(answer[name], value, f"{place}.{name}")
    elif isinstance(expected, list):
        assert isinstance(answer, list), place
        assert len(answer) == len(expected), f"{place}: {answer}"
        for number, value in enumerate(expected):
            assert_same(answer[number], value, f"{place}.{number}")
    else:
        assert answer == expected, place
        assert type(answer) is type(expected), place


@pytest.mark.parametrize("script", scripts(), ids=lambda script: script.name)
async def test_the_emulator_answers_as_the_exchanges_say(script: Script) -> None:
    data = WorkspaceData.load(workspace_file(script.workspace))
    async with (
        EmulatedService(data=data, clock=VirtualClock(NOON), seed=1) as service,
        calling(service, service.new_key(script.role, name="exchanges")) as api,
    ):
        conversation = Conversation(service, api)
        for exchange in script.exchanges:
            try:
                await conversation.hold(exchange)
            except AssertionError as error:
                error.add_note(f"{script.name}: {exchange.line}")
                raise


def test_every_exchange_names_a_line_once() -> None:
    for script in scripts():
        lines = [exchange.line for exchange in script.exchanges]
        assert len(lines) == len(set(lines)), script.name
