// A map in one file: its data lies in the page, packed.

import { MapView, readMap } from "./view.js";

const SIZES = 8;

async function unpacked() {
  const text = atob(document.getElementById("data").textContent.trim());
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i += 1) bytes[i] = text.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

// The length of the JSON and that of the map, the map, the values of each attribute, the JSON.
async function start() {
  const buffer = await unpacked();
  const sizes = new DataView(buffer, 0, SIZES);
  const [jsonBytes, mapBytes] = [sizes.getUint32(0, true), sizes.getUint32(4, true)];
  const points = readMap(buffer.slice(SIZES, SIZES + mapBytes));
  const about = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, buffer.byteLength - jsonBytes)));
  const values = (i) => new Uint16Array(buffer.slice(SIZES + mapBytes + 2 * i * points.count, SIZES + mapBytes + 2 * (i + 1) * points.count));
  const described = (point) => {
    const [id, title] = about.documents[point] ?? [null, `Point ${point + 1}; this file has no title for it`];
    return { point, id, title };
  };
  const shown = document.getElementById("chosen");
  new MapView(document.getElementById("map"), points, about, {
    attributes: about.attributes.map(({ name }) => name),
    values: async (name) => {
      const i = about.attributes.findIndex((attribute) => attribute.name === name);
      return { names: about.attributes[i].names, values: values(i) };
    },
    describe: async (all) => all.map(described),
    open: ({ id, title }) => { shown.textContent = id === null ? title : `${title} (id ${id})`; },
  });
}

start().catch((problem) => { document.getElementById("chosen").textContent = `This map cannot be shown: ${problem.message}`; });
