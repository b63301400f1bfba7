"""The reference library in Node, installed once, and a Node server that verifies with it."""

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from .needs import missing, needed
from .waiting import PATIENCE_SECONDS

__all__ = ["installed_modules", "node_program", "verifying_server"]

# The server's arguments are secrets. It answers 204 if a request verifies with any of them, else
# 401. The answer's header x-verified has a digit for each secret. The server first prints its port.
SERVER = """
const { createServer } = require("node:http");
const { Webhook, WebhookVerificationError } = require("standardwebhooks");
const webhooks = process.argv.slice(1).map((secret) => new Webhook(secret));
const verifies = (webhook, body, headers) => {
  try {
    const payload = webhook.verify(body, headers);
    return payload.id === headers["webhook-id"];
  } catch (error) {
    if (error instanceof WebhookVerificationError) return false;
    throw error;
  }
};
const server = createServer((request, response) => {
  const chunks = [];
  request.on("data", (chunk) => chunks.push(chunk));
  request.on("end", () => {
    const body = Buffer.concat(chunks).toString("utf8");
    const verified = webhooks.map((webhook) => verifies(webhook, body, request.headers));
    const status = verified.includes(true) ? 204 : 401;
    process.stdout.write(`${status} ${verified.map(Number).join("")}\\n`);
    response.writeHead(status).end();
  });
});
server.listen(0, "127.0.0.1", () => process.stdout.write(`${server.address().port}\\n`));
"""


_ELSEWHERE = "HOOKONCE_NODE_MODULES=… names a folder that has standardwebhooks"


def node_program() -> str:
    """Return the path of Node."""
    return needed("node", package="nodejs")


def installed_modules(folder: Path) -> str:
    """Return the NODE_PATH of the reference library; npm installs the library if it is missing."""
    there = os.environ.get("HOOKONCE_NODE_MODULES")
    if there:
        return there
    npm = needed("npm", package="npm")
    (folder / "package.json").write_text("{}")
    flags = ["--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock"]
    flags += ["--fetch-retries=1", "--fetch-retry-mintimeout=1000"]
    if not os.access(Path.home(), os.W_OK):  # npm keeps its downloads in the home folder
        flags.append(f"--cache={folder / 'cache'}")
    try:
        done = subprocess.run(
            [npm, "install", *flags, "standardwebhooks@1"],
            cwd=folder,
            capture_output=True,
            timeout=60,
            check=False,
        )
    except subprocess.TimeoutExpired:
        missing("npm install standardwebhooks took more than a minute", _ELSEWHERE)
    if done.returncode != 0:
        error = done.stderr.decode()[-500:].replace("\n", " ")
        missing(f"npm install standardwebhooks failed: {error}", _ELSEWHERE)
    return str(folder / "node_modules")


class Verifications:
    """The server's verdicts, request by request.

    Attributes:
        url: the URL at which the server receives.

    """

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}/webhooks"
        self._process = process

    async def next(self) -> tuple[int, list[bool]]:
        """Return the status of the next request, and for each secret whether it matched."""
        status, verified = (await line_of(self._process)).split()
        return int(status), [digit == "1" for digit in verified]


async def line_of(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(PATIENCE_SECONDS):
        return (await process.stdout.readline()).decode()


@asynccontextmanager
async def verifying_server(modules: str, secrets: Sequence[str]) -> AsyncIterator[Verifications]:
    """Run a server in Node that knows these secrets, until the block ends."""
    node = node_program()
    process = await asyncio.create_subprocess_exec(
        *(node, "-e", SERVER, "--", *secrets),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "NODE_PATH": modules},
    )
    try:
        yield Verifications(process, int(await line_of(process)))
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
