// A map that people use: points, labels, hover, lasso, colours, keys, and a list of documents beside it. The page of a server
// and a map in one file share it; `source` says where documents come from.

import { Plane } from "./plane.js";

const LISTED = 50;
const LEGEND = 12;
const OTHER = 65534;
const NONE = 65535;
// Ten colours that most colour-blind readers can distinguish, in light and dark.
const COLOURS = ["#0a7abf", "#e8862e", "#2f9e5b", "#c23b4a", "#8a5fc7", "#8c6446", "#d667a9", "#a8a32a", "#1ba6b8", "#5b6fd6"];
const GREY = [154, 154, 154];

const number = (n) => n.toLocaleString("en");

function made(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.startsWith("aria-") || name === "role") element.setAttribute(name, value);
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

function rgb(hex) {
  return [1, 3, 5].map((at) => Number.parseInt(hex.slice(at, at + 2), 16));
}

// Colours of further values: hues apart by the golden angle.
function hue(i) {
  const [angle, light] = [(i * 137.508) % 360, i % 2 ? 0.5 : 0.62];
  const part = (n) => {
    const k = (n + angle / 30) % 12;
    return Math.round(255 * (light - 0.5 * Math.min(light, 1 - light) * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  };
  return [part(0), part(8), part(4)];
}

const PALETTE = [...Array(255).keys()].map((i) => (i < COLOURS.length ? rgb(COLOURS[i]) : hue(i))).concat([GREY]);
const paletteAt = (value) => (value >= OTHER ? 255 : value < 255 ? value : 10 + (value % 245));

/** Reads a map from its bytes; `docs/map.md` describes them. */
export function readMap(buffer) {
  const view = new DataView(buffer);
  const magic = String.fromCharCode(...new Uint8Array(buffer, 0, 8));
  if (magic !== "MICPQMAP" || view.getUint32(8, true) !== 1) throw new Error("these bytes are no map of this version");
  const count = view.getUint32(12, true);
  const fingerprint = view.getBigUint64(16, true).toString(16).padStart(16, "0");
  const values = (i) => new Uint16Array(buffer, 24 + 2 * i * count, count);
  return { count, fingerprint, x: values(0), y: values(1), topic: values(2) };
}

/**
 * Shows a map in `root`. `about` has its topics and labels. `source` has `describe(points)`, which gives the id and title of each
 * point, `attributes`, `values(attribute)`, `open(document)`, and `chosen(selection)`, which is called when points are selected.
 */
export class MapView {
  constructor(root, points, about, source) {
    Object.assign(this, { root, points, about, source, selection: null, lasso: null, titles: new Map() });
    this.#build();
    this.canvas.mapView = this;
    this.plane = new Plane(this.canvas, points, (settled) => this.#moved(settled));
    this.#topics();
    this.#listen();
    this.plane.draw();
  }

  #build() {
    this.canvas = made("canvas", {
      className: "map-canvas", tabIndex: 0, role: "application",
      "aria-label": `Map of ${number(this.points.count)} documents. Arrow keys move, plus and minus zoom, 0 shows everything, Escape clears the selection. The list after it has the documents.`,
    });
    this.names = made("div", { className: "map-names", "aria-hidden": "true" });
    this.outline = made("canvas", { className: "map-outline", "aria-hidden": "true" });
    this.tip = made("div", { className: "map-tip", hidden: true });
    this.colourBy = made("select", { onchange: () => this.#recolour() },
      ...["topic", ...this.source.attributes].map((name) => made("option", { value: name }, name)));
    this.lassoButton = made("button", { type: "button", "aria-pressed": "false", onclick: () => this.#toggleLasso() }, "Lasso");
    this.clearButton = made("button", { type: "button", hidden: true, onclick: () => this.clear() }, "Clear selection");
    this.legend = made("div", { className: "map-legend", role: "group", "aria-label": "Values" });
    this.status = made("p", { className: "map-status", role: "status", "aria-live": "polite" });
    this.list = made("ol", { className: "map-list", "aria-label": "Documents on this part of the map" });
    this.root.replaceChildren(
      made("div", { className: "map-tools" }, made("label", {}, "Colour by ", this.colourBy), this.lassoButton, this.clearButton,
        made("button", { type: "button", "aria-label": "Zoom in", onclick: () => this.plane.zoomBy(1.6) }, "+"),
        made("button", { type: "button", "aria-label": "Zoom out", onclick: () => this.plane.zoomBy(1 / 1.6) }, "\u2212"),
        made("button", { type: "button", onclick: () => this.reset() }, "Show all")),
      made("div", { className: "map-area" },
        made("div", { className: "map-frame" }, this.canvas, this.outline, this.names, this.tip),
        made("div", { className: "map-side" }, this.status, this.list)),
      this.legend);
    this.labels = this.about.labels.map((label) => ({ ...label, element: made("span", {}, label.text) }));
  }

  // Colours.

  #topics() {
    this.values = this.points.topic;
    this.#colour(this.about.topics.map(({ name, documents }) => [name, documents]));
  }

  async #recolour() {
    const name = this.colourBy.value;
    if (name === "topic") return this.#topics();
    try {
      const { names, values } = await this.source.values(name);
      if (this.colourBy.value !== name) return;
      this.values = values;
      this.#colour(names);
    } catch (problem) {
      this.say(problem.message);
    }
  }

  #colour(names) {
    this.valueNames = names;
    const colours = new Uint8Array(this.points.count);
    for (let i = 0; i < colours.length; i += 1) colours[i] = paletteAt(this.values[i]);
    this.plane.colour(colours, PALETTE);
    this.legend.replaceChildren(...names.slice(0, LEGEND).map(([name, documents], value) => {
      const dot = made("i");
      dot.style.background = `rgb(${PALETTE[paletteAt(value)].join(" ")})`;
      return made("button", { type: "button", "aria-pressed": "false", onclick: (event) => this.#only(value, event.currentTarget) },
        dot, `${name} (${number(documents)})`);
    }));
    if (names.length > LEGEND) this.legend.append(made("span", {}, `and ${number(names.length - LEGEND)} more`));
  }

  #only(value, button) {
    if (button.getAttribute("aria-pressed") === "true") return this.clear();
    const points = [];
    for (let i = 0; i < this.values.length; i += 1) if (this.values[i] === value) points.push(i);
    this.#select(points, { value: this.valueNames[value][0], attribute: this.colourBy.value });
    button.setAttribute("aria-pressed", "true");
  }

  // Selections.

  #select(points, how) {
    this.#unpress();
    this.selection = { points, ...how };
    this.clearButton.hidden = false;
    this.plane.select(points);
    this.source.chosen?.(this.selection);
    this.#refresh();
  }

  #unpress() {
    for (const button of this.legend.querySelectorAll("[aria-pressed=true]")) button.setAttribute("aria-pressed", "false");
  }

  clear() {
    this.#unpress();
    this.selection = null;
    this.clearButton.hidden = true;
    this.#trace(null);
    this.plane.select(null);
    this.source.chosen?.(null);
    this.#refresh();
  }

  /** Lights up points: the hits of a search. */
  lightUp(points) { this.plane.lightUp(points); }

  reset() { this.plane.show(32768, 32768, 1); }

  #toggleLasso(on = this.lassoButton.getAttribute("aria-pressed") !== "true") {
    this.lassoButton.setAttribute("aria-pressed", String(on));
    this.canvas.classList.toggle("drawing", on);
  }

  #trace(polygon) {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    Object.assign(this.outline, { width, height });
    if (!polygon?.length) return;
    const context = this.outline.getContext("2d");
    context.strokeStyle = getComputedStyle(this.canvas).color;
    context.setLineDash([5, 4]);
    context.beginPath();
    polygon.forEach(([x, y]) => context.lineTo(...this.plane.toScreen(x, y)));
    context.closePath();
    context.stroke();
  }

  /** Selects the documents inside a polygon of the plane. */
  selectArea(polygon) {
    // Whole numbers go to the server unchanged.
    const corners = polygon.map((corner) => corner.map(Math.round));
    if (corners.length < 3) return;
    this.#select(this.plane.inside(corners), { area: corners });
    this.#trace(corners);
  }

  // Events.

  #listen() {
    const { canvas } = this;
    let drag = null;
    const at = (event) => {
      const box = canvas.getBoundingClientRect();
      return [event.clientX - box.left, event.clientY - box.top];
    };
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      const drawing = event.shiftKey || this.lassoButton.getAttribute("aria-pressed") === "true";
      drag = { from: at(event), last: at(event), polygon: drawing ? [this.plane.toPlane(...at(event))] : null, far: false };
      this.#hideTip();
    });
    canvas.addEventListener("pointermove", (event) => {
      const place = at(event);
      if (!drag) return this.#hover(place);
      drag.far ||= Math.hypot(place[0] - drag.from[0], place[1] - drag.from[1]) > 4;
      if (drag.polygon) {
        drag.polygon.push(this.plane.toPlane(...place));
        this.#trace(drag.polygon);
      } else if (drag.far) this.plane.pan(place[0] - drag.last[0], place[1] - drag.last[1]);
      drag.last = place;
    });
    canvas.addEventListener("pointerup", async (event) => {
      const done = drag;
      drag = null;
      if (!done) return;
      if (done.polygon) {
        this.#toggleLasso(false);
        return this.selectArea(done.polygon);
      }
      const point = done.far ? null : this.plane.pick(...at(event));
      if (point !== null) this.#open((await this.#describe([point]))[0]);
    });
    canvas.addEventListener("pointercancel", () => { drag = null; });
    canvas.addEventListener("pointerleave", () => this.#hideTip());
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.plane.zoomBy(Math.exp(-event.deltaY * 0.0015), ...at(event));
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const step = 0.12 * Math.min(this.canvas.clientWidth, this.canvas.clientHeight);
    const act = {
      ArrowLeft: () => this.plane.pan(step, 0), ArrowRight: () => this.plane.pan(-step, 0),
      ArrowUp: () => this.plane.pan(0, step), ArrowDown: () => this.plane.pan(0, -step),
      "+": () => this.plane.zoomBy(1.4), "=": () => this.plane.zoomBy(1.4), "-": () => this.plane.zoomBy(1 / 1.4),
      0: () => this.reset(), Escape: () => this.clear(),
    }[event.key];
    if (act) { event.preventDefault(); event.stopPropagation(); act(); }
  }

  #hover(place) {
    const point = this.plane.pick(...place);
    this.canvas.classList.toggle("over", point !== null);
    if (point === null) return this.#hideTip();
    if (point === this.tipOf) return;
    this.tipOf = point;
    clearTimeout(this.tipTimer);
    this.tipTimer = setTimeout(async () => {
      const [document] = await this.#describe([point]);
      if (this.tipOf !== point || !document) return;
      const value = this.values[point];
      const name = value === NONE || value === OTHER ? null : this.valueNames[value]?.[0];
      this.tip.replaceChildren(document.title, ...(name ? [made("small", {}, name)] : []));
      this.tip.hidden = false;
      const [x, y] = this.plane.toScreen(this.points.x[point], this.points.y[point]);
      const [most, low] = [this.canvas.clientWidth - this.tip.offsetWidth - 4, this.canvas.clientHeight - this.tip.offsetHeight - 4];
      this.tip.style.transform = `translate(${Math.max(4, Math.min(most, x + 12))}px, ${Math.max(4, Math.min(low, y + 12))}px)`;
    }, 60);
  }

  #hideTip() {
    this.tipOf = null;
    clearTimeout(this.tipTimer);
    this.tip.hidden = true;
  }

  // Titles are asked for once.
  async #describe(points) {
    const unknown = points.filter((point) => !this.titles.has(point));
    if (unknown.length) {
      try {
        (await this.source.describe(unknown)).forEach((document, i) => this.titles.set(unknown[i], document));
      } catch (problem) {
        this.say(problem.message);
      }
    }
    return points.map((point) => this.titles.get(point) ?? null);
  }

  #open(document) {
    if (document) this.source.open?.(document);
  }

  // What follows the camera.

  #moved(settled) {
    if (!this.plane) return;
    this.#place();
    this.#trace(this.selection?.area);
    this.#hideTip();
    clearTimeout(this.listing);
    if (settled) this.listing = setTimeout(() => this.#refresh(), 120);
  }

  // Names that fit, those of most documents first.
  #place() {
    const clusters = Math.max(4, Math.min(this.about.topics.length, Math.round(6 * this.plane.zoom ** 1.4)));
    const { clientWidth: width, clientHeight: height } = this.canvas;
    const now = this.labels.filter(({ from, to }) => from <= clusters && clusters <= to).sort((a, b) => b.documents - a.documents);
    const taken = [];
    const shown = [];
    for (const label of now) {
      const [x, y] = this.plane.toScreen(label.x, label.y);
      const across = label.width ?? 7.2 * label.text.length + 12;
      const box = [x - across / 2, y - 11, x + across / 2, y + 11];
      if (box[0] < 0 || box[1] < 0 || box[2] > width || box[3] > height) continue;
      if (taken.some((other) => box[0] < other[2] && other[0] < box[2] && box[1] < other[3] && other[1] < box[3])) continue;
      taken.push(box);
      label.element.style.transform = `translate(-50%, -50%) translate(${x}px, ${y}px)`;
      shown.push(label);
    }
    this.names.replaceChildren(...shown.map(({ element }) => element));
    for (const label of shown) label.width ??= label.element.offsetWidth + 6;
  }

  say(text) { this.status.textContent = text; }

  async #refresh() {
    const total = number(this.points.count);
    const { count, first } = this.selection
      ? { count: this.selection.points.length, first: [...this.selection.points.slice(0, LISTED)] }
      : this.plane.seen(LISTED);
    this.say(this.selection ? `${number(count)} of ${total} documents selected` : `${number(count)} of ${total} documents in view`);
    this.status.dataset.count = String(count);
    const turn = (this.turn = {});
    const documents = await this.#describe(first);
    if (turn !== this.turn) return;
    this.list.replaceChildren(...documents.filter(Boolean).map((document) => made("li", {}, made("button", {
      type: "button", onclick: () => this.#open(document),
    }, document.title))));
    if (count > LISTED) this.list.append(made("li", { className: "rest" }, `and ${number(count - first.length)} more`));
  }
}
