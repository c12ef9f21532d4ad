// The page find.html: searches the sections of the guide in an export of micpq (the folder find/).
import { open } from "./find/micpq.js";

const SECTIONS = 8;
// Passages that are asked for: several of them may be of one section.
const PASSAGES = 40;
const EXCERPT = 220;
const form = document.querySelector("#find");
const input = form.elements.q;
const status = document.querySelector("#find-status");
const list = document.querySelector("#find-hits");

let index;
let latest = 0;

function item(hit) {
  const made = document.createElement("li");
  const link = document.createElement("a");
  link.href = hit.attributes.address;
  link.textContent = hit.attributes.title;
  const text = document.createElement("p");
  const body = hit.text.slice(hit.attributes.title.length + 2);
  text.textContent = body.length > EXCERPT ? `${body.slice(0, EXCERPT)} …` : body;
  made.append(link, text);
  return made;
}

async function ask() {
  const question = input.value.trim();
  const number = ++latest;
  if (!question) {
    list.replaceChildren();
    status.textContent = "";
    return;
  }
  try {
    if (!index) status.textContent = "Loading the index …";
    index ??= open("./find/");
    const hits = await (await index).search(question, PASSAGES);
    if (number !== latest) return;
    const best = new Map();
    for (const hit of hits) if (!best.has(hit.attributes.address)) best.set(hit.attributes.address, hit);
    list.replaceChildren(...[...best.values()].slice(0, SECTIONS).map(item));
    status.textContent = best.size > 0 ? "" : "Nothing was found: no word of the question is known.";
  } catch (error) {
    index = undefined;
    status.textContent = error.message;
  }
}

form.hidden = false;
form.addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
input.addEventListener("input", ask);
input.value = new URLSearchParams(location.search).get("q") ?? "";
ask();
