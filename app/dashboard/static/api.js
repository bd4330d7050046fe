// Questions to the gateway. Addresses are relative: what a proxy puts before them stays before them.

export class Failure extends Error {
  constructor(message, status, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

const tags = new Map();

/** The answer; null where it is as it was. `again` asks for it anyway. */
export async function ask(name, parameters = {}, { again = false, signal } = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value)).toString();
  const address = `api/${name}${query ? `?${query}` : ""}`;
  const tag = again ? null : tags.get(name)?.address === address ? tags.get(name).tag : null;
  const reply = await send(address, { headers: tag ? { "if-none-match": tag } : {}, signal });
  if (reply.status === 304) return null;
  const value = await body(reply);
  tags.set(name, { address, tag: reply.headers.get("etag") });
  return value;
}

export async function tell(name, value = {}) {
  const reply = await send(`api/${name}`, {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(value) });
  return reply.status === 204 ? null : body(reply);
}

export const thumbnail = (tenant, id) => `api/thumbnail?${new URLSearchParams({ tenant, id })}`;

async function send(address, options) {
  try {
    return await fetch(address, { cache: "no-store", credentials: "same-origin", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure("The gateway does not answer.", 0, "no_answer");
  }
}

async function body(reply) {
  let value = null;
  try { value = await reply.json(); } catch { /* a proxy's own page */ }
  if (reply.ok && value !== null) return value;
  const told = value?.error;
  throw new Failure(told?.message ?? `The gateway answered with ${reply.status}.`, reply.status, told?.code ?? "");
}
