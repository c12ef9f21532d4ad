// The search view: results while you type, filters, "more like this", and the distance codebook by codebook.

import { api } from "./api.js";
import { byId, count, element, milliseconds } from "./dom.js";
import { openDocument } from "./document.js";

const PAGE = 20;
// Milliseconds. Long enough that a fast typist sends one request per word, short enough to feel immediate.
const PAUSE = 120;

const state = { index: null, like: null, filters: new Map(), next: null, running: null, timer: null };

export function start() {
  byId("query-form").addEventListener("submit", (event) => { event.preventDefault(); run(); });
  byId("query").addEventListener("input", () => { state.like = null; soon(); });
  byId("query").addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") { event.preventDefault(); move(0); }
    if (event.key === "Escape") { byId("query").value = ""; state.like = null; run(); }
  });
  byId("hybrid").addEventListener("input", soon);
  byId("kind").addEventListener("input", soon);
  byId("more").addEventListener("click", () => run(state.next));
  byId("hits").addEventListener("keydown", onHitKey);
}

export async function show(index) {
  if (state.index !== index) {
    state.index = index;
    state.like = null;
    state.filters.clear();
    byId("kind").value = "0";
    byId("kind-label").hidden = !(await api.knowsKinds(index));
    await showChips();
  }
  run();
}

export const focus = () => byId("query").focus();

export function moreLike(id) {
  state.like = id;
  byId("query").value = "";
  location.hash = "#search";
  run();
  focus();
}

function soon() {
  clearTimeout(state.timer);
  state.timer = setTimeout(run, PAUSE);
}

async function showChips() {
  const chips = byId("chips");
  chips.replaceChildren();
  for (const facet of await api.facets(state.index)) {
    chips.append(element("span", { class: "name" }, facet.name));
    for (const { value, documents, filter } of facet.values) {
      chips.append(element("button", {
        type: "button", class: "chip", "aria-pressed": "false",
        onclick: (event) => {
          const chosen = !state.filters.delete(filter);
          if (chosen) state.filters.set(filter, facet.name);
          event.currentTarget.setAttribute("aria-pressed", String(chosen));
          run();
        },
      }, `${value} `, element("small", {}, count(documents))));
    }
  }
}

// Values of one attribute are alternatives (OR), different attributes combine (AND).
function filter() {
  const groups = Map.groupBy([...state.filters], ([, name]) => name);
  const parts = [...groups.values()].map((group) => `(${group.map(([text]) => text).join(" OR ")})`);
  return parts.length ? parts.join(" AND ") : null;
}

async function run(after = null) {
  clearTimeout(state.timer);
  state.running?.abort();
  const request = (state.running = new AbortController());
  const text = byId("query").value.trim();
  likeLine();
  if (!text && state.like === null) {
    byId("hits").replaceChildren();
    byId("more").hidden = true;
    return say("");
  }
  try {
    const answer = await api.search(state.index, {
      text, like: state.like, filter: filter(), hybrid: Number(byId("hybrid").value), kind: Number(byId("kind").value),
      k: PAGE, after,
    }, request.signal);
    if (request !== state.running) return;
    const hits = answer.hits.map(hitItem);
    if (after) byId("hits").append(...hits);
    else byId("hits").replaceChildren(...hits);
    // The query of these hits. While someone types, the field already has another.
    byId("hits").dataset.query = text;
    state.next = answer.next;
    byId("more").hidden = !answer.next;
    const shown = byId("hits").children.length;
    say(shown === 0 ? "Nothing found." : `${count(shown)} shown in ${milliseconds(answer.seconds)}: ${answer.stages
      .map(([stage, seconds]) => `${stage} ${milliseconds(seconds)}`).join(", ")}`);
  } catch (problem) {
    if (problem.name !== "AbortError") say(problem.message, true);
  }
}

function likeLine() {
  const line = byId("like");
  line.hidden = state.like === null;
  if (state.like !== null) {
    line.replaceChildren("Like document ", element("strong", {}, String(state.like)),
      element("button", { type: "button", class: "chip", onclick: () => { state.like = null; run(); focus(); } }, "clear"));
  }
}

function say(text, wrong = false) {
  byId("status").textContent = text;
  byId("status").classList.toggle("wrong", wrong);
}

function hitItem(hit) {
  const item = element("li", { class: "hit", tabIndex: -1, "aria-label": `Document ${hit.id}` },
    element("p", {}, ...marked(hit.snippet ?? { text: hit.text ?? `document ${hit.id}`, ranges: [] })),
    distanceCells(hit.codebook_distances),
    element("div", { class: "about" },
      element("span", {}, `id ${hit.id}`),
      element("span", { title: `distance by code ${hit.distance.toFixed(3)}` }, `score ${hit.score.toFixed(3)}`),
      ...hit.labels.map((label) => element("span", {}, label)),
      ...hit.attributes.map(([name, value]) => element("span", {}, `${name}: ${value}`))),
    element("div", { class: "actions" },
      element("button", { type: "button", onclick: () => open(item, hit) }, "Open"),
      element("button", { type: "button", onclick: () => moreLike(hit.id) }, "More like this")));
  item.hit = hit;
  return item;
}

// Ranges count Unicode characters, as the server does.
function marked({ text, ranges }) {
  const characters = [...text];
  const parts = [];
  let from = 0;
  for (const [begin, end] of ranges) {
    parts.push(characters.slice(from, begin).join(""), element("mark", {}, characters.slice(begin, end).join("")));
    from = end;
  }
  parts.push(characters.slice(from).join(""));
  return parts;
}

// One cell per codebook. The smaller its distance, the more it has of the near colour.
function distanceCells(distances) {
  if (!distances?.length) return null;
  const max = Math.max(...distances, Number.MIN_VALUE);
  const far = distances.indexOf(max);
  return element("div", {
    class: "distances", role: "img",
    "aria-label": `Distances in ${distances.length} codebooks; codebook ${far + 1} has the greatest`,
  }, ...distances.map((distance, codebook) => element("span", {
    title: `codebook ${codebook + 1}: ${distance.toFixed(3)}`,
    style: `background: color-mix(in oklab, var(--near), var(--far) ${Math.round((100 * distance) / max)}%)`,
  })));
}

function open(item, hit) {
  openDocument(state.index, hit.id, {
    like: () => moreLike(hit.id),
    deleted: () => {
      const next = item.nextElementSibling ?? item.previousElementSibling;
      item.remove();
      say(`Document ${hit.id} is deleted.`);
      next ? next.focus() : focus();
    },
    closed: () => item.isConnected && item.focus(),
  });
}

function move(position) {
  const items = byId("hits").children;
  if (position < 0) return focus();
  items[Math.min(position, items.length - 1)]?.focus();
}

function onHitKey(event) {
  const item = event.target.closest(".hit");
  if (!item) return;
  const position = [...byId("hits").children].indexOf(item);
  const onItem = event.target === item;
  const act = {
    ArrowDown: () => move(position + 1), ArrowUp: () => move(position - 1),
    Enter: onItem && (() => open(item, item.hit)), m: () => moreLike(item.hit.id),
    Delete: () => open(item, item.hit), Escape: focus,
  }[event.key];
  if (act) { event.preventDefault(); act(); }
}
