// Requests to the server behind a live page, with its errors as sentences.

/** The address of the page's run, such as /runs/NAME; null in a file and on pages of no single run. */
export function liveAddress(): string | null {
  return document.querySelector<HTMLMetaElement>('meta[name="headrace-live"]')?.content || null;
}

export function runAddress(run: string): string {
  return `/runs/${encodeURIComponent(run)}`;
}

/** Returns what requests about the page's run say of the attempt that the page is about; nothing: the latest. */
export function attemptQuery(): { attempt?: string } {
  const attempt = liveAddress() && new URLSearchParams(location.search).get("attempt");
  return attempt ? { attempt } : {};
}

/** Returns an address with a query, if there is one. */
export function withQuery(address: string, query: Record<string, string>): string {
  const text = String(new URLSearchParams(query));
  return text ? `${address}?${text}` : address;
}

/** Returns the address of a part of what the page's run has on the server, of the attempt that the page is about. */
export function partAddress(part: string, query: Record<string, string> = {}): string {
  return withQuery(`${liveAddress() ?? ""}/${part}`, { ...attemptQuery(), ...query });
}

/** Returns a chart's address; in a comparison its name is RUN/CHART. */
export function chartAddress(name: string, query: Record<string, string>): string {
  const slash = name.lastIndexOf("/");
  const part = `charts/${encodeURIComponent(name.slice(slash + 1))}`;
  return slash < 0 ? partAddress(part, query) : withQuery(`${runAddress(name.slice(0, slash))}/${part}`, query);
}

/** A request that failed; its message says why, for people. */
export class ServerFault extends Error {
  constructor(message: string, private readonly status: number, private readonly isRemoved: boolean) {
    super(message);
  }

  /** Whether what is shown stays: the server is ended, or another one that has another token, or the run was removed. */
  get leavesAll(): boolean {
    return this.status === 403 || this.status >= 500 || this.isRemoved;
  }
}

/** There was no answer at all, which the page's banner tells already. */
export class Unreachable extends ServerFault {
  constructor(message: string) {
    super(message, 503, false);
  }
}

/** Returns the server's answer. Throws a ServerFault if there is none. */
export async function askServer<T>(address: string, options: RequestInit = {}): Promise<T> {
  let answer: Response;
  try {
    answer = await fetch(address, { cache: "no-store", ...options });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Unreachable("the server does not answer; it may have been stopped");
  }
  const text = await answer.text().catch(() => "");
  const json = parse(text);
  const isRemoved = (json as { removed?: unknown } | null)?.removed === true;
  if (!answer.ok || json === null) throw new ServerFault(whyRefused(answer.status, text), answer.status, isRemoved);
  return json as T;
}

/** Returns why the server does not do what it was asked for: its JSON has it, or its text. */
export function whyRefused(status: number, text: string): string {
  const error = (parse(text) as { error?: unknown } | null)?.error;
  if (typeof error === "string") return error;
  // What stands before the server's pages, and asks for the token, answers in plain text.
  return status === 403 && text ? text.trim() : `the server answered with status ${status}`;
}

/** Returns the value of a JSON text; null where it is none. */
export function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

/** Asks the server to do something; the header keeps other sites' forms from doing so. */
export function tellServer<T>(address: string, order: unknown = {}): Promise<T> {
  const headers = { "Content-Type": "application/json", "X-Headrace": "1" };
  return askServer(address, { method: "POST", headers, body: JSON.stringify(order) });
}

/** Returns a failure in words, as a sentence. */
export function sentence(error: unknown): string {
  const text = error instanceof Error ? error.message : String(error);
  const full = text.charAt(0).toUpperCase() + text.slice(1);
  return /[.!?]$/.test(full) ? full : `${full}.`;
}
