"""Handlers of a simulation reach the emulated service's API, with any HTTP library."""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from hookonce import Receiver
from hookonce.client import Client
from hookonce.events import CommentReceived, PostTargetPublished
from hookonce.simulation import Breach, SimulationReport, api_port, simulate
from hookonce.simulation.api_port import ApiPort
from hookonce.verification.secrets import new_secret

SECRET = new_secret()
ANSWER = "Thank you!"

costly = pytest.mark.sample(1, of="file")


def simulated(receiver: Receiver, events: int = 40, **options: Any) -> SimulationReport:
    return simulate(receiver, events=events, seed=7, store="memory://", **options)


def new_receiver() -> Receiver:
    return Receiver(secrets=SECRET, store="memory://")


def careful() -> Receiver:
    """Return a bot that answers a comment only while the comment is open."""
    receiver = new_receiver()

    @receiver.on(CommentReceived, name="answer")
    async def answer(event: CommentReceived) -> None:
        async with Client() as client:
            channels = [event.data.channel_id]
            async for one in client.comments.list(status="open", channels=channels):
                if one.id == event.data.id:
                    await client.comments.reply(one.id, ANSWER)

    return receiver


def urllib_request(path: str, body: object = None) -> Any:
    request = urllib.request.Request(
        os.environ["HOOKONCE_API_URL"] + path,
        data=None if body is None else json.dumps(body).encode(),
        headers={"x-api-key": os.environ["HOOKONCE_API_KEY"], "content-type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)["data"]


@costly
@pytest.mark.costs("4 s")
def test_a_bot_that_looks_before_it_answers_passes_and_its_replies_are_counted() -> None:
    report = simulated(careful())
    assert report.passed, report.findings[:3]
    assert report.replies == report.handled > 0
    assert report.api_requests > report.replies
    again = simulated(careful())
    assert again == replace(report, hours=again.hours)


@costly
@pytest.mark.costs("3 s")
def test_a_comment_that_is_answered_twice_is_found() -> None:
    receiver = new_receiver()

    @receiver.on(CommentReceived, name="answer")
    async def answer(event: CommentReceived) -> None:
        async with Client() as client:
            await client.comments.reply(event.data.id, ANSWER)

    report = simulated(receiver)
    assert {finding.breach for finding in report.findings} == {Breach.REPLIED_TWICE}
    assert report.replies > report.handled
    story = "\n".join(report.findings[0].story)
    assert story.count("the service accepted a reply to cmt_") > 1
    assert "fails_after" in story
    assert ANSWER not in story
    assert simulated(receiver, chaos=0).passed


@costly
def test_a_handler_in_a_thread_and_another_library_reach_the_api() -> None:
    receiver, workspaces = new_receiver(), set()

    @receiver.on(CommentReceived, name="plain")
    def plain(event: CommentReceived) -> None:
        workspaces.add(urllib_request("/v1/me")["workspace"]["id"])
        urllib_request(f"/v1/comments/{event.data.id}/reply", {"text": ANSWER})

    @receiver.on(CommentReceived, name="async")
    async def read(event: CommentReceived) -> None:
        url, key = os.environ["HOOKONCE_API_URL"], os.environ["HOOKONCE_API_KEY"]
        headers = {"authorization": f"Bearer {key}"}
        async with httpx2.AsyncClient(base_url=url, headers=headers, trust_env=False) as client:
            found = await client.get("/v1/comments", params={"q": event.data.text, "limit": "100"})
            assert event.data.id in {one["id"] for one in found.json()["data"]}

    report = simulated(receiver, chaos=0)
    assert report.passed, report.findings[:3]
    assert report.replies == report.handled
    assert len(workspaces) == 1


def test_events_that_a_call_of_the_api_causes_are_judged_too() -> None:
    receiver, published = new_receiver(), set()
    on_bluesky = {"channelId": "ch_6Py3sFgN"}  # posts on this channel need no media

    @receiver.on(CommentReceived, name="post")
    def post(_: CommentReceived) -> None:
        urllib_request("/v1/posts", {"caption": "Rye.", "targets": [on_bluesky], "mode": "now"})

    @receiver.on(PostTargetPublished, name="note")
    def note(event: PostTargetPublished) -> None:
        published.add(event.id)

    report = simulated(receiver, events=20, chaos=0)
    assert report.passed, report.findings[:3]
    assert report.events > 20
    assert len(published) > report.events - 20


def test_with_its_own_number_of_channels_a_comment_can_be_answered() -> None:
    assert simulated(careful(), events=10, chaos=0, channels=2).replies


def test_blocking_code_in_the_event_loop_gets_an_error_that_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(api_port, "_LOOP_SECONDS", 0.1)
    receiver, errors = new_receiver(), []

    @receiver.on(CommentReceived, name="blocks")
    async def blocks(_: CommentReceived) -> None:
        try:
            urllib_request("/v1/me")
        except urllib.error.HTTPError as error:
            errors.append(json.load(error)["error"])

    simulated(receiver, events=1, chaos=0)
    assert errors[0]["code"] == "simulation.loop_blocked"
    assert "make the handler a plain function" in errors[0]["message"]


def test_the_environment_is_restored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOKONCE_API_URL", "https://api.example.com")
    monkeypatch.delenv("HOOKONCE_API_KEY", raising=False)
    with ApiPort():
        assert os.environ["HOOKONCE_API_URL"].startswith("http://127.0.0.1:")
        assert os.environ["HOOKONCE_API_KEY"].startswith("example_sk_")
    assert os.environ["HOOKONCE_API_URL"] == "https://api.example.com"
    assert "HOOKONCE_API_KEY" not in os.environ


@pytest.fixture
def connection() -> Iterator[http.client.HTTPConnection]:
    with ApiPort():
        host = os.environ["HOOKONCE_API_URL"].removeprefix("http://")
        connection = http.client.HTTPConnection(host)
        yield connection
        connection.close()


def test_without_a_simulation_the_port_says_so(connection: http.client.HTTPConnection) -> None:
    connection.request("GET", "/v1/me")
    answer = connection.getresponse()
    assert answer.status == 503
    assert json.load(answer)["error"]["code"] == "simulation.not_running"


def test_a_body_without_a_length_is_refused(connection: http.client.HTTPConnection) -> None:
    connection.putrequest("POST", "/v1/posts")
    connection.putheader("transfer-encoding", "chunked")
    connection.endheaders()  # the server answers and closes before it reads the body
    assert connection.getresponse().status == 411
