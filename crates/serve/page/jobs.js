// Work in the background: it is started, shown with its progress, and can be cancelled.

import { api } from "./api.js";
import { count, element } from "./dom.js";

const PAUSE = 400;
const wait = (time) => new Promise((done) => { setTimeout(done, time); });

// Starts a job and shows it in `place` until it ends. Returns its result; `null` if it was cancelled, or if the page shows
// something else meanwhile.
export async function runJob(place, index, kind, options, current) {
  let job = await api.start(index, kind, options);
  const bar = element("progress", { max: 1, "aria-label": "Progress" });
  const text = element("span");
  place.replaceChildren(bar, text, element("button", { type: "button", onclick: () => api.cancel(job.id) }, "Cancel"));
  while (job.status === "running") {
    await wait(PAUSE);
    if (!current()) return null;
    job = await api.job(job.id);
    if (!current()) return null;
    text.textContent = job.total ? `${job.stage}: ${count(Math.min(job.done, job.total))} of ${count(job.total)}` : job.stage;
    if (job.total) bar.value = Math.min(1, job.done / job.total);
    else bar.removeAttribute("value");
  }
  place.replaceChildren();
  if (job.status === "failed") throw new Error(job.error);
  return job.status === "succeeded" ? job.result : null;
}
