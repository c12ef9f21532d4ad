// The HTTP API of the server. No other file calls it.

import { bytes, count } from "./dom.js";

let askForKey = async () => "";
export const onKeyNeeded = (ask) => { askForKey = ask; };

const key = () => sessionStorage.getItem("micpq-key") ?? "";

async function call(method, path, body, signal) {
  const headers = {};
  if (body !== undefined) headers["content-type"] = "application/json";
  if (key()) headers.authorization = `Bearer ${key()}`;
  const answer = await fetch(path, { method, headers, body: body && JSON.stringify(body), signal });
  if (answer.status === 401) {
    const given = await askForKey();
    if (given) {
      sessionStorage.setItem("micpq-key", given);
      return call(method, path, body, signal);
    }
  }
  const text = await answer.text();
  let value = null;
  try { value = JSON.parse(text); } catch { /* metrics and proxies answer in plain text */ }
  if (!answer.ok) throw new Error(value?.error?.message ?? `${path}: ${answer.status} ${answer.statusText}`);
  return value ?? text;
}

async function bytesOf(path) {
  const answer = await fetch(path, { headers: key() ? { authorization: `Bearer ${key()}` } : {} });
  if (!answer.ok) throw new Error((await answer.json().catch(() => null))?.error?.message ?? `${path}: ${answer.status} ${answer.statusText}`);
  return answer.arrayBuffer();
}

const get = (path) => call("GET", path);
const at = (index, rest = "") => `v1/indexes/${encodeURIComponent(index)}${rest}`;

function recallRows(report) {
  if (!report) return [["not measured", "POST /v1/indexes/INDEX/recall"]];
  const share = (value) => `${(100 * value).toFixed(1)} %`;
  const windows = report.windows.map(({ first, documents, recall }) =>
    [`documents ${count(first)} to ${count(first + documents - 1)}`, share(recall)]);
  return [[`recall@${report.k}, ${count(report.rerank)} re-ranked`, share(report.recall)], ...windows, ["advice", report.advice]];
}

export const api = {
  indexes: async () => (await get("v1/indexes")).indexes.map(({ name }) => name),

  // Only attributes with few values, each of many documents, get a row of chips. Ids and free texts do not.
  facets: async (index) => (await get(at(index, "/facets?values=8"))).facets
    .filter(({ distinct, documents, values }) => values.length && distinct > 1 && distinct * 2 <= documents)
    .map(({ name, values }) => ({
      name,
      values: values.map(({ value, count: documents, filter }) => ({ value: String(value), documents, filter })),
    })),

  knowsKinds: async (index) => (await get(at(index, ""))).kinds,

  search: async (index, { text, like, filter, area, hybrid, kind, k, after }, signal) => {
    const body = { k, kind, explain: true, snippets: true };
    if (like === null) Object.assign(body, { text, hybrid });
    else body.document = like;
    if (filter) body.filter = filter;
    if (area) body.area = area;
    if (after) body.after = after;
    const found = await call("POST", at(index, "/query"), body, signal);
    const stages = Object.entries(found.milliseconds).map(([stage, ms]) => [stage, ms / 1000]);
    return {
      next: found.next, stages, seconds: stages.reduce((sum, [, seconds]) => sum + seconds, 0),
      hits: found.hits.map((hit) => ({
        ...hit,
        attributes: Object.entries(hit.attributes),
        snippet: hit.snippet && { text: hit.snippet.text, ranges: hit.snippet.marks },
      })),
    };
  },

  document: async (index, id) => {
    const found = await get(at(index, `/documents/${encodeURIComponent(id)}`));
    return { ...found, attributes: Object.entries(found.attributes) };
  },

  remove: (index, id) => call("DELETE", at(index, `/documents/${encodeURIComponent(id)}`)),

  usage: async (index) => (await get(at(index, "/codebooks"))).usage,

  codeword: async (index, codebook, codeword) => {
    const { documents, marks } = await get(at(index, `/codebooks/${codebook}/${codeword}?documents=10`));
    return { terms: marks.map((mark) => mark.term), examples: documents };
  },

  documents: async (index) => (await get(at(index))).documents,

  map: async (index) => (await get(at(index, "/map"))).map,

  mapPoints: (index) => bytesOf(at(index, "/map/points")),

  // The names and the value of every point.
  mapValues: async (index, attribute) => {
    const { values, points } = await get(at(index, `/map/values?attribute=${encodeURIComponent(attribute)}`));
    const packed = atob(points);
    const bytes = new Uint8Array(packed.length);
    for (let i = 0; i < packed.length; i += 1) bytes[i] = packed.charCodeAt(i);
    return { names: values.map(({ value, documents }) => [value, documents]), values: new Uint16Array(bytes.buffer) };
  },

  mapDocuments: async (index, points) => (await call("POST", at(index, "/map/documents"), { points })).documents
    .map((document) => document && { ...document, title: document.title ?? `document ${document.id}` }),

  mapPlaces: async (index, ids) => (await call("POST", at(index, "/map/places"), { ids })).points.filter((point) => point !== null),

  topics: async (index) => (await get(at(index, "/topics"))).report,

  // Work in the background.
  start: (index, kind, options) => call("POST", at(index, `/${kind}`), options),
  job: (id) => get(`v1/jobs/${id}`),
  cancel: (id) => call("DELETE", `v1/jobs/${id}`),

  // Every number in the metrics of an epoch, or of some steps, is a curve.
  curves: async (index) => {
    const { metrics } = await get(at(index, "/training"));
    const epochs = metrics?.curve ?? metrics?.distillation_curve ?? [];
    const counts = ["epoch", "step"];
    const names = Object.keys(epochs[0] ?? {}).filter((name) => !counts.includes(name) && typeof epochs[0][name] === "number");
    return names.map((name) => ({ name: name.replaceAll("_", " "), values: epochs.map((epoch) => epoch[name]) }));
  },

  health: async (index) => {
    const [about, version, measured, { report }] =
      await Promise.all([get(at(index)), get("v1/version"), get("metrics"), get(at(index, "/recall"))]);
    const resident = /^process_resident_memory_bytes ([\d.e+]+)/m.exec(measured);
    return [
      { name: "Documents", rows: [["searchable", count(about.documents)], ...(about.bytes ? [["deleted, still on disk", count(about.deleted)], ["segments", count(about.segments)]] : []),
        ["bits per document", String(about.bits)]] },
      { name: "Recall", rows: recallRows(report) },
      { name: "Disk", rows: Object.entries(about.bytes ?? {}).map(([part, size]) => [part, bytes(size)]) },
      { name: "Model", rows: [["method", about.method], ["encoder", about.encoder ?? "user vectors"],
        ["fingerprint", about.model.slice(0, 16)], ["rerank vectors", about.rerank_vectors]] },
      { name: "Server", rows: [["version", version.version], ["resident memory", resident ? bytes(Number(resident[1])) : "unknown"],
        ["queries waiting", count(about.queries_waiting)], ["writes waiting", count(about.writes_waiting)],
        ["job running", about.job_running ? "yes" : "no"]] },
    ];
  },
};
