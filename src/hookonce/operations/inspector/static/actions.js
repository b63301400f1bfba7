// Replay, discard and retry. Selected rows are handled one after the other, until the page is left.

import { byId, root } from "./page.js";

const picking = byId("dead-letters");
const paths = { replay: "/dead/replay", discard: "/dead/discard", retry: "/inbox/retry" };
const words = { replay: "replayed", discard: "discarded" };
let isStopped = false;

async function act(name, element) {
  const outcome = element.querySelector(".outcome");
  const buttons = [...element.querySelectorAll(".act")];
  for (const button of buttons) button.disabled = true;
  outcome.className = "outcome";
  outcome.textContent = "…";
  let result;
  try {
    const response = await fetch(root + paths[name], {
      method: "POST",
      headers: { "content-type": "application/json" },
      body: JSON.stringify({ id: decodeURIComponent(element.dataset.id) }),
    });
    const text = await response.text();
    // A line of plain text: the session is over, or the Origin was refused.
    const isJson = response.headers.get("content-type") === "application/json";
    result = isJson ? JSON.parse(text) : { ok: false, outcome: text };
  } catch {
    result = { ok: false, outcome: "the server did not answer" };
  }
  outcome.textContent = result.outcome;
  outcome.classList.add(result.ok ? "ok" : "bad");
  for (const button of buttons) {
    button.disabled = false;
    button.hidden = result.ok;
  }
  const box = element.querySelector("input[type=checkbox]");
  if (result.ok && box) {
    element.classList.add("gone");
    box.checked = false;
    box.disabled = true;
  }
  return result.ok;
}

async function showFacts() {
  const inert = new DOMParser().parseFromString(await (await fetch(location.href)).text(), "text/html");
  byId("facts").replaceWith(document.importNode(inert.getElementById("facts"), true));
}

// Discarding cannot be undone, so its button must be pressed twice.
function isConfirmed(button) {
  if (button.dataset.act !== "discard" || button.dataset.sure) return true;
  const text = button.textContent;
  button.dataset.sure = "1";
  button.textContent = "Discard for good?";
  setTimeout(() => {
    delete button.dataset.sure;
    button.textContent = text;
  }, 4000);
  return false;
}

const picks = () => [...picking.tBodies[0].querySelectorAll("input:not(:disabled)")];
const picked = () => picks().filter((box) => box.checked);
const many = () => [...document.querySelectorAll(".act-selected")];

function showPicked() {
  const count = picked().length;
  for (const button of many()) {
    button.disabled = count === 0;
    const word = button.dataset.act === "replay" ? "Replay" : "Discard";
    button.textContent = count ? `${word} ${count} selected` : `${word} selected`;
  }
  byId("every").checked = count > 0 && count === picks().length;
}

export async function actOnSelected(name) {
  if (!picking || picked().length === 0) return;
  const rows = picked().map((box) => box.closest("tr"));
  let done = 0;
  let succeeded = 0;
  isStopped = false;
  for (const button of many()) button.disabled = true;
  byId("stop").hidden = false;
  for (const row of rows) {
    if (isStopped) break;
    byId("progress").textContent = `${done} of ${rows.length} ${words[name]}`;
    if (await act(name, row)) succeeded += 1;
    done += 1;
  }
  const result = name === "replay" ? "handled" : "gone";
  byId("progress").textContent = `${done} of ${rows.length} ${words[name]}, ${succeeded} ${result}`;
  byId("stop").hidden = true;
  showPicked();
  await showFacts();
}

export function selectAll() {
  byId("every")?.click();
}

for (const button of document.querySelectorAll(".act")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    if (!isConfirmed(button)) return;
    await act(button.dataset.act, button.closest("[data-id]"));
    if (picking) showPicked();
    await showFacts();
  });
}

if (picking) {
  for (const button of many()) {
    button.hidden = false;
    button.addEventListener("click", () => isConfirmed(button) && actOnSelected(button.dataset.act));
  }
  byId("stop").addEventListener("click", () => { isStopped = true; });
  byId("every").addEventListener("change", ({ target }) => {
    for (const box of picks()) box.checked = target.checked;
    showPicked();
  });
  picking.tBodies[0].addEventListener("change", showPicked);
}
