// The page: six views of one index. The address selects the view, and keys work everywhere.

import { api, onKeyNeeded } from "./api.js";
import { byId, element } from "./dom.js";
import * as codebooks from "./codebooks.js";
import * as documents from "./document.js";
import * as health from "./health.js";
import * as map from "./map.js";
import * as search from "./search.js";
import * as topics from "./topics.js";
import * as training from "./training.js";

const views = { search, codebooks, map, topics, training, health };
const picker = byId("index");
let turns = 0;

// A view gets a question that says whether it is still asked for. Answers may come after another index or view was chosen.
async function show() {
  turns += 1;
  const turn = turns;
  const current = () => turn === turns;
  const name = location.hash.slice(1) in views ? location.hash.slice(1) : "search";
  for (const other of Object.keys(views)) byId(other).hidden = other !== name;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `micpq: ${name}`;
  for (const old of byId(name).querySelectorAll(".problem")) old.remove();
  try {
    await views[name].show(picker.value, current);
  } catch (problem) {
    if (problem.name === "AbortError" || !current()) return;
    byId(name).append(element("p", { class: "problem danger", role: "alert" }, problem.message));
  }
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.target.closest("input:not([type=range]), select, textarea")) return;
  const view = Object.keys(views)[Number(event.key) - 1];
  if (event.key === "/") {
    event.preventDefault();
    location.hash = "#search";
    // The hashchange event shows the section first; the focus comes after it.
    setTimeout(search.focus);
  } else if (event.key === "?") byId("help").showModal();
  else if (view) location.hash = `#${view}`;
}

// A server with keys: the page asks once and stores the key for this tab.
onKeyNeeded(() => new Promise((answer) => {
  const dialog = byId("key");
  dialog.addEventListener("close", () => answer(byId("key-value").value), { once: true });
  dialog.showModal();
}));

for (const view of [...Object.values(views), documents]) view.start();
byId("help-button").addEventListener("click", () => byId("help").showModal());
picker.addEventListener("change", show);
addEventListener("hashchange", show);
addEventListener("keydown", onKey);

try {
  const names = await api.indexes();
  picker.replaceChildren(...names.map((name) => element("option", { value: name }, name)));
  if (names.length) await show();
  else byId("status").textContent = "This server has no index yet. Create one: PUT /v1/indexes/NAME";
} catch (problem) {
  byId("status").textContent = problem.message;
  byId("status").classList.add("wrong");
}
