// Replaces the part of a page that changes, as the server sends it. Without this script every page still works: reload it.
"use strict";
const main = document.querySelector("main[data-live]");
const state = document.querySelector("[data-live-state]");

function focusables(root) {
  return [...root.querySelectorAll("a, button, summary, input, [tabindex='0']")];
}

// What was opened, scrolled or focused stays so.
function replace(target, html) {
  const active = target.contains(document.activeElement) ? focusables(target).indexOf(document.activeElement) : -1;
  const open = [...target.querySelectorAll("details")].map((each) => each.open);
  const left = [...target.querySelectorAll(".wide")].map((each) => each.scrollLeft);
  const parsed = new DOMParser().parseFromString(html, "text/html");
  target.replaceChildren(...parsed.body.childNodes);
  target.querySelectorAll("details").forEach((each, n) => { if (n < open.length) each.open = open[n]; });
  target.querySelectorAll(".wide").forEach((each, n) => { each.scrollLeft = left[n] || 0; });
  if (active >= 0) focusables(target)[active]?.focus({ preventScroll: true });
}

function show(text, lost) {
  if (state && state.textContent !== text) state.textContent = text;
  state?.classList.toggle("lost", lost);
}

function connect(target) {
  const source = new EventSource(main.dataset.live);
  source.addEventListener("part", (event) => { replace(target, JSON.parse(event.data)); show("live", false); });
  source.addEventListener("open", () => show("live", false));
  source.addEventListener("error", () => show("not connected, trying again", true));
  return source;
}

// A browser allows six connections to a server: a tab that nobody sees must not keep one.
if (main) {
  const target = document.getElementById("live");
  let source = document.hidden ? null : connect(target);
  const disconnect = () => { source?.close(); source = null; };
  addEventListener("pagehide", disconnect);
  addEventListener("pageshow", () => { source ??= document.hidden ? null : connect(target); });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) disconnect(); else source ??= connect(target);
  });
}

// A text area sends its form by Ctrl+Enter.
document.querySelectorAll("textarea").forEach((area) => area.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) area.form.requestSubmit();
}));
document.addEventListener("submit", (event) => {
  const question = event.target.dataset.confirm;
  if (question && !confirm(question)) event.preventDefault();
});
