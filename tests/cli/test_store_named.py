"""An argument, a file or the environment names a store, so no password has to be visible."""

import json
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.asyncio.sentinel import Sentinel
from support.redis_servers import redis_server

from hookonce.stores.redis import RedisStore

from .dead_letters import APP, COMMENT, MESSAGE, bury, replay
from .running import SECRET, invoke, run

pytestmark = pytest.mark.sample(2, of="file")

IDS = {"evt_message", "evt_comment"}


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Return the URL of a store with two dead letters."""
    return bury(tmp_path, MESSAGE, COMMENT)


@pytest.fixture
def file(tmp_path: Path, url: str) -> str:
    """Return the path of a file that names the store, as a mounted secret does."""
    path = tmp_path / "store"
    path.write_text(f"{url}\n")
    return str(path)


def test_a_file_or_the_environment_names_the_store_of_every_command_that_takes_one(
    url: str, file: str
) -> None:
    for words in (
        ["dead", "list"],
        ["dead", "show", "evt_comment"],
        ["dead", "discard", "evt_missing"],
        ["inbox", "stats"],
        ["inbox", "workers"],
        ["inbox", "list"],
        ["inbox", "retry", "evt_missing"],
        ["inbox", "show", "evt_missing"],
        ["inbox", "prune"],
    ):
        expected = invoke(*words[:2], url, *words[2:])
        assert invoke(*words, "--store-file", file) == expected
        assert invoke(*words, environment={"HOOKONCE_STORE": url}) == expected


def test_an_argument_goes_before_the_environment(url: str, tmp_path: Path) -> None:
    elsewhere = {"HOOKONCE_STORE": f"sqlite:///{tmp_path / 'missing.db'}"}
    shown = invoke("dead", "list", url, "--json", environment=elsewhere).output
    assert {json.loads(line)["id"] for line in shown.splitlines()} == IDS
    assert invoke("dead", "show", url, "evt_comment", environment=elsewhere).status == 0


def test_a_file_goes_before_the_environment_and_leaves_every_argument_to_ids(
    file: str, tmp_path: Path
) -> None:
    elsewhere = {"HOOKONCE_STORE": f"sqlite:///{tmp_path / 'missing.db'}"}
    result = invoke("dead", "show", "odd://id", "--store-file", file, environment=elsewhere)
    result.says("there is no dead letter 'odd://id'")


def test_several_ids_follow_a_store_that_is_not_among_the_arguments(file: str) -> None:
    result = invoke("dead", "discard", *sorted(IDS), "--store-file", file)
    assert (result.status, result.errors) == (0, "")
    assert invoke("dead", "list", "--store-file", file).output == "no dead letters\n"


@pytest.mark.parametrize("words", [["dead", "list"], ["inbox", "retry", "--all"]])
def test_without_a_store_the_error_lists_the_three_ways_to_name_one(words: list[str]) -> None:
    invoke(*words, environment={"HOOKONCE_STORE": ""}).says(
        "name the store: STORE_URL, MODULE:RECEIVER, --store-file, or $HOOKONCE_STORE", status=2
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["dead", "list", "evt_1"], "'evt_1' is one argument too many"),
        (["dead", "show"], "name one event by its id, not 0"),
        (["inbox", "show", "evt_1", "evt_2"], "name one event by its id, not 2"),
    ],
)
def test_too_many_or_too_few_arguments_are_a_usage_error(
    words: list[str], message: str, file: str
) -> None:
    invoke(*words, "--store-file", file).says(message, status=2)


@pytest.mark.parametrize("content", [b"", b"\xff", b"redis://:opensesame@a redis://:opensesame@b"])
def test_a_file_that_does_not_hold_one_url_is_refused_and_not_quoted(
    content: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "store"
    path.write_bytes(content)
    result = invoke("dead", "list", "--store-file", str(path))
    result.says("has to hold the URL of a store, and nothing else")
    assert "opensesame" not in result.errors


@pytest.mark.parametrize("command", ["demo", "chaos hooks:receiver"])
def test_trial_commands_take_a_store_from_a_file_but_not_from_the_environment(
    command: str, tmp_path: Path
) -> None:
    (tmp_path / "hooks.py").write_text(APP)
    (tmp_path / "store").write_text("redis://:opensesame@127.0.0.1:1")
    named = [*command.split(), "--store-file", "store"]
    result = run(*named, here=tmp_path, secrets=[SECRET])
    result.says("the Redis store cannot be opened")
    assert "opensesame" not in result.errors
    environment = {"HOOKONCE_STORE": "redis://:opensesame@127.0.0.1:1"}
    events = ["--events", "5"] if "chaos" in command else []
    arguments = [*command.split(), *events]
    assert run(*arguments, here=tmp_path, secrets=[SECRET], environment=environment).status == 0


def test_a_password_in_the_environment_opens_redis(tmp_path: Path) -> None:
    with redis_server() as redis, redis.client() as client:
        client.config_set("requirepass", "opensesame")
        environment = {"HOOKONCE_STORE": redis.url.replace("//", "//:opensesame@")}
        shown = run("inbox", "stats", here=tmp_path, environment=environment)
    assert shown.status == 0, shown
    assert "opensesame" not in shown.output + shown.errors


def test_a_store_named_twice_is_refused(file: str) -> None:
    result = invoke("demo", "--store", "memory://", "--store-file", file)
    result.says("name the store by --store or by --store-file", status=2)


def test_every_command_says_which_store_it_uses(url: str, tmp_path: Path) -> None:
    assert invoke("dead", "list", url).stores == (url,)
    assert invoke("inbox", "stats", environment={"HOOKONCE_STORE": url}).stores == (url,)
    (tmp_path / "hooks.py").write_text(APP)
    assert replay(tmp_path, "--all").stores == (url,)


@pytest.mark.parametrize("selection", ["--all", "evt_comment"])
def test_a_replay_without_the_services_settings_creates_no_store(
    selection: str, tmp_path: Path
) -> None:
    (tmp_path / "hooks.py").write_text(
        APP.replace(
            '"sqlite:///hookonce.db"', 'os.environ.get("SHOP_STORE", "sqlite:///new.db")'
        ).replace("from pathlib", "import os\nfrom pathlib")
    )
    result = replay(tmp_path, selection)
    result.says(f"there is no file '{tmp_path / 'new.db'}'", "the service's settings", status=2)
    assert result.stores == (f"sqlite:///{tmp_path / 'new.db'}",)
    assert not (tmp_path / "new.db").exists()


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("redis://user:opensesame@127.0.0.1:6390/2", "redis://127.0.0.1:6390/2 (prefix hookonce)"),
        (
            "rediss+sentinel://:opensesame@one:1,two:2/main?prefix=shop&sentinel_password=hush",
            "rediss+sentinel://one:1,two:2/main (prefix shop)",
        ),
        (
            "unix:///run/valkey.sock?password=opensesame",
            "unix:///run/valkey.sock (prefix hookonce)",
        ),
    ],
)
def test_the_name_of_a_redis_store_shows_no_password(url: str, name: str) -> None:
    assert str(RedisStore(url)) == name


@pytest.mark.parametrize(
    ("client", "name"),
    [
        (Redis(host="cache", port=6390, db=2, password="opensesame"), "redis://cache:6390/2"),
        (Redis(unix_socket_path="/run/valkey.sock"), "unix:///run/valkey.sock"),
        (
            Sentinel([("one", 1), ("two", 2)]).master_for("main"),  # type: ignore[no-untyped-call]
            "redis+sentinel://one:1,two:2/main",
        ),
    ],
)
def test_a_store_on_a_client_has_the_name_of_its_servers(client: Redis, name: str) -> None:
    assert str(RedisStore(client)) == f"{name} (prefix hookonce)"
