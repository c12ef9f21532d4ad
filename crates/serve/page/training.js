// The training curves of the model.

import { api } from "./api.js";
import { byId, colour, drawn, element } from "./dom.js";

const [WIDTH, HEIGHT, LEFT, EDGE] = [640, 220, 58, 22];

export const start = () => {};

export async function show(index, current) {
  const curves = await api.curves(index);
  if (!current()) return;
  byId("curves").replaceChildren(...(curves.length
    ? curves.map(({ name, values }, i) => figure(name, values, colour(i)))
    : [element("p", {}, "The model of this index has no training curves.")]));
}

function figure(name, values, ink) {
  const known = values.map((y, x) => [x, y]).filter(([, y]) => Number.isFinite(y));
  const low = Math.min(...known.map(([, y]) => y));
  const high = Math.max(...known.map(([, y]) => y));
  const across = (x) => LEFT + (x / Math.max(1, values.length - 1)) * (WIDTH - LEFT - EDGE);
  const down = (y) => HEIGHT - EDGE - ((y - low) / (high - low || 1)) * (HEIGHT - 2 * EDGE);
  const label = (x, y, text, anchor) => drawn("text", { x, y, "text-anchor": anchor }, text);
  const short = (y) => (Math.abs(y) >= 100 ? y.toFixed(0) : y.toPrecision(3));
  return element("figure", { class: "curve" },
    element("figcaption", {}, name),
    drawn("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "plot", role: "img",
      "aria-label": `${name}: from ${short(known[0]?.[1] ?? 0)} to ${short(known.at(-1)?.[1] ?? 0)} over ${values.length} epochs` },
      drawn("line", { class: "axis", x1: LEFT, x2: WIDTH - EDGE, y1: HEIGHT - EDGE, y2: HEIGHT - EDGE }),
      drawn("line", { class: "axis", x1: LEFT, x2: LEFT, y1: EDGE, y2: HEIGHT - EDGE }),
      label(LEFT - 6, down(low) + 4, short(low), "end"), label(LEFT - 6, down(high) + 4, short(high), "end"),
      label(LEFT, HEIGHT - 6, "1", "middle"), label(across(values.length - 1), HEIGHT - 6, String(values.length), "middle"),
      drawn("polyline", { fill: "none", stroke: ink, "stroke-width": 2,
        points: known.map(([x, y]) => `${across(x).toFixed(1)},${down(y).toFixed(1)}`).join(" ") })));
}
