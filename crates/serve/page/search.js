// The search view: results while you type, filters, "more like this", and the distance codebook by codebook.

import { api } from "./api.js";
import { byId, count, element, milliseconds } from "./dom.js";
import { openDocument } from "./document.js";

const PAGE = 20;
// Milliseconds. Long enough that a fast typist sends one request per word, short enough to feel immediate.
const PAUSE = 120;

const state = { index: null, like: null, area: null, filters: new Map(), next: null, running: null, timer: null, hits: [] };

export function start() {
  byId("query-form").addEventListener("submit", (event) => { event.preventDefault(); run(); });
  byId("query").addEventListener("input", () => { state.like = null; soon(); });
  byId("query").addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown") { event.preventDefault(); move(0); }
    if (event.key === "Escape") { byId("query").value = ""; state.like = null; run(); }
  });
  byId("hybrid").addEventListener("input", soon);
  byId("kind").addEventListener("input", soon);
  byId("more").addEventListener("click", () => { if (state.next) run(state.next); });
  byId("hits").addEventListener("keydown", onHitKey);
}

export async function show(index) {
  if (state.index !== index) {
    use(index);
    try {
      const [knowsKinds, facets] = await Promise.all([api.knowsKinds(index), api.facets(index)]);
      // Another index was chosen meanwhile; its own answer is under way.
      if (state.index !== index) return;
      byId("kind-label").hidden = !knowsKinds;
      showChips(facets);
    } catch (problem) {
      // Asked again when the view is shown again.
      if (state.index === index) state.index = null;
      throw problem;
    }
  }
  run();
}

// Nothing of another index stays: neither its hits nor what they were asked with.
function use(index) {
  Object.assign(state, { index, like: null, area: null, next: null, hits: [] });
  state.running?.abort();
  state.filters.clear();
  byId("kind").value = "0";
  byId("kind-label").hidden = true;
  byId("chips").replaceChildren();
  byId("hits").replaceChildren();
  byId("more").hidden = true;
}

// The ids of the hits that are shown of an index.
export const shownHits = (index) => (state.index === index ? state.hits : []);

// Searches only inside an area of the map.
export function searchWithin(index, area, documents) {
  if (state.index !== index) return;
  state.area = { ...area, documents };
  location.hash = "#search";
  run();
  focus();
}

// Searches only documents that match a filter, and shows it as a chip.
export function searchFiltered(index, name, filter, text) {
  if (state.index !== index) return;
  state.filters.set(filter, name);
  if (![...byId("chips").children].some((chip) => chip.dataset.filter === filter)) byId("chips").append(chipOf(name, filter, text, null));
  for (const chip of byId("chips").children) if (chip.dataset.filter === filter) chip.setAttribute("aria-pressed", "true");
  location.hash = "#search";
  run();
  focus();
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
  state.next = null;
  clearTimeout(state.timer);
  state.timer = setTimeout(run, PAUSE);
}

function showChips(facets) {
  byId("chips").replaceChildren(...facets.flatMap((facet) => [
    element("span", { class: "name" }, facet.name),
    ...facet.values.map(({ value, documents, filter }) => chipOf(facet.name, filter, value, documents)),
  ]));
}

function chipOf(name, filter, value, documents) {
  const chip = element("button", {
    type: "button", class: "chip", "aria-pressed": String(state.filters.has(filter)),
    onclick: (event) => {
      const chosen = !state.filters.delete(filter);
      if (chosen) state.filters.set(filter, name);
      event.currentTarget.setAttribute("aria-pressed", String(chosen));
      run();
    },
  }, `${value} `, documents === null ? null : element("small", {}, count(documents)));
  chip.dataset.filter = filter;
  return chip;
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
  // The next page of the hits that are shown is not that of the query that is asked now.
  state.next = null;
  const text = byId("query").value.trim();
  likeLine();
  areaLine();
  if (!text && state.like === null) {
    state.hits = [];
    byId("hits").replaceChildren();
    byId("more").hidden = true;
    return say("");
  }
  try {
    const answer = await api.search(state.index, {
      text, like: state.like, filter: filter(), hybrid: Number(byId("hybrid").value), kind: Number(byId("kind").value),
      area: state.area && { map: state.area.map, polygon: state.area.polygon }, k: PAGE, after,
    }, request.signal);
    if (request !== state.running) return;
    const hits = answer.hits.map(hitItem);
    state.hits = [...(after ? state.hits : []), ...answer.hits.map((hit) => hit.id)];
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
    if (problem.name === "AbortError" || request !== state.running) return;
    state.next = after;
    byId("more").hidden = !after;
    say(problem.message, true);
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

function areaLine() {
  const line = byId("area");
  line.hidden = state.area === null;
  if (state.area === null) return;
  line.replaceChildren(`Only in an area of the map with ${count(state.area.documents)} documents`,
    element("button", { type: "button", class: "chip", onclick: () => { state.area = null; run(); focus(); } }, "clear"));
}

function say(text, wrong = false) {
  byId("status").textContent = text;
  byId("status").classList.toggle("wrong", wrong);
}

function hitItem(hit) {
  const item = element("li", { class: "hit", tabIndex: -1, "aria-label": `Document ${hit.id}` },
    element("p", {}, ...marked(hit.snippet ?? { text: hit.text ?? `document ${hit.id}`, ranges: [] })),
    distanceCells(hit.codebook_distances),
    sharedTerms(hit.shared),
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

// What the codewords stand for that the hit has in common with the query; a term counts by the codewords that have it.
function sharedTerms(shared) {
  if (!shared?.length) return null;
  const counts = new Map();
  for (const { terms } of shared) for (const term of terms) counts.set(term, (counts.get(term) ?? 0) + 1);
  const best = [...counts].sort((a, b) => b[1] - a[1]).slice(0, 8).map(([term]) => term);
  const common = `${shared.length} of its codewords are the query's`;
  return element("p", { class: "shared" }, best.length ? `${common}; they stand for ${best.join(", ")}` : common);
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
