// What the code is made of: how often each word of each book is used, and what a word gathers.

import { api } from "./api.js";
import { byId, count, element } from "./dom.js";
import { openDocument } from "./document.js";
import { moreLike } from "./search.js";

export const start = () => {};

export async function show(index) {
  byId("word").replaceChildren();
  const books = await api.usage(index);
  const most = Math.max(1, ...books.flat());
  byId("usage").replaceChildren(...books.map((words, book) => element("div", { class: "book" },
    element("span", {}, String(book + 1)),
    ...words.map((documents, word) => element("button", {
      type: "button", title: `${count(documents)} documents`, "aria-pressed": "false",
      "aria-label": `Book ${book + 1}, word ${word + 1}: ${count(documents)} documents`,
      // By the square root: usage is skewed, and half as many documents should not look like none.
      style: `background: color-mix(in oklab, var(--card), var(--near) ${Math.round(100 * Math.sqrt(documents / most))}%)`,
      onclick: (event) => choose(index, book, word, event.currentTarget),
    })))));
}

async function choose(index, book, word, button) {
  byId("usage").querySelectorAll("[aria-pressed=true]").forEach((other) => other.setAttribute("aria-pressed", "false"));
  button.setAttribute("aria-pressed", "true");
  const found = await api.word(index, book, word);
  byId("word").replaceChildren(
    element("h3", {}, `Book ${book + 1}, word ${word + 1}`),
    element("p", {}, found.terms.length ? "Words that mark them:" : "No words mark them out from the rest."),
    element("ul", { class: "words" }, ...found.terms.map((term) => element("li", {}, term))),
    element("ol", { class: "hits", "aria-label": "Documents of this word" }, ...found.examples.map(({ id, text }) =>
      element("li", { class: "hit" }, element("p", {}, text ?? `document ${id}`),
        element("div", { class: "actions" }, element("button", {
          type: "button", onclick: () => openDocument(index, id, { like: () => moreLike(id) }),
        }, `Open ${id}`))))));
}
