import { open } from "./micpq.js";

const HITS = 10;
const SNIPPET = 240;
const form = document.querySelector("form");
const input = document.querySelector("#query");
const list = document.querySelector("#hits");
const status = document.querySelector("#status");

/** An element with text, which is never read as HTML. */
function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

/** The part of a text with most words of the query, as nodes with those words marked. */
function snippet(text, query) {
  const words = [...new Set(query.toLowerCase().match(/[\p{L}\p{N}]{2,}/gu) ?? [])];
  // Short words are in every text. They count where a query has no others.
  const long = words.filter((word) => word.length > 3);
  const terms = long.length > 0 ? long : words;
  const escaped = terms.map((term) => term.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&"));
  const pattern = escaped.length > 0 ? new RegExp(`(?<![\\p{L}\\p{N}])(?:${escaped.join("|")})(?![\\p{L}\\p{N}])`, "giu") : null;
  const places = pattern ? Array.from(text.matchAll(pattern), (match) => match.index) : [];
  let [start, most] = [0, 0];
  for (const place of places) {
    const count = places.filter((other) => other >= place && other < place + SNIPPET).length;
    if (count > most) [start, most] = [Math.max(0, place - 30), count];
  }
  if (start > 0) start = text.indexOf(" ", start) + 1 || start;
  const part = text.slice(start, start + SNIPPET);
  const made = element("p", start > 0 ? "… " : "", "snippet");
  let at = 0;
  for (const match of pattern ? part.matchAll(pattern) : []) {
    made.append(part.slice(at, match.index), element("mark", match[0]));
    at = match.index + match[0].length;
  }
  made.append(part.slice(at), start + SNIPPET < text.length ? " …" : "");
  return made;
}

function shown(hit, query) {
  const item = element("li");
  const { title, ...rest } = hit.attributes ?? {};
  item.dataset.id = JSON.stringify(hit.id);
  item.append(element("h2", String(title || `Document ${hit.id}`)));
  if (hit.text) item.append(snippet(hit.text, query));
  const facts = [`id ${hit.id}`, `distance ${hit.distance.toFixed(3)}`];
  if (hit.labels?.length) facts.push(hit.labels.join(", "));
  for (const [name, value] of Object.entries(rest)) {
    if (value !== "" && !(Array.isArray(value) && value.length === 0)) facts.push(`${name}: ${[].concat(value).join(", ")}`);
  }
  item.append(element("p", facts.join(" · "), "facts"));
  return item;
}

let latest = 0;

async function ask(index) {
  const query = input.value.trim();
  const number = ++latest;
  if (!query) {
    list.replaceChildren();
    status.textContent = `${index.about.documents.toLocaleString("en")} documents. Type a query.`;
    return;
  }
  const begun = performance.now();
  try {
    const found = index.nearest(query, HITS);
    const milliseconds = performance.now() - begun;
    const documents = await index.documents.get(found.map((hit) => hit.row));
    // Another query may have come while the documents were read.
    if (number !== latest) return;
    list.replaceChildren(...found.map((hit, i) => shown({ ...documents[i], distance: hit.distance }, query)));
    status.textContent = found.length > 0 ? `${found.length} nearest documents, found in ${milliseconds.toFixed(1)} ms.` : "No documents.";
  } catch (error) {
    if (number === latest) status.textContent = `This did not work: ${error.message}`;
  }
}

try {
  const index = await open("./");
  document.title = index.about.title;
  document.querySelector("h1").textContent = index.about.title;
  input.disabled = false;
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    history.replaceState(null, "", `?q=${encodeURIComponent(input.value)}`);
    ask(index);
  });
  input.addEventListener("input", () => ask(index));
  input.value = new URLSearchParams(location.search).get("q") ?? input.value;
  await ask(index);
  input.focus();
  document.body.dataset.ready = Math.round(performance.now());
} catch (error) {
  const hint = location.protocol === "file:" ? " Open this folder through a web server, such as: python3 -m http.server" : "";
  status.textContent = `The search cannot start: ${error.message}.${hint}`;
}
