// The list of conversations, and one of them.
import { card, empty, fill, h, table } from "./dom.js";
import { ask } from "./api.js";
import { CAUSES, UNKNOWN, ago, count, known, percent, plural, seconds, time, words } from "./format.js";
import { cause, facts, imageName, legend, link, partsOf, picture, place, reported, shortName, told, tokenBar } from "./parts.js";

// So many are kept at most where older ones were asked for; then the list begins anew.
const MOST = 500;

export function conversations(context) {
  const keys = legend();
  const list = card("Conversations", null, { class: "full", beside: keys });
  const more = h("button", { type: "button", class: "button" }, "Show older ones");
  const rest = h("div", { class: "more" }, more);
  const find = h("input", { type: "search", id: "find", placeholder: "Part of a conversation's id", value: context.parameters.find ?? "", autocomplete: "off", spellcheck: "false", "data-key": "find" });
  const search = h("form", { class: "search", role: "search" }, h("label", { for: "find" }, "Find"), find, h("button", { type: "submit", class: "button" }, "Find"));
  search.addEventListener("submit", (event) => { event.preventDefault(); context.go("conversations", { find: find.value.trim() }); });
  let first = [], older = [], cursor = null;
  const name = (one) => JSON.stringify([one.tenant, one.conversation]);
  const without = (rows, others) => {
    const there = new Set(others.map(name));
    return rows.filter((one) => !there.has(name(one)));
  };
  const draw = () => {
    const rows = [...first, ...older];
    told(keys, partsOf(rows));
    fill(list.body, rows.length ? listed(rows, context) : context.parameters.find
      ? empty("No conversation has this in its id.", "Ids stand in the response header x-stillframe-conversation.")
      : empty("No conversations yet.", "Each chat belongs to one; it shows here about a second after its end."));
    rest.hidden = cursor === null;
  };
  more.addEventListener("click", async () => {
    more.disabled = true;
    try {
      const page = await ask("conversations", { ...asked(), before: cursor }, { again: true });
      older = [...older, ...without(page.conversations, [...first, ...older])];
      cursor = page.cursor;
      draw();
    } catch (error) { context.failed(error); } finally { more.disabled = false; }
  });
  const asked = () => ({ ...context.filters(["tenant", "model", "policy"]), find: context.parameters.find });
  return {
    title: "Conversations",
    filters: ["tenant", "model", "policy"],
    element: h("div", {}, h("h1", { class: "unseen" }, "Conversations"), search, list.element, rest),
    ask: () => ["conversations", asked()],
    update(data) {
      // What newer ones push out of the first page goes on with the older ones.
      if (older.length) older = without([...without(first, older), ...older], data.conversations);
      first = data.conversations;
      if (first.length + older.length > MOST) older = [];
      if (!older.length) cursor = data.cursor;
      draw();
    },
    said: (data) => `${plural(data.conversations.length, "conversation")} shown.`,
  };
}

function listed(all, context) {
  const rows = all.map(reported);
  const scale = Math.max(1, ...rows.map((row) => row.prompt_tokens ?? 0));
  const whose = context.status?.viewer?.tenant ? [] : [{ name: "Tenant", class: "fold", cell: (row) => shortName(row.tenant, 16) }];
  return table("Conversations, the latest first", [
    { name: "Conversation", cell: (row) => link(context, "conversation", { tenant: row.tenant, id: row.conversation }, h("code", {}, shortName(row.conversation))) },
    ...whose,
    { name: "Policy", class: "fold", cell: (row) => row.policies.join(", ") },
    { name: "Turns", number: true, cell: (row) => count(row.turns) },
    { name: "Prompt tokens", class: "bar-cell", cell: (row) => tokenBar(row, scale) },
    { name: "Read", number: true, cell: (row) => percent(row.read_ratio) },
    { name: "Not read", number: true, title: "write and uncached tokens", cell: (row) => count(row.computed_tokens) },
    { name: "Lost", number: true, title: "sent before, not read", cell: (row) => count(row.lost_tokens) },
    { name: "Last turn", class: "fold", cell: (row) => h("span", { class: "nowrap" }, time(row.last_seconds), h("small", {}, ` ${ago(row.last_seconds)}`)) },
  ], rows);
}

export function conversation(context) {
  const { tenant, id } = context.parameters;
  const head = h("div", { class: "page-head" });
  const keys = legend();
  const turns = card("Turns", "Each bar is a prompt. The mark shows where it stopped matching what was sent before.", { class: "full", beside: keys });
  const open = new Set();
  let data = null;
  const draw = () => {
    told(keys, [...partsOf(data.turns), { name: "break", class: "break-key" }]);
    fill(turns.body, turnTable(data, context, open, draw));
  };
  return {
    title: `Conversation ${shortName(id ?? "")}`,
    filters: [],
    element: h("div", {}, head, turns.element),
    ask: () => ["conversation", { tenant, id }],
    update(now) {
      data = now;
      drawHead(head, data, context);
      draw();
    },
    said: (now) => `${plural(now.turns.length, "turn")}.`,
  };
}

function drawHead(element, data, context) {
  const sum = (key) => data.turns.reduce((all, turn) => all + (known(turn.read_tokens) ? turn[key] ?? 0 : 0), 0);
  const prompt = sum("prompt_tokens"), read = sum("read_tokens"), last = data.turns.at(-1);
  // Of a conversation of which the engine reported nothing, nothing is known.
  const tokens = (value) => (data.turns.some((turn) => known(turn.read_tokens)) ? `${count(value)} tokens` : UNKNOWN);
  const policies = [...new Set(data.turns.map((turn) => `${turn.policy} ${turn.policy_version}`))];
  const kv = data.kv;
  fill(element,
    h("p", { class: "crumbs" }, link(context, "conversations", {}, "Conversations")),
    h("h1", {}, "Conversation ", h("code", { class: "id" }, data.conversation)),
    facts([
      ["Read", percent(prompt ? read / prompt : null)],
      sum("loaded_tokens") ? ["Loaded", tokens(sum("loaded_tokens")), "of images: from the pool of their KV"] : null,
      ["Not read", tokens(prompt - read - sum("loaded_tokens")), "write and uncached"],
      ["Lost", tokens(sum("lost_tokens")), "sent before, not read"],
      ["Turns", count(data.turns.length)],
      ["Policy", policies.join(", ")],
      ["Model", [...new Set(data.turns.map((turn) => turn.model))].join(", ")],
      ["Tenant", shortName(data.tenant, 20)],
      ["Last turn", time(last.seconds)],
      kv ? ["Readable now", kv.known_blocks ? `${count(kv.resident_prefix_tokens)} tokens; ${count(kv.resident_blocks)} of ${plural(kv.known_blocks, "block")} resident` : "not known of this engine's life", "Which of its blocks the engine holds, by its events"] : null,
    ]),
    data.is_cut ? h("p", { class: "note" }, `Only the latest ${count(data.turns.length)} turns are shown.`) : null);
}

function turnTable(data, context, open, draw) {
  const scale = Math.max(1, ...data.turns.map((turn) => turn.prompt_tokens ?? 0));
  const rows = data.turns.flatMap((turn) => {
    const isOpen = open.has(turn.id), row = `turn-${turn.id}`;
    const toggle = h("button", { type: "button", class: "disclose", "aria-expanded": String(isOpen), "aria-controls": row, "data-key": row, onclick() {
      if (isOpen) open.delete(turn.id); else open.add(turn.id);
      draw();
    } }, h("span", { class: "arrow", "aria-hidden": "true" }), h("span", { class: "unseen" }, "Turn "), turn.turn || "–");
    const broken = known(turn.break_token) && turn.lost_tokens ? turn.break_token : null;
    return [
      h("tr", { class: isOpen ? "open" : null },
        h("th", { scope: "row" }, toggle),
        h("td", { class: "bar-cell wide-bar" }, tokenBar(turn, scale, broken)),
        h("td", { class: "number fold" }, count(turn.prompt_tokens)),
        h("td", { class: "number" }, percent(turn.prompt_tokens && known(turn.read_tokens) ? turn.read_tokens / turn.prompt_tokens : null, 0)),
        h("td", { class: "number" }, turn.lost_tokens ? count(turn.lost_tokens) : known(turn.lost_tokens) ? "–" : UNKNOWN),
        h("td", {}, turn.outcome === "completed" ? cause(turn.cause, turn.actor) : h("span", { class: "outcome" }, turn.outcome)),
        h("td", { class: "fold" }, h("div", { class: "strip" }, turn.image_ids.slice(-4).map((image) =>
          h("a", { href: context.address("image", { tenant: data.tenant, id: image }), "data-key": `${row}-${image}` }, picture(data.tenant, image, `Image ${imageName(image)}`)))), turn.image_ids.length > 4 ? h("small", {}, `+${turn.image_ids.length - 4}`) : null)),
      isOpen ? h("tr", { class: "detail", id: row }, h("td", { colspan: 7 }, detail(turn, data, context))) : null];
  });
  const heads = [["Turn"], ["Prompt"], ["Tokens", "number fold"], ["Read", "number"], ["Lost", "number"], ["Why less was read"], ["Images", "fold"]];
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Turns" }, h("table", { class: "turns" }, h("caption", { class: "unseen" }, "Turns of the conversation"),
    h("thead", {}, h("tr", {}, heads.map(([name, style]) => h("th", { scope: "col", class: style }, name)))), h("tbody", {}, rows)));
}

function detail(turn, data, context) {
  const evicted = turn.evicted_image
    ? link(context, "image", { tenant: data.tenant, id: turn.evicted_image }, h("code", {}, imageName(turn.evicted_image))) : null;
  const before = data.turns[data.turns.indexOf(turn) - 1];
  const models = turn.cause === "salt" && before && before.model !== turn.model ? [" The turn before asked for ", h("code", {}, before.model), ", this one for ", h("code", {}, turn.model), "."] : null;
  // Of the same model only the allowance can be client's or policy's doing.
  const allowed = turn.cause === "salt" && before?.model === turn.model && turn.actor !== "gateway" ? ` The ${turn.actor === "client" ? "client's header" : "policy"} allowed other KV of images than for the turn before; the engine keeps these apart.` : null;
  return h("div", { class: "turn-detail" },
    turn.cause ? h("p", {}, h("strong", {}, words(turn.cause)), turn.actor ? ` (${turn.actor})` : "", ": ", CAUSES[turn.cause] ?? "", place(turn) ? h("span", {}, " At ", h("code", {}, place(turn)), ".") : null, models, allowed) : h("p", {}, "Everything that was sent before was read."),
    facts([
      ["Read", `${count(turn.read_tokens)} tokens`],
      known(turn.loaded_tokens) ? ["Loaded", `${count(turn.loaded_tokens)} tokens`, "Of images: from the pool of their KV, and not computed"] : null,
      ["Write", `${count(turn.write_tokens)} tokens${turn.write_derived ? " (derived)" : ""}`], ["Uncached", `${count(turn.uncached_tokens)} tokens`],
      ["Expected read", known(turn.expected_read) ? `${count(turn.expected_read)} tokens` : UNKNOWN, "What the turn before and the cache would have allowed"],
      ["Lost", known(turn.lost_tokens) ? `${count(turn.lost_tokens)} tokens` : UNKNOWN],
      known(turn.break_token) ? ["Break at token", count(turn.break_token)] : null,
      evicted ? ["Evicted image", evicted] : null,
      known(turn.evicted_tokens) && turn.cause === "engine_eviction" ? ["Evicted", `${count(turn.evicted_tokens)} tokens`, "In the blocks that the engine had evicted and this turn paid for"] : null,
      turn.evicted_conversation && turn.evicted_conversation !== data.conversation ? ["Evicted blocks of", link(context, "conversation", { tenant: data.tenant, id: turn.evicted_conversation }, h("code", {}, shortName(turn.evicted_conversation)))] : null,
      turn.unseen_images ? ["Images unseen", "the engine counted fewer tokens than the images alone take"] : null,
      turn.image_eviction ? ["Policy", "took images out of the history"] : null,
      turn.summary ? ["Summary", "the policy summed up history"] : null,
      ["Policy", `${turn.policy} ${turn.policy_version}${turn.epoch ? `, rewritten ${plural(turn.epoch, "time")}` : ""}`],
      ["Images", `${count(turn.images)}, ${count(turn.new_images)} new`],
      ["Visual tokens", count(turn.visual_tokens)],
      turn.reuse ? ["KV of images", `ratio ${turn.reuse.replace(";", ",")}, by the ${turn.reuse_by}`, "Approximate KV was allowed: of each image this share of its tokens was to be computed all the same"] : null,
      turn.images ? ["Encoder", known(turn.encoder_runs) ? `${count(turn.encoder_runs)} computed, ${count(turn.encoder_hits)} reused` : UNKNOWN] : null,
      ["Answer", known(turn.completion_tokens) ? plural(turn.completion_tokens, "token") : UNKNOWN],
      ["First token", seconds(turn.first_token_seconds)], ["Whole answer", seconds(turn.total_seconds)],
      known(turn.cost) ? ["Cost", turn.cost.toFixed(4)] : null,
      ["Came", time(turn.seconds)], ["Request", h("code", {}, turn.request_id)],
    ]),
    turn.image_ids.length ? h("ul", { class: "thumbs" }, turn.image_ids.map((image) => h("li", {}, h("a", { href: context.address("image", { tenant: data.tenant, id: image }) }, picture(data.tenant, image, `Image ${imageName(image)}`, "middle"))))) : null);
}

