// A map of the documents: one point per document, and similar codes are near each other.

import { api } from "./api.js";
import { byId, colour, count, drawn, element } from "./dom.js";
import { openDocument } from "./document.js";
import { moreLike } from "./search.js";

const [WIDTH, HEIGHT, EDGE] = [900, 600, 16];

export const start = () => {};

export async function show(index) {
  byId("map-note").textContent = "...";
  const { points, explained, documents } = await api.map(index);
  const labels = [...Map.groupBy(points, (point) => point.label ?? "")].sort((a, b) => b[1].length - a[1].length);
  const colourOf = new Map(labels.map(([label], i) => [label, label === "" ? 99 : i]));
  const span = (values) => [Math.min(...values), Math.max(...values)];
  const [x0, x1] = span(points.map((point) => point.x));
  const [y0, y1] = span(points.map((point) => point.y));
  const across = (x) => EDGE + ((x - x0) / (x1 - x0 || 1)) * (WIDTH - 2 * EDGE);
  const down = (y) => EDGE + ((y1 - y) / (y1 - y0 || 1)) * (HEIGHT - 2 * EDGE);
  const circles = points.map((point) => {
    const circle = drawn("circle", {
      cx: across(point.x).toFixed(1), cy: down(point.y).toFixed(1), r: 3, "fill-opacity": 0.7,
      fill: colour(colourOf.get(point.label ?? "")),
      onclick: () => openDocument(index, point.id, { like: () => moreLike(point.id) }),
    });
    circle.append(drawn("title", {}, point.text ?? String(point.id)));
    return circle;
  });
  byId("map-plot").replaceChildren(drawn("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "plot", role: "img", "aria-label": `Map of ${count(points.length)} documents`,
  }, ...circles));
  byId("map-legend").replaceChildren(...labels.slice(0, 12).map(([label, of]) => {
    const dot = element("i");
    dot.style.background = colour(colourOf.get(label));
    return element("li", {}, dot, `${label || "no label"} (${count(of.length)})`);
  }));
  byId("map-note").textContent = `${count(points.length)} of ${count(documents)} documents on the two axes on which `
    + `their codes differ most (${Math.round(100 * explained)} % of the variance). Documents with equal codes share a point.`;
}
