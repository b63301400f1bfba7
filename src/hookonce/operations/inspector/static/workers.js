// Keeps the list of workers up to date: the page is fetched again while it is visible.

import { byId, replaceContent } from "./page.js";

const PAUSE_MILLISECONDS = 2000;

const list = byId("workers");

function say(text, isLive) {
  const status = byId("status");
  if (status.textContent !== text) status.textContent = text;
  status.classList.toggle("on", isLive);
}

async function update() {
  const response = await fetch(list.dataset.live, { redirect: "error" });
  if (!response.ok) throw new Error(response.status);
  const page = new DOMParser().parseFromString(await response.text(), "text/html");
  for (const id of ["workers", "facts"]) replaceContent(byId(id), page.getElementById(id).innerHTML);
}

async function keepUp() {
  if (!document.hidden) {
    try {
      await update();
      say("live", true);
    } catch {
      say("not live: the server does not answer; trying again", false);
    }
  }
  setTimeout(keepUp, PAUSE_MILLISECONDS);
}

if (list) keepUp();
