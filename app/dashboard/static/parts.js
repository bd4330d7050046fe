// Pieces that several views show.
import { thumbnail } from "./api.js";
import { fill, h } from "./dom.js";
import { CAUSES, count, cut, known, percent, words } from "./format.js";

export const PARTS = [
  { name: "read", class: "read", key: "read_tokens", title: "came from the prefix cache" },
  { name: "loaded", class: "loaded", key: "loaded_tokens", title: "of images: came from the pool of their KV" },
  { name: "write", class: "write", key: "write_tokens", title: "computed, and put in the prefix cache" },
  { name: "uncached", class: "uncached", key: "uncached_tokens", title: "computed, and not put there" },
];

/** The parts that there are in these sums or turns: where images' KV is not kept, nothing is ever loaded. */
export const partsOf = (rows) => PARTS.filter((one) => one.name !== "loaded" || rows.some((row) => row.loaded_tokens > 0));

export function legend(parts = partsOf([])) {
  return told(h("ul", { class: "legend" }), parts);
}

/** Another legend in the place of one. */
export const told = (element, parts) => fill(element, parts.map((one) => h("li", { title: one.title }, h("i", { class: `key ${one.class}`, "aria-hidden": "true" }), one.name)));

/** Sums of which the engine reported nothing are not known, and not 0. */
export const reported = (sums) => (sums.reported || !sums.unreported ? sums : { ...sums, read_tokens: null, loaded_tokens: null, write_tokens: null, uncached_tokens: null, computed_tokens: null, lost_tokens: null, prompt_tokens: null });

/** A prompt as a bar of its parts; `scale` is the number of tokens of a bar of full length. */
export function tokenBar(of, scale, place = null) {
  const whole = PARTS.reduce((sum, one) => sum + (of[one.key] ?? 0), 0);
  const said = partsOf([of]).map((one) => `${count(of[one.key])} ${one.name}`).join(", ");
  const bar = h("div", { class: "tokens", role: "img", "aria-label": known(of.read_tokens) ? said : "not reported", title: known(of.read_tokens) ? said : "The engine did not report it." });
  if (!known(of.read_tokens)) {
    const length = of.prompt_tokens ? Math.max(0.5, (100 * of.prompt_tokens) / scale) : 100;
    bar.append(h("span", { class: "unreported", style: { width: `${length}%` } }));
    return bar;
  }
  for (const one of PARTS) {
    if (of[one.key] > 0) bar.append(h("span", { class: one.class, style: { width: `${Math.max(0.15, (100 * of[one.key]) / scale)}%` } }));
  }
  if (place !== null && whole) bar.append(h("b", { class: "break", style: { left: `${Math.min(100, (100 * place) / scale)}%` }, "aria-hidden": "true" }));
  return bar;
}

export function ratioAndTokens(of) {
  return [h("span", { class: "strong" }, percent(of.read_ratio)), h("span", { class: "soft" }, ` · ${count(of.computed_tokens)} not read`)];
}

export function cause(name, actor) {
  if (!name) return null;
  return h("span", { class: `cause by-${actor ?? "unknown"}`, title: CAUSES[name] }, h("span", {}, words(name)), actor && name !== "cold" ? h("small", {}, `by ${actor}`) : null);
}

/** An image; a frame with a sign where its bytes are gone. */
export function picture(tenant, id, alt, size = "small") {
  const image = h("img", { src: thumbnail(tenant, id), alt, loading: "lazy", decoding: "async", class: `thumb ${size}`, width: size === "small" ? 40 : null });
  image.addEventListener("error", () => image.replaceWith(h("span", { class: `thumb ${size} gone`, role: "img", "aria-label": `${alt}: no longer kept` }, "–")));
  return image;
}

export function link(context, view, parameters, ...children) {
  return h("a", { href: context.address(view, parameters), "data-key": `${view}-${Object.values(parameters).join("-")}` }, children);
}

export const imageName = (id) => id.slice(0, 12);
export const shortName = (id, most = 22) => (/^[0-9a-f]{24,}$/.test(id) ? `${id.slice(0, 14)}…` : cut(id || "(refused before it was planned)", most));

export function place(turn) {
  if (!known(turn.break_message)) return null;
  if (turn.break_message < 0) return "tools";
  return `messages[${turn.break_message}]${known(turn.break_part) ? `.content[${turn.break_part}]` : ""}`;
}

export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value, title]) => h("div", {}, h("dt", { title }, name), h("dd", {}, value))));
}
