// Live updates of the list of deliveries.

import { byId, replaceContent, rowFrom } from "./page.js";

const list = byId("deliveries");
let isPaused = false;
let stream = null;

const isAnswered = (row) => !row.matches(".running");

// Inserts or replaces a row; returns whether it shows a new answer.
function insert(row) {
  const body = list.tBodies[0];
  const number = Number(row.dataset.number);
  const known = body.querySelector(`tr[data-number="${number}"]`);
  if (known) {
    const hadFocus = known.contains(document.activeElement);
    known.replaceWith(row);
    if (hadFocus) row.querySelector("a").focus();
    return isAnswered(row) && !isAnswered(known);
  }
  const rows = [...body.rows];
  if (rows.length >= Number(list.dataset.most) && number < Number(rows.at(-1).dataset.number)) return false;
  row.classList.add("new");
  body.insertBefore(row, rows.find((other) => Number(other.dataset.number) < number) ?? null);
  while (body.rows.length > Number(list.dataset.most)) body.rows[body.rows.length - 1].remove();
  return isAnswered(row);
}

function showRows(content) {
  for (const { number } of content.filter(({ html }) => !html)) {
    list.tBodies[0].querySelector(`tr[data-number="${number}"]`)?.remove();
  }
  const answered = content.filter(({ html }) => html).map(({ html }) => rowFrom(html)).filter(insert);
  byId("empty").hidden = list.tBodies[0].rows.length > 0;
  if (answered.length === 0) return;
  const failed = answered.filter((row) => row.matches(".retry, .dead, .refused")).length;
  byId("news").textContent = `${answered.length} new, ${failed} of them not accepted`;
}

function say(text, isLive) {
  const status = byId("status");
  if (status.textContent !== text) status.textContent = text;
  status.classList.toggle("on", isLive);
}

function connect() {
  const url = new URL(list.dataset.stream, location.href);
  url.searchParams.set("cursor", list.dataset.cursor);
  stream = new EventSource(url);
  stream.addEventListener("open", () => say("live", true));
  stream.addEventListener("rows", (event) => {
    list.dataset.cursor = event.lastEventId;
    showRows(JSON.parse(event.data));
  });
  stream.addEventListener("overview", (event) => {
    const { facts, charts } = JSON.parse(event.data);
    replaceContent(byId("facts"), facts);
    replaceContent(byId("charts"), charts);
  });
  stream.addEventListener("restarted", () => {
    stream.close();
    say("the server was restarted: reload the page", false);
  });
  stream.addEventListener("error", () => {
    // The browser reconnects a stream that ends, but not one that was refused.
    if (stream.readyState !== EventSource.CLOSED) return;
    say("not live: the server refused; trying again", false);
    setTimeout(() => isPaused || connect(), 5000);
  });
}

export function pause() {
  if (!list) return;
  isPaused = !isPaused;
  byId("pause").setAttribute("aria-pressed", String(isPaused));
  byId("pause").textContent = isPaused ? "Resume" : "Pause";
  if (isPaused) {
    stream.close();
    say("paused", false);
  } else {
    connect();
  }
}

if (list) {
  byId("pause").hidden = false;
  byId("pause").addEventListener("click", pause);
  connect();
  addEventListener("pagehide", () => stream.close());
  addEventListener("pageshow", (event) => event.persisted && !isPaused && connect());
}
