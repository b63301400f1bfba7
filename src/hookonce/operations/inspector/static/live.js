// The list of deliveries shows what is new while it is open.

import { byId, replaceContent, rowFrom } from "./page.js";

const list = byId("deliveries");
let isPaused = false;
let stream = null;

const isAnswered = (row) => !row.matches(".running");

// Returns whether an answer is shown that was not shown before.
function place(row) {
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
  const answered = content.filter(({ html }) => html).map(({ html }) => rowFrom(html)).filter(place);
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
  url.searchParams.set("place", list.dataset.place);
  stream = new EventSource(url);
  stream.addEventListener("open", () => say("live", true));
  stream.addEventListener("rows", (event) => {
    list.dataset.place = event.lastEventId;
    showRows(JSON.parse(event.data));
  });
  stream.addEventListener("overview", (event) => {
    const { facts, charts } = JSON.parse(event.data);
    replaceContent(byId("facts"), facts);
    replaceContent(byId("charts"), charts);
  });
  stream.addEventListener("restarted", () => {
    stream.close();
    say("the server began anew: reload the page", false);
  });
  stream.addEventListener("error", () => {
    // A stream that ends is connected again by the browser; one that was refused is not.
    if (stream.readyState !== EventSource.CLOSED) return;
    say("not live: the server refused; trying again", false);
    setTimeout(() => isPaused || connect(), 5000);
  });
}

export function pause() {
  if (!list) return;
  isPaused = !isPaused;
  byId("pause").setAttribute("aria-pressed", String(isPaused));
  byId("pause").textContent = isPaused ? "Go on" : "Pause";
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
