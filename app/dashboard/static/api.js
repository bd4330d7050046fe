// Questions to the gateway. Addresses are relative: what a proxy puts before them stays before them.

export class Failure extends Error {
  constructor(message, status, code) {
    super(message);
    this.status = status;
    this.code = code;
  }
}

const tags = new Map();
// An answer takes a second at most; a connection that is gone without a word would be waited for for minutes.
const LONGEST = 30000;

/** The answer; null where it is as it was. `again` asks for it anyway. */
export async function ask(name, parameters = {}, { again = false, signal } = {}) {
  const query = new URLSearchParams(Object.entries(parameters).filter(([, value]) => value)).toString();
  const address = `api/${name}${query ? `?${query}` : ""}`;
  const tag = again ? null : tags.get(name)?.address === address ? tags.get(name).tag : null;
  return answered(address, { headers: tag ? { "if-none-match": tag } : {} }, signal, async (reply) => {
    if (reply.status === 304) return null;
    const value = await body(reply);
    tags.set(name, { address, tag: reply.headers.get("etag") });
    return value;
  });
}

export async function tell(name, value = {}) {
  const options = { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(value) };
  return answered(`api/${name}`, options, null, (reply) => (reply.status === 204 ? null : body(reply)));
}

export const thumbnail = (tenant, id) => `api/thumbnail?${new URLSearchParams({ tenant, id })}`;

/** What is read of an answer. Of a question that nobody waits for any more it is an AbortError, and never a Failure. */
async function answered(address, options, signal, read) {
  const run = new AbortController(), end = () => run.abort();
  const timer = setTimeout(end, LONGEST);
  signal?.addEventListener("abort", end);
  try {
    return await read(await fetch(address, { cache: "no-store", credentials: "same-origin", signal: run.signal, ...options }));
  } catch (error) {
    if (signal?.aborted) throw new DOMException("Nobody waits for it.", "AbortError");
    if (error instanceof Failure) throw error;
    throw new Failure("The gateway does not answer.", 0, "no_answer");
  } finally {
    clearTimeout(timer);
    signal?.removeEventListener("abort", end);
  }
}

async function body(reply) {
  let value = null;
  try { value = await reply.json(); } catch (error) { if (!(error instanceof SyntaxError)) throw error; /* else a proxy's own page */ }
  if (reply.ok && value !== null) return value;
  const told = value?.error;
  throw new Failure(told?.message ?? `The gateway answered with ${reply.status}.`, reply.status, told?.code ?? "");
}
