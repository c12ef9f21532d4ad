// Creates elements. Text is never parsed as markup: documents come from strangers.

export const byId = (id) => document.getElementById(id);

export function element(tag, properties = {}, ...children) {
  const created = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "class") created.className = value;
    else if (name.startsWith("on")) created.addEventListener(name.slice(2), value);
    else if (name.startsWith("aria-") || name === "role") created.setAttribute(name, value);
    else created[name] = value;
  }
  created.append(...children.filter((child) => child !== null && child !== undefined));
  return created;
}

const SVG = "http://www.w3.org/2000/svg";

export function drawn(tag, attributes = {}, ...children) {
  const created = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) created.addEventListener(name.slice(2), value);
    else created.setAttribute(name, value);
  }
  created.append(...children);
  return created;
}

// Ten colours that most colour-blind readers can distinguish, in light and dark. Further labels share a grey.
const COLOURS = ["#0a7abf", "#e8862e", "#2f9e5b", "#c23b4a", "#8a5fc7", "#8c6446", "#d667a9", "#7b7f87", "#a8a32a", "#1ba6b8"];
export const colour = (i) => COLOURS[i] ?? "#9a9a9a";

export const count = (n) => n.toLocaleString("en");

export function bytes(n) {
  const units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) { n /= 1024; unit += 1; }
  return `${unit ? n.toFixed(1) : n} ${units[unit]}`;
}

export const milliseconds = (seconds) => `${(seconds * 1000).toFixed(seconds < 0.01 ? 1 : 0)} ms`;
