// Elements from code. What comes from traffic is text and never markup.

export function h(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

export function s(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  add(element, children);
  return element;
}

export function add(element, children) {
  for (const child of [children].flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

/** New contents; what had the focus has it again where it is there again, by its `data-key`. */
export function fill(element, ...children) {
  const focused = element.contains(document.activeElement) ? document.activeElement.dataset?.key : null;
  // A table that somebody has pushed aside stays where it is.
  const pushed = [...element.querySelectorAll(".scroll")].filter((one) => one.scrollLeft || one.scrollTop).map((one) => [one.dataset.key, one.scrollLeft, one.scrollTop]);
  element.replaceChildren();
  add(element, children);
  for (const [key, left, top] of pushed) element.querySelector(`.scroll[data-key="${CSS.escape(key)}"]`)?.scrollTo(left, top);
  if (focused) element.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  return element;
}

/** A table: `columns` are {name, title?, number?, cell(row), sort?}; the first cell of a row is its heading. */
export function table(caption, columns, rows, options = {}) {
  const head = h("tr", {}, columns.map((one) => h("th", { scope: "col", class: one.class ?? (one.number ? "number" : null), title: one.title }, one.name)));
  const body = rows.map((row) => h("tr", options.row ? options.row(row) : {}, columns.map((one, at) => h(at ? "td" : "th", {
    scope: at ? null : "row", class: one.class ?? (one.number ? "number" : null) }, one.cell(row)))));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption, "data-key": `table-${caption}` },
    h("table", { class: options.class }, h("caption", { class: options.shown ? null : "unseen" }, caption), h("thead", {}, head), h("tbody", {}, body)));
}

/** A card with a heading; gives the element and the part that is filled anew with each update. */
export function card(title, note, options = {}) {
  const body = h("div", { class: "card-body" });
  const id = `card-${++cards}`;
  const element = h("section", { class: `card ${options.class ?? ""}`, "aria-labelledby": id },
    h("div", { class: "card-head" }, h("h2", { id }, title), options.beside), note ? h("p", { class: "note" }, note) : null, body);
  return { element, body };
}
let cards = 0;

/** The values of a chart as a table, folded; stays open over updates. */
export function values(caption, columns) {
  const body = h("div");
  const element = h("details", { class: "values" }, h("summary", {}, "Values as a table"), body);
  let rows = [], shown = columns;
  const draw = () => fill(body, element.open ? table(caption, shown, rows) : null);
  element.addEventListener("toggle", draw);
  return { element, update(now, as = columns) { rows = now; shown = as; if (element.open) draw(); } };
}

export function empty(title, ...words) {
  return h("div", { class: "empty" }, h("p", { class: "empty-title" }, title), ...words.filter(Boolean).map((one) => h("p", {}, one)));
}
