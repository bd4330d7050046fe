// Images: all of them, and one.
import { card, empty, fill, h, table } from "./dom.js";
import { bytes, count, known, plural, time } from "./format.js";
import { facts, imageName, link, picture, shortName } from "./parts.js";
import { pool, tiers } from "./pool_and_tiers.js";

const PAGE = 48, MOST = 960;

export function images(context) {
  const kv = card("In the engine's KV cache", "By what its tokens are, of all tenants. Evicted: since the gateway started.", { class: "full" });
  const kept = card("Pool of images' KV", "What may be loaded where an image stands elsewhere, of all tenants. Counts: since the engine started.", { class: "full" });
  const below = card("Tiers below the KV cache", "Blocks that left it and can be read back, of all tenants. Counts: since the engine started.", { class: "full" });
  const list = card("Images", "The latest first. One image is one set of pixels, whatever file it came in.", { class: "full" });
  const more = h("button", { type: "button", class: "button" }, "Show older ones");
  const rest = h("div", { class: "more" }, more);
  const find = h("input", { type: "search", id: "find", placeholder: "The beginning of an image_id", value: context.parameters.find ?? "", autocomplete: "off", spellcheck: "false", "data-key": "find" });
  const search = h("form", { class: "search", role: "search" }, h("label", { for: "find" }, "Find"), find, h("button", { type: "submit", class: "button" }, "Find"));
  search.addEventListener("submit", (event) => { event.preventDefault(); context.go("images", { find: find.value.trim() }); });
  let limit = PAGE;
  more.addEventListener("click", () => { limit = Math.min(MOST, limit + PAGE); context.refresh(); });
  return {
    title: "Images",
    filters: ["tenant"],
    element: h("div", {}, h("h1", { class: "unseen" }, "Images"), search, kv.element, kept.element, below.element, list.element, rest),
    ask: () => ["images", { ...context.filters(["tenant"]), find: context.parameters.find, limit: limit > PAGE ? limit : "" }],
    update(data) {
      fill(list.body, data.images.length ? h("ul", { class: "gallery" }, data.images.map((one) => tile(one, context))) : context.parameters.find
        ? empty("No image_id begins so.", "An image_id is 64 hex digits; x-stillframe-explain lists those of a turn.")
        : empty("No images yet.", "Images of chats show here about a second after the turn's end."));
      kv.element.hidden = !known(data.kv);
      if (known(data.kv)) fill(kv.body, modalities(data.kv));
      kept.element.hidden = !known(data.pool);
      if (known(data.pool)) fill(kept.body, pool(data.pool));
      below.element.hidden = !known(data.tiers);
      if (known(data.tiers)) fill(below.body, tiers(data.tiers));
      rest.hidden = !data.has_more || limit >= MOST;
    },
    said: (data) => `${plural(data.images.length, "image")} shown.`,
  };
}

function modalities(kv) {
  const row = (name, of) => ({ name, tokens: [kv.resident_tokens[of], kv.evicted_tokens[of]], blocks: [kv.resident_blocks[of], kv.evicted_blocks[of]] });
  return table("The engine's KV cache by modality", [
    { name: "Of", cell: (one) => one.name },
    // Tokens of mixed blocks are among those of images and of text.
    { name: "Tokens", number: true, cell: (one) => known(one.tokens[0]) ? count(one.tokens[0]) : "" },
    { name: "Evicted", number: true, cell: (one) => known(one.tokens[1]) ? count(one.tokens[1]) : "" },
    { name: "Blocks", number: true, cell: (one) => count(one.blocks[0]) },
    { name: "Evicted blocks", number: true, class: "number fold", cell: (one) => count(one.blocks[1]) },
  ], [row("images", "image"), row("text", "text"), row("both", "mixed")]);
}

function tile(one, context) {
  const resident = !known(one.resident_tokens) ? "KV: not told" : one.resident_tokens ? `${count(one.resident_tokens)} KV tokens` : "no KV";
  return h("li", {}, h("a", { class: "tile", href: context.address("image", { tenant: one.tenant, id: one.image_id }), "data-key": `${one.tenant}-${one.image_id}` },
    h("span", { class: "frame" }, picture(one.tenant, one.image_id, "", "large"), one.near ? h("span", { class: "near", title: "Images that look alike; they are never merged" }, `${count(one.near)} alike`) : null),
    h("code", {}, imageName(one.image_id)),
    h("span", { class: "tile-facts" }, h("span", {}, `sent ${count(one.occurrences)}×`), h("span", { class: one.resident_tokens ? "resident" : null }, resident),
      known(one.encoder_runs) && one.encoder_runs + one.encoder_hits ? h("span", { title: "computed and reused by the vision encoder since the gateway started" }, `enc ${count(one.encoder_runs)} / ${count(one.encoder_hits)}`) : null)));
}

export function image(context) {
  const { tenant, id } = context.parameters;
  const head = h("div", { class: "page-head" });
  const where = card("Conversations it occurs in", null, { class: "full" });
  const near = card("Images that look alike", "By a perceptual hash. Near is not same: they are never merged.", { class: "full" });
  const gone = card("Turns that paid for its eviction", null, { class: "full" });
  const shown = picture(tenant, id, `The image ${imageName(id ?? "")}`, "huge-thumb");
  const figure = h("div", { class: "image-head" }, h("div", { class: "frame big" }, shown), head);
  return {
    title: `Image ${imageName(id ?? "")}`,
    filters: [],
    element: h("div", {}, figure, where.element, gone.element, near.element),
    ask: () => ["image", { tenant, id }],
    update(data) {
      drawHead(head, data, context);
      fill(where.body, conversationsTable(data, context));
      gone.element.hidden = !data.evicted_in.length;
      fill(gone.body, table("Turns that paid", [
        { name: "Conversation", cell: (row) => link(context, "conversation", { tenant, id: row.conversation }, h("code", {}, shortName(row.conversation))) },
        { name: "Turn", number: true, cell: (row) => count(row.turn) },
        { name: "Lost tokens", number: true, cell: (row) => count(row.lost_tokens) },
        { name: "When", cell: (row) => time(row.seconds) },
      ], data.evicted_in));
      near.element.hidden = !data.near.length;
      fill(near.body, h("ul", { class: "gallery small-gallery" }, data.near.map((one) => h("li", {}, h("a", { class: "tile", href: context.address("image", { tenant, id: one.image_id }), "data-key": one.image_id },
        h("span", { class: "frame" }, picture(tenant, one.image_id, "", "large")), h("code", {}, imageName(one.image_id)),
        h("span", { class: "tile-facts" }, h("span", {}, `${plural(one.distance, "bit")} of 64 apart`), one.low_information ? h("span", {}, "hardly any features") : null))))),
      data.near_count > data.near.length ? h("p", { class: "note" }, `The nearest ${data.near.length} of ${count(data.near_count)}.`) : null);
    },
    said: (data) => `Sent ${plural(data.occurrences, "time")}.`,
  };
}

function drawHead(element, data, context) {
  const stored = data.stored;
  fill(element,
    h("p", { class: "crumbs" }, link(context, "images", {}, "Images")),
    h("h1", {}, "Image ", h("code", { class: "id" }, data.image_id)),
    facts([
      ["Occurrences", `${count(data.occurrences)} in ${plural(data.turns, "turn")}`],
      ["KV resident now", known(data.resident_tokens) ? `${count(data.resident_tokens)} tokens in ${plural(data.resident_blocks, "block")}` : "the engine does not tell", "Of all places where the engine holds it, by its events"],
      ["Vision encoder", known(data.encoder_runs) ? `${count(data.encoder_runs)} computed, ${count(data.encoder_hits)} reused` : "the engine does not tell", "Since the gateway started"],
      ["Look alike", data.near_count ? plural(data.near_count, "image") : "none known", "Among the images that this process has seen"],
      stored ? ["Pixels", `${count(stored.width)} × ${count(stored.height)}`] : null,
      stored ? ["Stored", `${bytes(stored.size_bytes)}, ${stored.media_type.replace("image/", "").toUpperCase()}`] : ["Stored", "no longer"],
      ["Tenant", shortName(data.tenant, 20)],
      ["First sent", time(data.first_seconds)], ["Last sent", time(data.last_seconds)],
    ]));
}

function conversationsTable(data, context) {
  return table("Conversations the image occurs in", [
    { name: "Conversation", cell: (row) => link(context, "conversation", { tenant: data.tenant, id: row.conversation }, h("code", {}, shortName(row.conversation))) },
    { name: "Policy", cell: (row) => row.policy },
    { name: "In turns", number: true, cell: (row) => `${count(row.turns)} of ${count(row.conversation_turns)}` },
    { name: "Occurrences", number: true, cell: (row) => count(row.occurrences) },
    { name: "First", class: "fold", cell: (row) => time(row.first_seconds) },
    { name: "Last", cell: (row) => time(row.last_seconds) },
  ], data.in);
}
