// Shared by the other scripts. The server has escaped all markup that arrives.

export const root = document.documentElement.dataset.root;
export const byId = (id) => document.getElementById(id);

const parsed = (html) => new DOMParser().parseFromString(html, "text/html");

export function replaceContent(element, html) {
  element?.replaceChildren(...document.importNode(parsed(html).body, true).childNodes);
}

// The parser drops a row that is not within a table.
export function rowFrom(html) {
  const inert = parsed(`<table><tbody>${html}</tbody></table>`);
  return document.importNode(inert.querySelector("tr"), true);
}

// Empty fields are left out of the URL.
export const filters = byId("filters");
const fields = () => filters?.querySelectorAll("input, select") ?? [];
filters?.addEventListener("submit", () => {
  for (const field of fields()) field.disabled = field.value === "";
});
for (const choice of filters?.querySelectorAll("select") ?? []) {
  choice.addEventListener("change", () => filters.requestSubmit());
}
addEventListener("pageshow", () => {
  for (const field of fields()) field.disabled = false;
});
