// The codebooks: how often each codeword is used, and which documents have it.

import { api } from "./api.js";
import { byId, count, element } from "./dom.js";
import { openDocument } from "./document.js";
import { moreLike } from "./search.js";

export const start = () => {};

let chosen = null;

export async function show(index, current) {
  chosen = null;
  byId("codeword").replaceChildren();
  const usage = await api.usage(index);
  if (!current()) return;
  const max = Math.max(1, ...usage.flat());
  byId("usage").replaceChildren(...usage.map((counts, codebook) => element("div", { class: "codebook" },
    element("span", {}, String(codebook + 1)),
    ...counts.map((documents, codeword) => element("button", {
      type: "button", title: `${count(documents)} documents`, "aria-pressed": "false",
      "aria-label": `Codebook ${codebook + 1}, codeword ${codeword + 1}: ${count(documents)} documents`,
      // The square root spreads the colours: usage is skewed, and half as many documents should not look like none.
      style: `background: color-mix(in oklab, var(--card), var(--near) ${Math.round(100 * Math.sqrt(documents / max))}%)`,
      onclick: (event) => choose(index, codebook, codeword, event.currentTarget),
    })))));
}

async function choose(index, codebook, codeword, button) {
  byId("usage").querySelectorAll("[aria-pressed=true]").forEach((other) => other.setAttribute("aria-pressed", "false"));
  button.setAttribute("aria-pressed", "true");
  chosen = button;
  let found;
  try {
    found = await api.codeword(index, codebook, codeword);
  } catch (problem) {
    if (chosen === button) byId("codeword").replaceChildren(element("p", { class: "danger", role: "alert" }, problem.message));
    return;
  }
  if (chosen !== button) return;
  byId("codeword").replaceChildren(
    element("h3", {}, `Codebook ${codebook + 1}, codeword ${codeword + 1}`),
    element("p", {}, found.terms.length ? "Terms that characterise its documents:" : "No terms characterise its documents."),
    element("ul", { class: "terms" }, ...found.terms.map((term) => element("li", {}, term))),
    element("ol", { class: "hits", "aria-label": "Typical documents of this codeword" }, ...found.examples.map(({ id, text }) =>
      element("li", { class: "hit" }, element("p", {}, text ?? `document ${id}`),
        element("div", { class: "actions" }, element("button", {
          type: "button", onclick: () => openDocument(index, id, { like: () => moreLike(id) }),
        }, `Open ${id}`))))));
}
