// The policy in force, what others would have cost, and what turns under each did cost.
import { ask, tell } from "./api.js";
import { card, empty, fill, h, table } from "./dom.js";
import { count, known, percent, plural, seconds, time, words } from "./format.js";
import { facts, legend, partsOf, told, tokenBar } from "./parts.js";

const LIMITS = [
  "Clients are taken to send what they sent, whatever they would have been answered.",
  "The cache never forgets here: what an engine evicts for want of room is not simulated.",
  "Tokens are estimates, the same ones for every policy; compare them with each other, not with the measured ones.",
  "What stood at the tail of a single turn (times, ids, reminders) is kept nowhere and is left out; images that only look alike are never taken for each other.",
  "How good the answers would have been without the images that a policy takes out, no replay can say: stillframe eval measures that.",
];

export function policy(context) {
  const force = card("In force");
  const what = card("What others would have cost", "The latest recorded turns, planned anew under each policy by the gateway's own planner.", { class: "full" });
  const keys = legend();
  const spent = card("What turns under each policy did cost", "Measured by the engine, in the chosen time.", { class: "full", beside: keys });
  const start = h("button", { type: "button", class: "button primary", "data-key": "replay" }, "Replay recorded turns");
  const bar = h("progress", { max: 1, value: 0, "aria-label": "Progress of the replay" });
  const state = h("div", { class: "replay-state", role: "status" });
  const result = h("div");
  what.body.append(h("div", { class: "replay-head" }, start, bar, state), result);
  let inForce = null, timer = null, closed = false;

  const show = (now) => {
    const running = now.state === "running" || now.state === "waiting";
    start.disabled = running;
    start.textContent = now.state === "done" ? "Replay again" : "Replay recorded turns";
    bar.hidden = !running;
    if (now.of) bar.value = now.done / now.of; else bar.removeAttribute("value");
    fill(state, running ? (now.of ? `${count(now.done)} of ${count(now.of)} turns; now ${now.policy}` : "Reading the recorded turns…")
      : now.state === "failed" ? h("span", { class: "bad" }, now.message)
      : now.state === "done" ? ["Made ", time(now.made_seconds), ` in ${seconds(now.took_seconds)}.`] : "Runs beside the gateway's work and changes nothing.");
    fill(result, now.state === "done" ? comparison(now.result, inForce) : null);
    clearTimeout(timer);
    if (running) timer = setTimeout(look, 700);
  };
  const look = async () => {
    clearTimeout(timer);
    try {
      const now = await ask("whatif", {}, { again: true });
      if (!closed) show(now);
    } catch (error) {
      // A replay goes on whether or not it is heard of.
      if (!closed) { context.failed(error); timer = setTimeout(look, 3000); }
    }
  };
  start.addEventListener("click", async () => {
    start.disabled = true;
    try {
      const now = await tell("whatif");
      if (!closed) show(now);
    } catch (error) {
      start.disabled = false;
      if (!closed) context.failed(error);
    }
  });
  bar.hidden = true;
  return {
    title: "Policy",
    filters: ["range", "tenant", "model"],
    element: h("div", {}, h("h1", { class: "unseen" }, "Policy"), h("div", { class: "grid" }, force.element, what.element, spent.element)),
    ask: () => ["policy", context.filters(["range", "tenant", "model"])],
    close() { closed = true; clearTimeout(timer); },
    update(data) {
      const isFirst = inForce === null;
      inForce = data.default.name;
      drawForce(force.body, data);
      told(keys, partsOf(data.policies));
      fill(spent.body, measured(data));
      if (isFirst) look();
    },
    said: (data) => `The policy in force is ${data.default.name}.`,
  };
}

function drawForce(element, { default: own, rules, headers }) {
  const set = own.parameters.filter((one) => known(one.value) && !(Array.isArray(one.value) && !one.value.length));
  const open = element.querySelector("details")?.open;
  fill(element,
    h("div", { class: "force" },
      h("p", { class: "big" }, own.name, h("small", { class: "soft" }, ` version ${own.version}`)),
      h("p", {}, own.description),
      facts([["Kind", own.kind], ["Clients may ask for", headers.length ? headers.join(", ") : "none"], ["Rules", rules.length ? plural(rules.length, "rule") : "none: it holds for every request"]])),
    rules.length ? table("Rules, the first that fits counts", [
      { name: "Model", cell: (row) => row.model ?? "any" }, { name: "Tenant", cell: (row) => row.tenant ?? "any" }, { name: "Share", number: true, title: "of their conversations", cell: (row) => (known(row.share) ? percent(row.share, row.share * 100 % 1 ? 1 : 0) : "all") }, { name: "Policy", cell: (row) => row.policy }], rules) : null,
    h("details", { class: "values", open: open ? "" : null }, h("summary", { "data-key": "parameters" }, `${plural(set.length, "parameter")}`), table("Parameters", [
      { name: "Parameter", cell: (row) => h("code", {}, row.key) },
      { name: "Value", cell: (row) => h("code", {}, Array.isArray(row.value) ? row.value.map((one) => (typeof one === "object" ? one.name : one)).join(", ") : String(row.value)) },
      { name: "Meaning", cell: (row) => row.meaning }], set)));
}

function comparison(result, inForce) {
  const notes = h("details", { class: "values" }, h("summary", {}, "What this cannot say"), h("ul", { class: "plain-list" }, LIMITS.map((one) => h("li", {}, one))));
  if (!result.turns) {
    return [empty("There are no recorded turns to replay.",
      result.cut ? `Of ${plural(result.cut, "conversation")} the beginning is no longer in the ledger, so that no policy can be tried on the rest.` : "",
      result.beyond ? `${plural(result.beyond, "conversation")} began before the latest turns that are looked at.` : "",
      result.cut || result.beyond ? "" : "The ledger keeps what clients sent for ledger.max_age_seconds; it is empty."), notes];
  }
  const own = result.policies.find((one) => one.policy === inForce);
  const scale = Math.max(1, ...result.policies.map((one) => one.prompt_tokens));
  const few = result.turns < 40;
  return [
    h("p", {}, `${plural(result.turns, "turn")} of ${plural(result.conversations, "conversation")}, from `, time(result.first_seconds), " to ", time(result.last_seconds), ".",
      few ? " Too few to choose a policy by." : "",
      result.cut ? ` ${plural(result.cut, "conversation")} left out: the beginning is no longer in the ledger.` : "",
      result.beyond ? ` ${plural(result.beyond, "more conversation")} left out to bound the work.` : ""),
    legend([{ name: "read", class: "read" }, { name: "not read", class: "write" }]),
    table("Policies over the same turns, by estimate", [
      { name: "Policy", cell: (row) => [h("strong", {}, row.policy), row.policy === inForce ? h("span", { class: "chip quiet" }, "in force") : null, row.refused ? h("span", { class: "chip quiet", title: "by its quotas; they are in no sum" }, `${plural(row.refused, "turn")} refused`) : null] },
      { name: "Prompt tokens", class: "bar-cell wide-bar", cell: (row) => tokenBar({ read_tokens: row.read_tokens, write_tokens: row.computed_tokens, uncached_tokens: 0 }, scale) },
      { name: "Not read", number: true, cell: (row) => count(row.computed_tokens) },
      { name: "Against in force", number: true, cell: (row) => against(row, own) },
      { name: "Read", number: true, cell: (row) => percent(row.prompt_tokens ? row.read_tokens / row.prompt_tokens : null) },
      { name: "Longest prompt", number: true, cell: (row) => count(row.max_prompt_tokens) },
      { name: "Images sent", number: true, cell: (row) => count(row.images) },
      { name: "Breaks", class: "fold", cell: (row) => breaks(row) },
    ], [...result.policies].sort((one, other) => one.computed_tokens - other.computed_tokens)),
    result.measured ? h("p", { class: "note" }, `As served, under the policies of then, the engine reported ${count(result.measured.computed_tokens)} tokens not read of ${count(result.measured.prompt_tokens)} in ${plural(result.measured.turns, "turn")} (${percent(result.measured.read_tokens / Math.max(1, result.measured.prompt_tokens))} read).`) : h("p", { class: "note" }, "Of these turns no measured figures are kept."),
    notes];
}

function against(row, own) {
  if (!own || row === own || !own.computed_tokens) return "–";
  // Sums of other turns say nothing about each other.
  if (row.turns - row.refused !== own.turns - own.refused) return h("span", { title: "one of them refused turns, so that the sums are of other turns" }, "other turns");
  const difference = (row.computed_tokens - own.computed_tokens) / own.computed_tokens;
  const same = Math.abs(difference) < 0.005;
  return h("span", { class: same ? null : difference < 0 ? "good" : "bad" }, same ? "same" : `${difference > 0 ? "+" : "−"}${Math.abs(difference * 100).toFixed(0)}%`);
}

function breaks(row) {
  const all = Object.entries(row.breaks);
  return all.length ? all.map(([name, times]) => `${count(times)} ${words(name)}`).join(", ") : "none";
}

function measured(data) {
  if (!data.policies.length) return empty("No turns in this time.", "Choose a longer time.");
  const scale = Math.max(1, ...data.policies.map((row) => row.prompt_tokens / Math.max(1, row.reported)));
  const compared = new Map(data.compared.map((one) => [one.policy, one]));
  return table("What turns under each policy did cost", [
    { name: "Policy", cell: (row) => h("strong", {}, row.policy) },
    { name: "Prompt of a request, mean", class: "bar-cell wide-bar", cell: (row) => tokenBar(mean(row), scale) },
    { name: "Requests", number: true, cell: (row) => count(row.requests) },
    { name: "Read", number: true, cell: (row) => percent(row.read_ratio) },
    { name: "Not read, each", number: true, cell: (row) => count(row.reported ? row.computed_tokens / row.reported : null) },
    { name: "Read against the first, 95%", number: true, cell: (row) => interval(compared.get(row.policy)?.differences?.read_ratio) },
    { name: "First token", number: true, class: "number fold", cell: (row) => seconds(row.first_token_seconds) },
  ], data.policies);
}

function mean(row) {
  const each = (value) => value / Math.max(1, row.reported);
  return row.reported ? { read_tokens: each(row.read_tokens), loaded_tokens: each(row.loaded_tokens), write_tokens: each(row.write_tokens), uncached_tokens: each(row.uncached_tokens), prompt_tokens: each(row.prompt_tokens) } : { read_tokens: null };
}

function interval(found) {
  if (!found) return "–";
  const points = (value) => `${value > 0 ? "+" : value < 0 ? "−" : ""}${Math.abs(value * 100).toFixed(1)}`;
  return known(found.low) ? `${points(found.value)} (${points(found.low)} to ${points(found.high)}) points` : `${points(found.value)} points (too few)`;
}
