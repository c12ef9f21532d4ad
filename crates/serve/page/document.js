// The dialog of one document: its text, and buttons to find similar documents and to delete it.

import { api } from "./api.js";
import { byId, element } from "./dom.js";

let actions = null;

export function start() {
  const dialog = byId("document");
  byId("document-like").addEventListener("click", () => {
    // The search takes the focus; closing must not give it back to the hit afterwards.
    actions.closed = null;
    dialog.close();
    actions.like?.();
  });
  byId("document-delete").addEventListener("click", remove);
  dialog.addEventListener("close", () => actions.closed?.());
}

export async function openDocument(index, id, then) {
  actions = { index, id, ...then };
  const button = byId("document-delete");
  button.textContent = "Delete document";
  button.dataset.sure = "";
  byId("document-title").textContent = `Document ${id}`;
  const body = byId("document-body");
  body.replaceChildren("...");
  byId("document").showModal();
  try {
    const found = await api.document(index, id);
    if (actions.id !== id || actions.index !== index) return;
    const about = [["labels", found.labels.join(", ")], ["code", found.code], ...found.attributes]
      .filter(([, value]) => value !== "" && value !== undefined);
    body.replaceChildren(found.text ?? "This index stores no texts.",
      element("table", {}, element("tbody", {}, ...about.map(([name, value]) =>
        element("tr", {}, element("th", { scope: "row" }, name), element("td", {}, String(value)))))));
  } catch (problem) {
    if (actions.id === id && actions.index === index) body.replaceChildren(problem.message);
  }
}

// The first press asks, the second deletes. This needs no second dialog.
async function remove() {
  const button = byId("document-delete");
  if (!button.dataset.sure) {
    button.dataset.sure = "yes";
    button.textContent = `Press again to delete ${actions.id}`;
    return;
  }
  try {
    await api.remove(actions.index, actions.id);
    const deleted = actions.deleted;
    actions.closed = null;
    byId("document").close();
    deleted?.();
  } catch (problem) {
    byId("document-body").prepend(element("p", { class: "danger", role: "alert" }, problem.message));
  }
}
