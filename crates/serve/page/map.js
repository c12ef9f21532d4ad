// The map of an index: made by the server, drawn here.

import { api } from "./api.js";
import { byId, count, element } from "./dom.js";
import { openDocument } from "./document.js";
import { runJob } from "./jobs.js";
import { moreLike, searchWithin, shownHits } from "./search.js";
import { MapView, readMap } from "./view.js";

// A smaller index gets its map unasked.
const SMALL = 100_000;

const shown = { index: null, map: null, view: null };

export const start = () => {};

export async function show(index, current) {
  const about = await api.map(index);
  if (!current()) return;
  if (about === null) {
    forget();
    const documents = await api.documents(index);
    if (!current()) return;
    if (documents === 0) return note("The index has no documents to put on a map.");
    if (documents <= SMALL) return make(index, current);
    note(`This index has no map yet. ${count(documents)} documents take a while.`);
    return button("Make the map", () => make(index, current));
  }
  if (shown.index !== index || shown.map !== about.map) {
    const points = readMap(await api.mapPoints(index));
    const attributes = await api.facets(index);
    if (!current()) return;
    if (points.fingerprint !== about.map) return show(index, current);
    Object.assign(shown, { index, map: about.map, view: new MapView(byId("map-view"), points, about, source(index, about, attributes)) });
  }
  note(`${count(about.documents)} documents. Similar ones are near each other; drag to move, scroll to zoom, and draw a lasso `
    + "with its button or with Shift.");
  byId("map-actions").replaceChildren();
  if (!about.current) {
    note("The index has changed since this map was made.");
    button("Make it anew", () => make(index, current));
  }
  const hits = await api.mapPlaces(index, shownHits(index));
  if (current()) shown.view.lightUp(hits);
}

function source(index, { map }, facets) {
  return {
    attributes: facets.map(({ name }) => name),
    values: (name) => api.mapValues(index, name),
    describe: (points) => api.mapDocuments(index, points),
    open: ({ id }) => openDocument(index, id, { like: () => moreLike(id) }),
    chosen: (selection) => {
      byId("map-actions").replaceChildren();
      if (!selection?.area) return;
      button(`Search in this area (${count(selection.points.length)} documents)`,
        () => searchWithin(index, { map, polygon: selection.area }, selection.points.length));
    },
  };
}

async function make(index, current) {
  note("The map is being made.");
  try {
    const result = await runJob(byId("map-actions"), index, "map", {}, current);
    if (!current()) return;
    if (result) return await show(index, current);
    note("There is no map: the work was cancelled.");
    button("Make the map", () => make(index, current));
  } catch (problem) {
    if (!current()) return;
    note(problem.message);
    button("Try again", () => make(index, current));
  }
}

function forget() {
  Object.assign(shown, { index: null, map: null, view: null });
  byId("map-view").replaceChildren();
  byId("map-actions").replaceChildren();
}

function note(text) { byId("map-note").textContent = text; }

function button(text, onclick) { byId("map-actions").replaceChildren(element("button", { type: "button", onclick }, text)); }
