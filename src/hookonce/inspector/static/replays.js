// Dead letters are replayed one after the other; leaving the page ends that.

import { byId, root } from "./page.js";

const letters = byId("letters");
let isStopped = false;

async function replay(element) {
  const outcome = element.querySelector(".outcome");
  const button = element.querySelector(".replay");
  button.disabled = true;
  outcome.className = "outcome";
  outcome.textContent = "replaying…";
  let result;
  try {
    const response = await fetch(`${root}/dead/replay`, {
      method: "POST",
      headers: { "content-type": "application/json", "x-hookonce-inspector": "1" },
      body: JSON.stringify({ id: decodeURIComponent(element.dataset.id) }),
    });
    result = await response.json();
  } catch {
    result = { ok: false, outcome: "the server did not answer" };
  }
  outcome.textContent = result.outcome;
  outcome.classList.add(result.ok ? "ok" : "bad");
  button.disabled = result.ok;
  button.hidden = result.ok;
  if (result.ok && element.matches("tr")) {
    element.classList.add("gone");
    element.querySelector("input").checked = false;
    element.querySelector("input").disabled = true;
  }
  return result.ok;
}

async function showFacts() {
  const inert = new DOMParser().parseFromString(await (await fetch(location.href)).text(), "text/html");
  byId("facts").replaceWith(document.importNode(inert.getElementById("facts"), true));
}

const picks = () => [...letters.tBodies[0].querySelectorAll("input:not(:disabled)")];
const picked = () => picks().filter((box) => box.checked);

function showPicked() {
  const count = picked().length;
  byId("replay-selected").disabled = count === 0;
  byId("replay-selected").textContent = count ? `Replay ${count} selected` : "Replay selected";
  byId("every").checked = count > 0 && count === picks().length;
}

async function replayPicked() {
  const rows = picked().map((box) => box.closest("tr"));
  let done = 0;
  let succeeded = 0;
  isStopped = false;
  byId("replay-selected").disabled = true;
  byId("stop").hidden = false;
  for (const row of rows) {
    if (isStopped) break;
    byId("progress").textContent = `${done} of ${rows.length} replayed`;
    if (await replay(row)) succeeded += 1;
    done += 1;
  }
  byId("progress").textContent = `${done} of ${rows.length} replayed, ${succeeded} handled`;
  byId("stop").hidden = true;
  showPicked();
  await showFacts();
}

for (const button of document.querySelectorAll(".replay")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    await replay(button.closest("[data-id]"));
    if (letters) showPicked();
    await showFacts();
  });
}

if (letters) {
  byId("replay-selected").hidden = false;
  byId("replay-selected").addEventListener("click", replayPicked);
  byId("stop").addEventListener("click", () => { isStopped = true; });
  byId("every").addEventListener("change", ({ target }) => {
    for (const box of picks()) box.checked = target.checked;
    showPicked();
  });
  letters.tBodies[0].addEventListener("change", showPicked);
}
