// One drawing for all charts along an axis: panels one below the other with a common axis, a reading line that pointer
// and arrow keys move, and a tip that says all values at it.
import { fill, h, s } from "./dom.js";

const RIGHT = 10, GAP = 22, AXIS = 24, HEAD = 27;
const drawn = new Set();
const sized = new ResizeObserver((entries) => {
  for (const entry of entries) for (const plot of drawn) if (plot.area === entry.target) plot.draw();
});

/** An end for an axis from 0 whose quarters are short to write. */
export function nice(value) {
  if (value <= 0) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 1.2, 2, 4, 6, 8, 10].map((step) => step * unit).find((step) => step >= value * 0.999);
}

/**
 * `update({labels, ticks, panels, tip})`: `labels[i]` names place i for who cannot see it, `ticks` are {at, text} on the
 * axis, `panels` are {title, height, kind: "stack" | "lines" | "lanes", format, series: [{name, class, values}]},
 * `tip(i)` gives {title, rows: [{class, name, value}]}.
 */
export class Plot {
  constructor(label) {
    this.tip = h("div", { class: "tip", "aria-hidden": "true", hidden: true });
    this.area = h("div", {
      class: "plot", role: "slider", tabindex: "0", "aria-label": `${label}. Arrow keys read the values.`,
      "aria-valuemin": 0, "aria-valuemax": 0, "aria-valuenow": 0, "aria-valuetext": "no values" });
    this.element = h("div", { class: "plot-frame" }, this.area, this.tip);
    this.at = null;
    this.model = null;
    this.area.addEventListener("pointermove", (event) => this.point(event));
    this.area.addEventListener("pointerdown", (event) => this.point(event));
    this.area.addEventListener("pointerleave", () => { if (document.activeElement !== this.area) this.read(null); });
    this.area.addEventListener("keydown", (event) => this.key(event));
    this.area.addEventListener("focus", () => { if (this.at === null && this.model) this.read(this.last()); });
    this.area.addEventListener("blur", () => this.read(null));
    drawn.add(this);
    sized.observe(this.area);
  }

  close() { drawn.delete(this); sized.unobserve(this.area); }

  update(model) {
    this.model = model;
    this.area.setAttribute("aria-valuemax", Math.max(0, model.labels.length - 1));
    this.draw();
  }

  last() {
    const { labels, panels } = this.model;
    for (let at = labels.length - 1; at > 0; at -= 1)
      if (panels.some((panel) => panel.series.some((one) => one.values[at]))) return at;
    return labels.length - 1;
  }

  draw() {
    const width = Math.floor(this.area.clientWidth);
    if (!this.model || width < 80) return;
    const { panels, labels, ticks } = this.model;
    this.left = width < 520 ? 44 : 58;
    this.step = (width - this.left - RIGHT) / Math.max(1, labels.length);
    let top = 0;
    const parts = [];
    for (const panel of panels) {
      parts.push(this.panel(panel, top, width));
      top += HEAD + panel.height + GAP;
    }
    const floor = top - GAP;
    const room = Math.max(1, Math.ceil(ticks.length / Math.max(1, Math.floor((width - this.left) / 78))));
    for (const [at, tick] of ticks.entries()) {
      if (at % room) continue;
      const x = this.x(tick.at);
      parts.push(s("text", { class: "tick", x: Math.min(x, width - 16), y: floor + 17, "text-anchor": "middle" }, tick.text));
    }
    this.line = s("rect", { class: "reading", y: HEAD - 4, height: floor - HEAD + 4, width: Math.max(2, Math.min(this.step, 14)), visibility: "hidden" });
    const height = floor + AXIS;
    fill(this.area, s("svg", { width, height, viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true", focusable: "false" }, hatch(), this.line, parts));
    this.width = width;
    if (this.at !== null || !labels.length) this.read(labels.length ? Math.min(this.at, labels.length - 1) : null);
  }

  x(at) { return this.left + (at + 0.5) * this.step; }

  panel(panel, top, width) {
    const base = top + HEAD + panel.height;
    const parts = [s("text", { class: "panel-title", x: 0, y: top + 11 }, width < 560 ? panel.brief ?? panel.title : panel.title)];
    if (panel.kind === "lanes") return [...parts, ...this.lanes(panel, top, width)];
    const stack = panel.kind === "stack";
    const sums = this.model.labels.map((_, at) => stack
      ? panel.series.reduce((sum, one) => sum + (one.values[at] ?? 0), 0)
      : Math.max(0, ...panel.series.map((one) => one.values[at] ?? 0)));
    const highest = nice(Math.max(0, ...sums));
    const y = (value) => base - (value / highest) * panel.height;
    const steps = panel.height > 120 ? 4 : 2;
    for (let step = 0; step <= steps; step += 1) {
      const value = (highest * step) / steps;
      parts.push(s("line", { class: step ? "grid" : "base", x1: this.left, x2: width - RIGHT, y1: y(value), y2: y(value) }));
      if (sums.some(Boolean) || !step) parts.push(s("text", { class: "tick", x: this.left - 8, y: y(value) + 4, "text-anchor": "end" }, panel.format(value)));
    }
    if (!sums.some(Boolean)) {
      parts.push(s("text", { class: "none", x: this.left + (width - this.left) / 2, y: base - panel.height / 2 + 4, "text-anchor": "middle" }, panel.none ?? "nothing in this time"));
      return parts;
    }
    return [...parts, ...(stack ? this.stack(panel, y) : this.lines(panel, y))];
  }

  stack(panel, y) {
    const wide = Math.min(64, Math.max(1, this.step - Math.max(1, Math.min(6, this.step * 0.22))));
    const parts = [];
    for (let at = 0; at < this.model.labels.length; at += 1) {
      let floor = 0;
      for (const one of panel.series) {
        const value = one.values[at] ?? 0;
        if (value > 0) {
          const height = Math.max(y(floor) - y(floor + value), 0.75);
          parts.push(s("rect", { class: one.class, x: this.x(at) - wide / 2, y: y(floor + value), width: wide, height }));
        }
        floor += value;
      }
    }
    return parts;
  }

  lines(panel, y) {
    return panel.series.map((one) => {
      const has = (at) => one.values[at] !== null && one.values[at] !== undefined;
      const points = one.values.map((value, at) => [this.x(at), value, at]).filter(([, , at]) => has(at));
      // No line over a time without answers.
      const path = points.map(([x, value, at]) => `${at && has(at - 1) ? "L" : "M"}${x.toFixed(1)} ${y(value).toFixed(1)}`).join("");
      const dots = points.length < 80 ? points.map(([x, value]) => s("circle", { class: `${one.class} point`, cx: x, cy: y(value), r: 2.2 })) : [];
      return [s("path", { class: `${one.class} line`, d: path }), ...dots];
    });
  }

  lanes(panel, top, width) {
    const row = panel.height / panel.series.length;
    return panel.series.map((one, lane) => {
      const middle = top + HEAD + row * (lane + 0.5);
      const most = Math.max(1, ...one.values.map((value) => value ?? 0));
      return [
        s("line", { class: "grid", x1: this.left, x2: width - RIGHT, y1: middle, y2: middle }),
        s("text", { class: "tick", x: this.left - 8, y: middle + 4, "text-anchor": "end" }, one.brief),
        one.values.map((value, at) => (value ? mark(one, this.x(at), middle, 3 + 4 * Math.sqrt(value / most)) : null)),
      ];
    });
  }

  point(event) {
    if (!this.model?.labels.length) return;
    const place = Math.floor((event.clientX - this.area.getBoundingClientRect().left - this.left) / this.step);
    this.read(Math.max(0, Math.min(this.model.labels.length - 1, place)));
  }

  key(event) {
    const most = (this.model?.labels.length ?? 0) - 1;
    const at = this.at ?? most;
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, ArrowDown: at - 1, ArrowUp: at + 1, PageDown: at - 10, PageUp: at + 10, Home: 0, End: most }[event.key];
    if (event.key === "Escape") return this.read(null);
    if (to === undefined || most < 0) return undefined;
    event.preventDefault();
    return this.read(Math.max(0, Math.min(most, to)));
  }

  read(to) {
    // Places come and go with what is shown.
    const at = to === null || !this.model?.labels[to] ? null : to;
    this.at = at;
    this.tip.hidden = at === null;
    this.line?.setAttribute("visibility", at === null ? "hidden" : "visible");
    if (at === null) return;
    const { title, rows } = this.model.tip(at);
    this.line.setAttribute("x", this.x(at) - Number(this.line.getAttribute("width")) / 2);
    fill(this.tip, h("p", { class: "tip-title" }, title), h("table", {}, h("tbody", {}, rows.map((row) => h("tr", {},
      h("td", {}, row.class ? h("i", { class: `key ${row.class}` }) : null), h("td", {}, row.name), h("td", { class: "number" }, row.value))))));
    this.area.setAttribute("aria-valuenow", at);
    this.area.setAttribute("aria-valuetext", `${title}: ${rows.map((row) => `${row.name} ${row.value}`).join(", ")}`);
    const room = this.tip.offsetWidth, x = this.x(at);
    this.tip.style.left = `${Math.max(0, Math.min(x + 14 + room > this.width ? x - room - 14 : x + 14, this.width - room))}px`;
  }
}

function mark(one, x, y, size) {
  const shapes = {
    diamond: `M${x} ${y - size}L${x + size} ${y}L${x} ${y + size}L${x - size} ${y}Z`,
    triangle: `M${x - size} ${y - size * 0.8}L${x + size} ${y - size * 0.8}L${x} ${y + size}Z`,
    square: `M${x - size * 0.8} ${y - size * 0.8}h${size * 1.6}v${size * 1.6}h${-size * 1.6}Z`,
  };
  return s("path", { class: one.class, d: shapes[one.shape] });
}

/** Stripes, so that uncached tokens differ by more than a colour. */
function hatch() {
  return s("defs", {}, s("pattern", { id: "hatch", width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    s("rect", { class: "hatch-back", width: 5, height: 5 }), s("rect", { class: "hatch-line", width: 2, height: 5 })));
}
