// Figures and times for people. `?` is what nothing is known of; it is never 0.
import { h } from "./dom.js";

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

export const UNKNOWN = "?";
export const known = (value) => value !== null && value !== undefined;
export const count = (value) => (known(value) ? whole.format(value) : UNKNOWN);
export const brief = (value) => (known(value) ? short.format(value) : UNKNOWN);
export const percent = (ratio, digits = 1) => (known(ratio) ? `${(ratio * 100).toFixed(digits)}%` : UNKNOWN);
export const plural = (value, word, many = `${word}s`) => `${count(value)} ${value === 1 ? word : many}`;

export function seconds(value) {
  if (!known(value)) return UNKNOWN;
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  return value < 100 ? `${value.toFixed(value < 10 ? 2 : 1)} s` : `${whole.format(value)} s`;
}

export function bytes(value) {
  if (!known(value)) return UNKNOWN;
  if (value < 1024) return `${value} B`;
  const at = Math.min(4, Math.floor(Math.log2(value) / 10));
  return `${(value / 1024 ** at).toFixed(at > 1 ? 1 : 0)} ${["KiB", "MiB", "GiB", "TiB"][at - 1]}`;
}

/** A count in short, the whole of it as its title. */
export function figure(value, unit = "") {
  return h("span", { title: known(value) ? `${count(value)}${unit ? ` ${unit}` : ""}` : "not reported" }, brief(value));
}

const pad = (value) => String(value).padStart(2, "0");
export const clock = (at, precise = false) => {
  const moment = new Date(at * 1000);
  return `${pad(moment.getHours())}:${pad(moment.getMinutes())}${precise ? `:${pad(moment.getSeconds())}` : ""}`;
};
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
export const day = (at) => {
  const moment = new Date(at * 1000);
  return `${moment.getDate()} ${MONTHS[moment.getMonth()]}`;
};
export const utc = (at) => `${new Date(at * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC`;

/** A moment in local time; UTC as its title. */
export function time(at) {
  if (!known(at)) return UNKNOWN;
  const today = new Date().toDateString() === new Date(at * 1000).toDateString();
  return h("time", { datetime: new Date(at * 1000).toISOString(), title: utc(at) }, today ? clock(at, true) : `${day(at)}, ${clock(at)}`);
}

export function ago(at, now = Date.now() / 1000) {
  const past = Math.max(0, now - at);
  if (past < 60) return "now";
  if (past < 3600) return `${Math.floor(past / 60)} min ago`;
  return past < 86400 ? `${Math.floor(past / 3600)} h ago` : `${Math.floor(past / 86400)} d ago`;
}

/** What a cause means, in a sentence. */
export const CAUSES = {
  cold: "The first turn of its conversation: nothing was there to be read.",
  client_edit: "The client changed a message that it had sent before.",
  client_window: "The client cut messages or images from its history.",
  volatile_text: "A time, an id or other text that changes stood in old history.",
  tools_changed: "The tools differ from those of the turn before.",
  policy_eviction: "The policy took images or messages out of the history.",
  summary: "The policy put a summary in place of history.",
  engine_eviction: "The engine had evicted the blocks for want of room.",
  template: "The chat template does not only append.",
  salt: "Another salt, model or upstream than before, or other KV of images allowed.",
  below_block: "Too short: less than one block of the cache.",
  engine_unreported: "The engine did not say what it read.",
};
export const words = (name) => (name ?? "").replaceAll("_", " ");
export const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
