// The page: which view is shown, for whom, and when it asks anew.
import { Failure, ask, tell } from "./api.js";
import { conversation, conversations } from "./conversations.js";
import { empty, fill, h } from "./dom.js";
import { clock, count, plural } from "./format.js";
import { image, images } from "./images.js";
import { overview } from "./overview.js";
import { policy } from "./policy.js";

const VIEWS = { overview, conversations, conversation, images, image, policy };
const PARENT = { conversation: "conversations", image: "images" };
const RANGES = { "15m": "15 min", "1h": "1 hour", "6h": "6 hours", "24h": "24 hours", "7d": "7 days", "30d": "30 days", all: "All" };
const FILTERS = ["range", "tenant", "model", "policy"];
const EVERY = 2000, SLOWEST = 30000, SAID_EVERY = 30000;
const main = document.getElementById("main"), notice = document.getElementById("notice"), said = document.getElementById("said");
const live = document.getElementById("live"), themeButton = document.getElementById("theme"), out = document.getElementById("out");

const page = { view: null, name: "", parameters: {}, status: null, boot: null, live: true, timer: null, turn: 0, saidAt: 0, latest: null, shownAt: 0, focus: null, delay: EVERY, run: null };

const context = {
  get status() { return page.status; },
  get parameters() { return page.parameters; },
  filters: (names = FILTERS) => Object.fromEntries(names.map((name) => [name, page.parameters[name]]).filter(([, value]) => value)),
  address(view, parameters = {}) {
    const kept = Object.fromEntries(["range"].map((name) => [name, page.parameters[name]]));
    const filters = view === "conversation" || view === "image" ? kept : { ...kept, ...Object.fromEntries(["model", "policy"].map((name) => [name, page.parameters[name]])), tenant: PARENT[page.name] ? page.parameters.from : page.parameters.tenant };
    const from = view === "conversation" || view === "image" ? { from: PARENT[page.name] ? page.parameters.from : page.parameters.tenant } : {};
    const query = new URLSearchParams(Object.entries({ ...filters, ...from, ...parameters }).filter(([, value]) => value)).toString();
    return `#/${view}${query ? `?${query}` : ""}`;
  },
  go(view, parameters) { location.hash = context.address(view, parameters); },
  refresh: () => refresh(true),
  failed: (error) => failed(error),
};

function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const name = Object.hasOwn(VIEWS, path) ? path : "overview";
  page.parameters = Object.fromEntries(new URLSearchParams(query ?? ""));
  // One that there is not would be refused for ever, without a way to choose another.
  if (!Object.hasOwn(RANGES, page.parameters.range ?? "")) delete page.parameters.range;
  page.view?.close?.();
  page.name = name;
  page.turn += 1;
  page.view = VIEWS[name](context);
  page.latest = null;
  for (const one of document.querySelectorAll("#views a")) {
    const here = one.dataset.view === (PARENT[name] ?? name);
    if (here) one.setAttribute("aria-current", "page"); else one.removeAttribute("aria-current");
    one.href = context.address(one.dataset.view);
  }
  document.title = `${page.view.title} · Stillframe`;
  page.focus = main.contains(document.activeElement) ? document.activeElement.dataset?.key ?? null : null;
  fill(main, h("div", { class: "loading", role: "status" }, h("span", { class: "spinner", "aria-hidden": "true" }), "Loading…"));
  refresh(true);
}

async function refresh(again = false) {
  clearTimeout(page.timer);
  page.run?.abort();
  const run = (page.run = new AbortController());
  const turn = page.turn, began = performance.now();
  try {
    const status = await ask("status", {}, { again: page.status === null, signal: run.signal });
    if (status) heed(status);
    const [name, parameters] = page.view.ask();
    const data = await ask(name, parameters, { again, signal: run.signal });
    if (turn !== page.turn) return;
    // In another tab somebody has signed in.
    document.body.classList.remove("signing-in");
    if (data) show(data);
    page.shownAt = Date.now();
    calm();
    page.delay = Math.min(SLOWEST, Math.max(EVERY, 10 * (performance.now() - began)));
  } catch (error) {
    if (error.name === "AbortError" || turn !== page.turn) return;
    failed(error);
    page.delay = Math.min(SLOWEST, page.delay * 1.6);
  }
  if (run === page.run) next();
}

function next() {
  clearTimeout(page.timer);
  if (page.live && !document.hidden && !document.body.classList.contains("signing-in")) page.timer = setTimeout(refresh, page.delay);
}

function show(data) {
  if (page.latest === null) {
    fill(main, filterBar(), page.view.element);
    page.view.element.classList.add("arrived");
    // Whoever chose by the keyboard goes on from there.
    if (page.focus) main.querySelector(`[data-key="${CSS.escape(page.focus)}"]`)?.focus({ preventScroll: true });
    page.focus = null;
  }
  page.view.update(data);
  page.latest = data;
  if (Date.now() - page.saidAt > SAID_EVERY) {
    page.saidAt = Date.now();
    said.textContent = page.view.said?.(data) ?? "";
  }
}

function heed(status) {
  if (page.boot !== null && status.boot !== page.boot) tellOnce("The gateway was started anew. What only it knew (blocks that are resident, images that look alike) begins anew; the records are all there.");
  page.version ??= status.version;
  const warnings = [...(status.version === page.version ? [] : [`The gateway is of version ${status.version} now and this page of ${page.version}: load it anew.`]), ...(status.engine.warnings ?? []).map((one) => `The engine: ${one}.`)];
  if (warnings.join("\n") !== page.warnings) {
    page.warnings = warnings.join("\n");
    const element = document.getElementById("warnings");
    element.hidden = !warnings.length;
    fill(element, warnings.map((one) => h("li", {}, one)));
  }
  const isFirst = page.status === null;
  page.boot = status.boot;
  page.status = status;
  const { viewer, engine, kv } = status;
  const who = document.getElementById("who");
  who.hidden = viewer.tenant === null;
  fill(who, viewer.tenant === null ? null : `Tenant ${viewer.tenant.length > 20 ? `${viewer.tenant.slice(0, 18)}…` : viewer.tenant}`);
  out.hidden = viewer.by !== "token";
  const words = { vllm: "embedded vLLM", remote: "upstream engine", fake: "fake engine" }[engine.kind] ?? engine.kind;
  fill(document.getElementById("about"), h("span", { class: `state ${engine.state}` }, `${words}: ${engine.state}`), engine.reason ? ` (${engine.reason})` : "",
    engine.models.length ? ` · ${engine.models.slice(0, 3).join(", ")}` : "", ` · policy ${status.policy}`, ` · ${plural(status.running, "request")} running`,
    kv ? ` · ${count(kv.resident_tokens)} KV tokens resident${kv.uncertain_blocks ? `, ${plural(kv.uncertain_blocks, "block")} uncertain after a gap` : ""}` : " · this engine tells no KV events", ` · Stillframe ${status.version}`);
  if (!isFirst) redrawFilters();
}

// Filters.

let bar = null;
function filterBar() {
  const names = page.view.filters ?? FILTERS;
  bar = h("form", { class: "filters", "aria-label": "Which turns", onsubmit: (event) => event.preventDefault() });
  bar.names = names;
  bar.known = "";
  redrawFilters();
  return bar;
}

function redrawFilters() {
  if (!bar) return;
  const { tenants = [], models = [], policies = [] } = page.status?.names ?? {};
  const shown = JSON.stringify([tenants, models, policies]);
  if (shown === bar.known) return;
  bar.known = shown;
  const choose = (name, value) => context.go(page.name, { ...page.parameters, [name]: value });
  const range = page.parameters.range ?? "1h";
  const ranges = bar.names.includes("range") ? h("fieldset", { class: "segments" }, h("legend", { class: "unseen" }, "Time"), Object.entries(RANGES).map(([value, word]) => h("label", {},
    h("input", { type: "radio", name: "range", value, checked: value === range, "data-key": `range-${value}`, onchange: () => choose("range", value) }), h("span", {}, word)))) : null;
  const selects = [["tenant", "Tenant", tenants], ["model", "Model", models], ["policy", "Policy", policies]].filter(([name, , all]) => bar.names.includes(name) && (all.length > 1 || page.parameters[name])).map(([name, word, all]) => h("label", { class: "select" }, h("span", {}, word),
    h("select", { "data-key": `select-${name}`, onchange: (event) => choose(name, event.target.value) }, h("option", { value: "" }, "All"), [...new Set([...all, page.parameters[name]].filter(Boolean))].map((one) => h("option", { value: one, selected: one === page.parameters[name] }, one.length > 28 ? `${one.slice(0, 26)}…` : one)))));
  fill(bar, ranges, selects);
  bar.hidden = !ranges && !selects.length;
}

// What went wrong.

function failed(error) {
  if (!(error instanceof Failure)) {
    // A fault of this page's own must not end its asking.
    console.error(error);
    warn("This page cannot show what the gateway answers. Trying again; where it stays so, load the page anew.", true);
    return;
  }
  if (error.status === 401) return signIn(error);
  if (error.status === 404 && page.latest === null) return missing(error);
  if (error.status === 0 || error.status >= 500) {
    main.classList.toggle("stale", page.latest !== null);
    warn(`${error.message} ${page.latest ? `What is shown is of ${clock(page.shownAt / 1000, true)}. ` : ""}Trying again…`, true);
  } else warn(error.message, true);
  if (page.latest === null) fill(main, empty("Nothing to show yet.", error.status === 0 || error.status >= 500 ? "The page goes on by itself once the gateway answers." : "The gateway refuses what the page's address asks for."));
}

function missing(error) {
  const back = PARENT[page.name] ?? "overview";
  fill(main, h("div", { class: "card" }, h("h1", {}, "Not found"), h("p", {}, error.message), h("p", {}, h("a", { href: context.address(back) }, `Back to ${back}`))));
}

function warn(message, isBad = false) {
  if (notice.textContent === message && !notice.hidden) return;
  notice.hidden = false;
  notice.classList.toggle("bad", isBad);
  fill(notice, message);
}

function tellOnce(message) {
  warn(message);
  notice.dataset.stays = "1";
  setTimeout(() => { delete notice.dataset.stays; calm(); }, 15000);
}

function calm() {
  main.classList.remove("stale");
  if (!notice.dataset.stays) notice.hidden = true;
}

function signIn(error) {
  if (document.body.classList.contains("signing-in")) return;
  clearTimeout(page.timer);
  notice.hidden = true;
  document.body.classList.add("signing-in");
  // What an address or a name may tell is not for whoever looks now.
  for (const id of ["who", "out", "warnings"]) document.getElementById(id).hidden = true;
  page.warnings = null;
  fill(document.getElementById("about"));
  const wasIn = page.status !== null;
  const input = h("input", { id: "token", type: "password", name: "token", autocomplete: "current-password", required: true, "aria-describedby": "token-help", spellcheck: "false" });
  const wrong = h("p", { class: "bad", role: "alert" });
  const button = h("button", { type: "submit", class: "button primary" }, "Sign in");
  const form = h("form", { class: "card sign-in", async onsubmit(event) {
    event.preventDefault();
    button.disabled = true;
    try {
      await tell("login", { token: input.value });
      document.body.classList.remove("signing-in");
      page.status = null;
      route();
    } catch (failure) {
      fill(wrong, failure.message);
      input.setAttribute("aria-invalid", "true");
      input.select();
    } finally { button.disabled = false; }
  } }, h("h1", {}, wasIn ? "Sign in again" : "Sign in"), h("p", { id: "token-help" }, wasIn && error.code === "dashboard_token_required" ? "The session has ended, or the gateway's tokens were changed." : error.message),
  h("label", { for: "token" }, "Token"), input, wrong, button);
  fill(main, form);
  page.latest = null;
  input.focus();
}

// Tools.

function themed() {
  const now = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  themeButton.dataset.now = now;
  themeButton.setAttribute("aria-label", now === "dark" ? "Use light colours" : "Use dark colours");
  themeButton.title = themeButton.getAttribute("aria-label");
}

themeButton.addEventListener("click", () => {
  const to = themeButton.dataset.now === "dark" ? "light" : "dark";
  document.documentElement.dataset.theme = to;
  try { localStorage.setItem("stillframe-theme", to); } catch { /* it holds for this page then */ }
  themed();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", themed);

live.addEventListener("click", () => {
  page.live = !page.live;
  live.setAttribute("aria-pressed", String(page.live));
  document.getElementById("live-word").textContent = page.live ? "Live" : "Paused";
  if (page.live) refresh(); else clearTimeout(page.timer);
});

out.addEventListener("click", async () => {
  try { await tell("logout"); } catch (error) { failed(error); return; }
  page.status = null;
  refresh(true);
});

document.addEventListener("visibilitychange", () => { if (document.hidden) clearTimeout(page.timer); else if (page.live) refresh(); });
addEventListener("online", () => refresh());
addEventListener("hashchange", () => {
  if (location.hash === "#main") { main.focus(); history.replaceState(null, "", context.address(page.name, page.parameters)); return; }
  document.body.classList.remove("signing-in");
  route();
  // Reading goes on at the beginning of what a link led to.
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
});
themed();
route();
