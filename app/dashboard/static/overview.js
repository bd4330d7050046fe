// Now and over time.
import { card, empty, fill, h, table, values } from "./dom.js";
import { CAUSES, UNKNOWN, brief, clock, count, day, figure, known, percent, plural, seconds, time, utc, words } from "./format.js";
import { imageName, legend, link, partsOf, reported, shortName, told, tokenBar } from "./parts.js";
import { Plot } from "./plot.js";

const OUTCOMES = [
  { name: "completed", class: "done" }, { name: "aborted", class: "aborted" },
  { name: "failed", class: "failed" }, { name: "refused", class: "refused" }];

export function overview(context) {
  const hero = h("section", { class: "card hero", "aria-label": "Prompt tokens in this time" });
  const tiles = h("ul", { class: "tiles", "aria-label": "Figures of this time" });
  const keys = legend();
  const over = card("Over time", null, { class: "full", beside: keys });
  const course = new Plot("Prompt tokens, evictions, first tokens and requests over time");
  const courseValues = values("Over time", timeColumns([]));
  const byTurn = card("By turn of the conversation", "Mean of a request. A history that is never rewritten reads more with every turn.");
  const turns = new Plot("Prompt tokens by turn, mean of a request");
  const turnValues = values("By turn", turnColumns([]));
  const causes = card("Why less was read than was sent before", "Ranked by lost tokens: sent before, not read now.");
  const shares = card("Requests by the share of their prompt that was read");
  const marks = card("Latest evictions", "By the policy: images left the history. By the engine: a turn paid for blocks that had gone.");
  over.body.append(course.element, courseValues.element);
  byTurn.body.append(turns.element, turnValues.element);
  const grid = h("div", { class: "grid" }, hero, tiles, over.element, byTurn.element, causes.element, shares.element, marks.element);
  const none = h("div");
  return {
    title: "Overview",
    element: h("div", {}, h("h1", { class: "unseen" }, "Overview"), none, grid),
    ask: () => ["overview", context.filters()],
    close() { course.close(); turns.close(); },
    update(data) {
      const quiet = data.totals.requests === 0;
      fill(none, quiet ? noTurns(context) : null);
      for (const part of [byTurn, causes, shares, marks]) part.element.hidden = quiet;
      told(keys, partsOf(data.over_time));
      drawHero(hero, data);
      drawTiles(tiles, data, context);
      drawCourse(course, courseValues, data);
      drawTurns(turns, data.by_turn);
      turnValues.update(data.by_turn.map(reported), turnColumns(data.by_turn));
      fill(causes.body, causesTable(data.causes, data.totals));
      fill(shares.body, sharesTable(data.read_shares));
      fill(marks.body, marksTable(data.evictions.marks, context));
    },
    said: (data) => `${plural(data.totals.requests, "prompt")}, ${percent(data.totals.read_ratio)} read, ${count(data.totals.computed_tokens)} tokens not read.`,
  };
}

function noTurns(context) {
  const { names, engine } = context.status ?? {};
  const any = names?.models?.length;
  return any
    ? empty("No turns in this time.", "Choose a longer time, or other filters. The page updates by itself.")
    : empty("No turns yet.", engine?.state === "ready" || !engine
      ? "Point a chat client's base_url at this gateway's /v1. Every chat shows here about a second after its end."
      : engine.state === "starting" ? "The engine is starting. Every chat shows here about a second after its end."
      : `The engine is ${engine.state}${engine.reason ? `: ${engine.reason}` : ""}.`);
}

function drawHero(element, { totals: sums, before: earlier }) {
  const totals = reported(sums), before = reported(earlier), whole = Math.max(1, totals.prompt_tokens ?? 0);
  fill(element,
    h("div", { class: "hero-figures" },
      h("div", {}, h("p", { class: "label" }, "Read, weighted by tokens"), h("p", { class: "huge" }, percent(totals.read_ratio)), h("p", { class: "soft" }, change(totals.read_ratio, before.read_ratio, "points"))),
      h("div", {}, h("p", { class: "label" }, "Not read: write and uncached"), h("p", { class: "huge" }, count(totals.computed_tokens)), h("p", { class: "soft" }, change(totals.computed_tokens, before.computed_tokens))),
      h("dl", { class: "parts" }, partsOf([totals]).map((one) => h("div", {}, h("dt", {}, h("i", { class: `key ${one.class}`, "aria-hidden": "true" }), one.name), h("dd", {}, count(totals[one.key])))))),
    tokenBar(totals, whole),
    totals.derived_write_tokens ? h("p", { class: "note" }, `${count(totals.derived_write_tokens)} of the written tokens are derived: the engine does not report them.`) : null,
    totals.unreported ? h("p", { class: "note" }, `Of ${plural(totals.unreported, totals.reported ? "more request" : "request")} the engine did not say what it read; they are in no figure of tokens.`) : null);
}

function change(now, before, unit = "") {
  if (!known(now) || !known(before) || (!unit && !before)) return "no figure of the time before";
  const difference = unit ? (now - before) * 100 : ((now - before) / before) * 100;
  const text = Math.abs(difference) < 0.05 ? "as" : `${difference > 0 ? "+" : "−"}${Math.abs(difference).toFixed(difference < 10 && difference > -10 ? 1 : 0)}${unit ? ` ${unit}` : "%"} against`;
  return `${text} the time before`;
}

function drawTiles(element, { totals: sums, before, evictions, outcomes }, context) {
  const totals = reported(sums);
  const sum = (rows, key = "requests") => rows.reduce((all, row) => all + row[key], 0);
  const bad = outcomes.filter((row) => row.name === "failed").reduce((all, row) => all + row.requests, 0);
  const blocks = evictions.blocks;
  const latency = known(totals.first_token_p50) ? totals.first_token_p50 : totals.first_token_seconds;
  const encoder = context.status?.has_encoder_events;
  const all = [
    ["Prompts", count(totals.requests), bad ? `${count(bad)} failed` : change(totals.requests, before.requests)],
    ["First token", seconds(latency), known(totals.first_token_p95) ? `half within this; 95% within ${seconds(totals.first_token_p95)}` : "mean of the answers"],
    ["Lost tokens", figure(totals.lost_tokens, "tokens"), totals.prompt_tokens ? `${percent(totals.lost_tokens / totals.prompt_tokens)} of all prompt tokens` : "sent before, not read"],
    ["Evictions", count(sum(evictions.policy_turns) + sum(evictions.engine_turns)), `turns: ${count(sum(evictions.policy_turns))} by policy, ${count(sum(evictions.engine_turns))} paid for the engine's${blocks ? `; ${brief(sum(blocks, "tokens"))} tokens of KV left` : ""}`],
    ["Images sent", count(totals.images), encoder === false ? "the engine tells nothing of its encoder" : `encoder: ${count(totals.encoder_runs)} computed, ${count(totals.encoder_hits)} reused`],
    known(totals.cost) ? ["Cost", totals.cost >= 1 ? totals.cost.toFixed(2) : totals.cost.toFixed(4), "by the price table"] : null,
  ];
  fill(element, all.filter(Boolean).map(([name, value, note]) => h("li", {}, h("span", { class: "label" }, name), h("span", { class: "big" }, value), h("span", { class: "soft" }, note))));
}

function places(window) {
  return Array.from({ length: window.bins }, (_, at) => window.since + at * window.bin_seconds);
}

function spread(window, rows, key, name = null) {
  const found = new Array(window.bins).fill(null);
  for (const row of rows) {
    if (name !== null && row.name !== name) continue;
    const at = Math.round((row.start - window.since) / window.bin_seconds);
    if (at >= 0 && at < window.bins) found[at] = row[key];
  }
  return found;
}

function drawCourse(plot, table, { window, totals, over_time: sums, evictions, outcomes }) {
  const rows = sums.map(reported);
  const starts = places(window), long = window.bin_seconds >= 86400, precise = window.bin_seconds < 60;
  const tokens = partsOf(rows).map((one) => ({ name: one.name, class: one.class, values: spread(window, rows, one.key) }));
  const middle = spread(window, rows, "first_token_p50"), high = spread(window, rows, "first_token_p95"), mean = spread(window, rows, "first_token_seconds");
  const exact = middle.some(known);
  const latency = exact
    ? [{ name: "first token, half", class: "half", values: middle }, { name: "first token, 95%", class: "most", values: high }]
    : [{ name: "first token, mean", class: "half", values: mean }];
  const lanes = [
    { name: "turns with images evicted by the policy", brief: "policy", class: "by-policy", shape: "diamond", values: spread(window, evictions.policy_turns, "requests") },
    { name: "turns that paid for the engine's evictions", brief: "engine", class: "by-engine", shape: "triangle", values: spread(window, evictions.engine_turns, "requests") }];
  if (evictions.blocks) lanes.push({ name: "KV tokens evicted", brief: "KV", class: "by-kv", shape: "square", values: spread(window, evictions.blocks, "tokens") });
  const ends = OUTCOMES.map((one) => ({ ...one, values: spread(window, outcomes, "requests", one.name) }));
  plot.update({
    labels: starts.map((at) => (long ? day(at) : clock(at, precise))),
    ticks: ticksOf(starts, window.bin_seconds),
    panels: [
      { title: "Prompt tokens", height: 190, kind: "stack", format: brief, series: tokens, none: totals.unreported && !totals.reported ? "not reported" : null },
      { title: "Evictions", height: 20 * lanes.length, kind: "lanes", series: lanes },
      { title: exact ? "Time to the first token: half of the answers (line), 95% (dashes)" : "Time to the first token, mean", brief: "Time to the first token", height: 80, kind: "lines", format: (value) => (value ? seconds(value) : "0"), series: latency },
      { title: "Requests: completed, aborted (light), failed and refused (striped)", brief: "Requests; failed and refused striped", height: 56, kind: "stack", format: (value) => (Number.isInteger(value) ? brief(value) : ""), series: ends },
    ],
    tip(at) {
      const shown = (series, format) => series.filter((one) => known(one.values[at])).map((one) => ({ class: one.class, name: one.name, value: format(one.values[at]) }));
      const from = starts[at], to = from + window.bin_seconds;
      const told = [...shown(tokens, count), ...shown(ends.filter((one) => one.values[at]), count), ...shown(latency, seconds), ...shown(lanes, count)];
      return { title: long ? `${day(from)}${window.bin_seconds > 86400 ? ` to ${day(to - 1)}` : ""}` : `${day(from)}, ${clock(from, precise)} to ${clock(to, precise)}`, rows: told.length ? told : [{ name: "no turns", value: "" }] };
    },
  });
  table.update(rows.map((row) => ({ ...row, long })).reverse(), timeColumns(rows));
}

function ticksOf(starts, length) {
  const steps = [15, 60, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800, 1209600];
  const step = steps.find((one) => one >= length && (starts.length * length) / one <= 13) ?? 2419200;
  const offset = new Date(starts[0] * 1000).getTimezoneOffset() * 60;
  return starts.flatMap((start, at) => ((start - offset) % step < length ? [{ at, text: step >= 86400 || length >= 86400 ? day(start) : (start - offset) % 86400 < length ? day(start) : clock(start, step < 60) }] : []));
}

function drawTurns(plot, rows) {
  const mean = (row, key) => (row.reported ? row[key] / row.reported : row.unreported ? null : 0);
  const series = partsOf(rows).map((one) => ({ name: one.name, class: one.class, values: rows.map((row) => mean(row, one.key)) }));
  plot.update({
    labels: rows.map((row) => `turn ${row.turn}`),
    ticks: rows.map((row, at) => ({ at, text: row.turn })),
    panels: [{ title: "Prompt tokens of a request", height: 190, kind: "stack", format: brief, series }],
    tip: (at) => ({ title: `Turn ${rows[at].turn}`, rows: [...series.map((one) => ({ class: one.class, name: one.name, value: count(one.values[at]) })),
      { name: "read", value: percent(rows[at].read_ratio) }, { name: "requests", value: count(rows[at].requests) }] }),
  });
}

function causesTable(rows, totals) {
  if (!rows.length && totals.unreported && !totals.reported) return empty("Nothing is known.", "The engine did not say what it read.");
  if (!rows.length) return empty("Nothing was lost.", "Every turn read all that was sent before.");
  const most = Math.max(1, ...rows.map((row) => row.lost_tokens));
  return table("Causes by lost tokens", [
    { name: "Cause", cell: (row) => h("span", { title: CAUSES[row.cause] }, words(row.cause)) },
    { name: "By", cell: (row) => h("span", { class: `actor by-${row.actor}` }, row.actor ?? UNKNOWN) },
    { name: "Turns", number: true, cell: (row) => count(row.requests) },
    { name: "Lost tokens", number: true, cell: (row) => count(row.lost_tokens) },
    { name: "", class: "meter-cell", cell: (row) => h("div", { class: "meter", "aria-hidden": "true" }, h("span", { class: `by-${row.actor}`, style: { width: `${(100 * row.lost_tokens) / most}%` } })) },
  ], rows);
}

function sharesTable(rows) {
  const most = Math.max(1, ...rows.map((row) => row.requests)), all = Math.max(1, rows.reduce((sum, row) => sum + row.requests, 0));
  return table("Requests by the share that was read", [
    { name: "Read", cell: (row) => (row.high ? `${row.low * 100}–${Math.round(row.high * 100)}%` : "nothing") },
    { name: "", class: "meter-cell", cell: (row) => h("div", { class: "meter", "aria-hidden": "true" }, h("span", { class: "read", style: { width: `${(100 * row.requests) / most}%` } })) },
    { name: "Requests", number: true, cell: (row) => count(row.requests) },
    { name: "Share", number: true, cell: (row) => percent(row.requests / all, 0) },
  ], rows, { class: "tight" });
}

function marksTable(rows, context) {
  if (!rows.length) return empty("No evictions in this time.");
  return table("Latest evictions", [
    { name: "When", cell: (row) => time(row.seconds) },
    { name: "By", cell: (row) => h("span", { class: `actor by-${row.by}` }, row.by) },
    { name: "Conversation", cell: (row) => link(context, "conversation", { tenant: row.tenant, id: row.conversation }, `${shortName(row.conversation)}, turn ${row.turn}`) },
    { name: "Image", class: "fold", cell: (row) => (row.image_id ? link(context, "image", { tenant: row.tenant, id: row.image_id }, h("code", {}, imageName(row.image_id))) : "–") },
    { name: "Lost tokens", number: true, cell: (row) => count(row.lost_tokens) },
  ], rows.slice(0, 8));
}

function timeColumns(rows) {
  return [
    { name: "From", cell: (row) => h("span", { title: utc(row.start) }, row.long ? day(row.start) : `${day(row.start)}, ${clock(row.start)}`) },
    { name: "Requests", number: true, cell: (row) => count(row.requests) },
    ...tokenColumns(rows),
    { name: "First token", number: true, cell: (row) => seconds(row.first_token_p50 ?? row.first_token_seconds) },
  ];
}

function turnColumns(rows) {
  return [{ name: "Turn", cell: (row) => row.turn }, { name: "Requests", number: true, cell: (row) => count(row.requests) }, ...tokenColumns(rows)];
}

function tokenColumns(rows) {
  return [
    ...partsOf(rows).map((one) => ({ name: one.name, number: true, cell: (row) => count(row[one.key]) })),
    { name: "Read", number: true, cell: (row) => percent(row.read_ratio) },
    { name: "Lost", number: true, cell: (row) => count(row.lost_tokens) },
  ];
}

