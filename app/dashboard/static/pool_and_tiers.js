// What the engine keeps beside its caches, in memory and in files, against the bounds that are set.
import { h, table } from "./dom.js";
import { bytes, count, known, plural } from "./format.js";

export function pool(data) {
  return [
    table("Pool of images' KV", [
      ...where(data, "Images"),
      { name: "Hits", number: true, title: "Images that a request asked for and that were here", cell: (row) => count(row.hits) },
      { name: "Evicted", number: true, title: "Left for others", cell: (row) => count(row.evicted) },
      { name: "Refused", number: true, class: "number fold", title: "In memory: no room, as all was in use or the image is too large. Of files: damaged, or not ours", cell: (row) => count(row.refused) },
    ], places(data)),
    note(data, `${plural(data.misses, "miss", "misses")}: images that were asked for and in neither.${data.held_entries ? ` ${plural(data.held_entries, "image is", "images are")} in use.` : ""}`),
  ];
}

export function tiers(data) {
  const { text, image, mixed } = data.blocks;
  return [
    table("Tiers below the KV cache", [
      ...where(data, "Blocks"),
      { name: "Stored", number: true, class: "number fold", cell: (row) => count(row.stored) },
      { name: "Read back", number: true, cell: (row) => count(row.loaded) },
      { name: "Evicted", number: true, class: "number fold", title: "Left for others", cell: (row) => count(row.evicted) },
      { name: "Dropped", number: true, class: "number fold", title: "Not taken: all was in use, or they came too fast", cell: (row) => count(row.dropped) },
      data.files ? { name: "Refused", number: true, class: "number fold", title: "Files that were damaged, or not ours", cell: (row) => (known(row.refused) ? count(row.refused) : "") } : null,
    ].filter(Boolean), places(data)),
    note(data, `In memory: ${count(image)} of images, ${count(text)} of text, ${count(mixed)} of both.`),
  ];
}

function places(data) {
  return [{ name: "memory", ...data.memory }, data.files ? { name: "files", ...data.files } : null].filter(Boolean);
}

function where(data, what) {
  return [
    { name: "In", cell: (row) => row.name },
    { name: what, number: true, cell: (row) => count(row.entries) },
    { name: "Size", number: true, cell: (row) => (row.bound_bytes ? `${bytes(row.bytes)} of ${bytes(row.bound_bytes)}` : bytes(row.bytes)) },
    { name: "", class: "meter-cell fold", cell: (row) => (row.bound_bytes ? h("div", { class: "meter", "aria-hidden": "true" }, h("span", { class: "loaded", style: { width: `${Math.min(100, (100 * row.bytes) / row.bound_bytes)}%` } })) : null) },
  ];
}

function note(data, words) {
  const stopped = data.faults && !data.writing;
  return [
    h("p", { class: "note" }, words),
    stopped ? h("p", { class: "bad" }, "The disk refused a file: none is written any more until the engine starts again; those that are there are still read.")
      : data.faults ? h("p", { class: "note" }, `The disk refused a file ${plural(data.faults, "time")}.`) : null,
  ];
}
