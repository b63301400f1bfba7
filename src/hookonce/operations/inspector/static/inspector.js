// Keyboard shortcuts, as listed at the foot of each page.

import { byId, filters, root } from "./page.js";
import { pause } from "./live.js";
import "./workers.js";
import { actOnSelected, selectAll } from "./actions.js";

const toggle = byId("shortcuts");
let hasShortcuts = localStorage.getItem("hookonce-shortcuts") !== "off";
let isGoing = false;

function showShortcuts() {
  toggle.setAttribute("aria-pressed", String(hasShortcuts));
  toggle.textContent = hasShortcuts ? "Shortcuts on" : "Shortcuts off";
}

if (toggle) {
  toggle.hidden = false;
  showShortcuts();
  toggle.addEventListener("click", () => {
    hasShortcuts = !hasShortcuts;
    localStorage.setItem("hookonce-shortcuts", hasShortcuts ? "on" : "off");
    showShortcuts();
  });
}

function step(by) {
  const links = [...document.querySelectorAll("tbody tr a")];
  const now = links.findIndex((link) => link.closest("tr").contains(document.activeElement));
  const next = links[now < 0 ? 0 : Math.max(0, Math.min(links.length - 1, now + by))];
  next?.focus();
  next?.scrollIntoView({ block: "nearest" });
}

const focusedRow = () => document.activeElement.closest("tbody tr");

const keys = {
  j: () => step(1),
  k: () => step(-1),
  u: () => byId("back")?.click(),
  "/": () => filters?.querySelector("input")?.focus(),
  p: pause,
  x: () => focusedRow()?.querySelector("input[type=checkbox]")?.click(),
  r: () => (focusedRow() ?? byId("dead-letter"))?.querySelector(".act[data-act=replay], .act[data-act=retry]")?.click(),
  d: () => (focusedRow() ?? byId("dead-letter"))?.querySelector(".act[data-act=discard]")?.click(),
  a: selectAll,
  R: () => actOnSelected("replay"),
  g: () => { isGoing = true; },
};
const places = { l: "/", d: "/dead", i: "/inbox", h: "/handled", w: "/workers" };

addEventListener("keydown", (event) => {
  if (!toggle || !hasShortcuts || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === "Escape" && event.target.matches("input, select")) event.target.blur();
  if (event.target.matches("input:not([type=checkbox]), select, textarea")) return;
  if (isGoing) {
    isGoing = false;
    if (event.key in places) location.assign(root + places[event.key]);
    return;
  }
  if (!Object.hasOwn(keys, event.key)) return;
  event.preventDefault();
  keys[event.key]();
});
