// Figures for operators.

import { api } from "./api.js";
import { byId, element } from "./dom.js";

export const start = () => {};

export async function show(index, current) {
  const groups = await api.health(index);
  if (!current()) return;
  byId("figures").replaceChildren(...groups.flatMap(({ name, rows }) => [
    element("h3", {}, name),
    element("div", { class: "scroll" }, element("table", {}, element("tbody", {}, ...rows.map(([what, value]) =>
      element("tr", {}, element("th", { scope: "row" }, what), element("td", { class: "number" }, value)))))),
  ]));
}
