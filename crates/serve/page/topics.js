// What the documents of an index are about: topics with their share, trend and typical documents, and how they join.

import { api } from "./api.js";
import { byId, count, drawn, element } from "./dom.js";
import { openDocument } from "./document.js";
import { runJob } from "./jobs.js";
import { moreLike, searchFiltered } from "./search.js";

const ATTRIBUTE = "topic";

export const start = () => {};

export async function show(index, current) {
  const report = await api.topics(index);
  if (!current()) return;
  const list = byId("topics-list");
  const actions = [button(report ? "Find them anew" : "Find topics", index, {}, current),
    button("Find them, and give every document its topic to filter by", index, { mark: ATTRIBUTE }, current)];
  byId("topics-actions").replaceChildren(...actions);
  if (!report) {
    note("No topics were found since the server started.");
    return list.replaceChildren();
  }
  note(`${count(report.topics.length)} topics of ${count(report.documents)} documents; ${count(report.outliers)} documents are far from every topic.`
    + (report.over ? ` The bars are shares by ${report.over}, ${report.periods[0] ?? ""} to ${report.periods.at(-1) ?? ""}.` : ""));
  const totals = report.periods.map((_, period) => report.topics.reduce((sum, topic) => sum + topic.trend[period], 0));
  list.replaceChildren(...report.topics.map((topic) => item(index, report, topic, totals)),
    element("h3", {}, "How topics join"), element("ul", { class: "tree" }, branch(report, report.topics.length + report.hierarchy.length - 1)));
}

function button(text, index, options, current) {
  return element("button", { type: "button", onclick: () => find(index, options, current) }, text);
}

async function find(index, options, current) {
  note("Topics are being found.");
  try {
    await runJob(byId("topics-actions"), index, "topics", options, current);
    if (current()) await show(index, current);
  } catch (problem) {
    if (!current()) return;
    await show(index, current);
    note(problem.message);
  }
}

function item(index, { attribute, periods }, topic, totals) {
  const filter = attribute && `${attribute}:${topic.number}`;
  return element("article", { class: "topic", "aria-label": `Topic ${topic.number}` },
    element("h3", {}, topic.name),
    element("p", {}, `${count(topic.documents)} documents, ${(100 * topic.share).toFixed(1)} % `, trend(periods, topic.trend, totals)),
    topic.terms.length > 4 ? element("p", {}, `also: ${topic.terms.slice(4).map(({ term }) => term).join(", ")}`) : null,
    element("ul", { "aria-label": "Typical documents" }, ...topic.typical.map(({ id, text }) => element("li", {}, element("button", {
      type: "button", onclick: () => openDocument(index, id, { like: () => moreLike(id) }),
    }, text ?? `document ${id}`)))),
    filter ? element("button", { type: "button", onclick: () => searchFiltered(index, attribute, filter, topic.name) }, "Search in this topic") : null);
}

// The share of a topic in every period; the highest bar is its greatest share.
function trend(periods, documents, totals) {
  if (!periods.length) return null;
  const shares = documents.map((n, i) => n / Math.max(1, totals[i]));
  const most = Math.max(...shares, Number.MIN_VALUE);
  const width = 100 / periods.length;
  return drawn("svg", { viewBox: "0 0 100 20", preserveAspectRatio: "none", class: "trend", role: "img",
    "aria-label": `Share by period: ${periods.map((period, i) => `${period} ${(100 * shares[i]).toFixed(1)} %`).join(", ")}` },
  ...shares.map((share, i) => drawn("rect", { x: i * width, width: width * 0.85, y: 20 - 20 * share / most, height: 20 * share / most })));
}

function branch(report, node) {
  const leaf = report.topics[node];
  if (leaf) return element("li", {}, `${leaf.name} (${count(leaf.documents)})`);
  const merge = report.hierarchy[node - report.topics.length];
  if (!merge) return element("li", {}, "one topic");
  return element("li", {}, element("details", { open: report.topics.length + report.hierarchy.length - node < 4 },
    element("summary", {}, `${merge.name} (${count(merge.documents)})`),
    element("ul", { class: "tree" }, ...merge.children.map((child) => branch(report, child)))));
}

function note(text) { byId("topics-note").textContent = text; }
