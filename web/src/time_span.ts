// The one span of time that all charts and sections of a page show; it stands in the address.

export type Span = readonly [number, number]; // seconds since recording began
/** What the reader chose: a span, all that was recorded, or (null) nothing yet. */
type Choice = Span | "all" | null;
/**
 * Why listeners are called: the reader chose a span, is still moving it, or charts learned of more time, or of a wider
 * part to show at first.
 */
export type Reason = "chosen" | "moved" | "learned" | "widened";

const NUMBER = String.raw`(-?[\d.]+(?:e-?\d+)?)`;
const HASH = new RegExp(`^#span=(?:(all)|${NUMBER}-${NUMBER})(?:&attempt=(\\d+))?$`);
const SHORTEST_S = 1e-3;
const SETTLED_MS = 150; // after the last of some keys in quick succession

function readHash(hash: string): Choice {
  const found = HASH.exec(hash);
  if (!found) return null;
  if (found[1]) return "all";
  const span: Span = [Number(found[2]), Number(found[3])];
  return span[0] < span[1] ? span : null;
}

function writeHash(choice: Choice, attempt: number): string {
  if (choice === null) return location.pathname + location.search;
  const suffix = attempt ? `&attempt=${attempt}` : "";
  if (choice === "all") return `#span=all${suffix}`;
  const digits = choice[1] - choice[0] < 1 ? 6 : 3;
  return `#span=${choice.map((time) => String(Number(time.toFixed(digits)))).join("-")}${suffix}`;
}

function around(a: Span | null, b: Span): Span {
  return a ? [Math.min(a[0], b[0]), Math.max(a[1], b[1])] : b;
}

function areEqual(a: Choice, b: Choice): boolean {
  return a === b || (Array.isArray(a) && Array.isArray(b) && a[0] === b[0] && a[1] === b[1]);
}

/** Returns what requests say of a span, whose end is null where it is that of the records. */
export function spanQuery(span: readonly [number, number | null] | null): { from?: string; to?: string } {
  if (!span) return {};
  return { from: String(span[0]), ...(span[1] !== null && { to: String(span[1]) }) };
}

export class TimeSpan {
  private choice: Choice = readHash(location.hash);
  private known: Span | null = null;
  private first: Span | null = null; // shown before the reader chooses, if only a part
  private readonly listeners: ((reason: Reason) => void)[] = [];
  private readonly addressListeners: ((other: number | null) => void)[] = [];
  private settling = 0; // the timer after which a moved span is chosen
  private attempt = 0; // whose times they are; 0: unknown, or there is one alone

  constructor() {
    addEventListener("popstate", () => this.followAddress());
  }

  /** The span that the reader chose, null for all. */
  get chosen(): Span | null {
    return typeof this.choice === "string" ? null : this.choice;
  }

  /** The part of the time that is shown, null for all of it. */
  get part(): Span | null {
    return typeof this.choice === "string" ? null : (this.choice ?? this.first);
  }

  /** What charts are asked for: a span, whose end is null where it is that of the records; null for all. */
  get wanted(): readonly [number, number | null] | null {
    if (this.choice === null && this.first) return [this.first[0], this.firstIsOpen ? null : this.first[1]];
    return this.part;
  }

  /** Whether the part that is shown at first reaches to the end, and grows with it. */
  private get firstIsOpen(): boolean {
    return this.first !== null && this.known !== null && this.first[1] >= this.known[1];
  }

  get shown(): Span {
    const [from, to] = this.part ?? this.known ?? [0, 1];
    return to > from ? [from, to] : [from, from + 1]; // a recording that has just begun has no length yet
  }

  /** Whether more records may change what is shown. */
  get touchesEnd(): boolean {
    return this.chosen === null || !this.known || this.chosen[1] >= this.known[1] - 1e-6;
  }

  onChange(listener: (reason: Reason) => void): void {
    this.listeners.push(listener);
  }

  /**
   * Calls a listener whenever the address has been looked at: with the attempt that it was made for where that is
   * another one than is shown, whose times mean nothing here, else with null.
   */
  onAddress(listener: (other: number | null) => void): void {
    this.addressListeners.push(listener);
  }

  /** Takes note of a chart's limits, and of what to show at first. Charts of several runs share the widest. */
  learn(limits: Span, first: Span | null): void {
    const known = around(this.known, limits);
    const isPart = first !== null && (first[0] > limits[0] || first[1] < limits[1]);
    // A chart of all of the time widens what is shown at first; one that names no part says nothing.
    const named = isPart ? first : first && this.first && limits;
    const shownFirst = named ? around(this.first, named) : this.first;
    if (areEqual(known, this.known) && areEqual(shownFirst, this.first)) return;
    const [before, wasOpen] = [this.first, this.firstIsOpen];
    this.known = known;
    this.first = shownFirst;
    if (shownFirst === null || this.choice !== null) return this.tell("learned");
    // The first time it is as if the reader had chosen this part, which needs finer data.
    if (before === null) return this.tell("chosen");
    const isWider = shownFirst[0] < before[0] || (!wasOpen && shownFirst[1] > before[1]);
    this.tell(isWider ? "widened" : "learned");
  }

  /** Takes note of the run's attempt, whose times the address has from now on; 0: none has begun. */
  ofAttempt(attempt: number): void {
    if (attempt) this.attempt = attempt;
    const other = attempt ? this.otherAttempt : null;
    if (other !== null) {
      this.reset();
      this.tell("chosen");
    }
    this.tellAddress(other);
  }

  /** The attempt that the address was made for where it is another one than is shown, else null. */
  private get otherAttempt(): number | null {
    const made = Number(HASH.exec(location.hash)?.[4] ?? this.attempt);
    return this.attempt && made !== this.attempt ? made : null;
  }

  /** Forgets all of it: times of another attempt begin anew. */
  reset(): void {
    this.known = null;
    this.first = null;
    this.forgetChoice();
  }

  private forgetChoice(): void {
    this.choice = null;
    try {
      history.replaceState(null, "", location.pathname + location.search);
    } catch {
      // As in `set`.
    }
  }

  /** Shows a span; `step` makes it one step of the browser's history, else it takes the last one's place. */
  choose(span: Span, step = true, reason: Reason = "chosen"): void {
    const [low, high] = this.known ?? span;
    const length = Math.max(span[1] - span[0], SHORTEST_S);
    if (length >= high - low) return this.showAll(step, reason);
    const begin = Math.min(Math.max(span[0], low), high - length);
    this.set([begin, begin + length], step, reason);
  }

  /** Shows a span that may be moved again at once; it counts as chosen after a moment without. */
  move(span: Span, step: boolean): void {
    this.choose(span, step, "moved");
    clearTimeout(this.settling);
    this.settling = window.setTimeout(() => this.tell("chosen"), SETTLED_MS);
  }

  showAll(step = true, reason: Reason = "chosen"): void {
    this.set(this.first ? "all" : null, step, reason);
  }

  private set(choice: Choice, step: boolean, reason: Reason): void {
    if (areEqual(choice, this.choice)) return;
    this.choice = choice;
    try {
      if (step) history.pushState({ choice }, "", writeHash(choice, this.attempt));
      else history.replaceState({ choice }, "", writeHash(choice, this.attempt));
    } catch {
      // A browser may refuse it, for a file or when it happens too often; the page works without.
    }
    this.tell(reason);
  }

  private followAddress(): void {
    const state = history.state as { choice?: Choice } | null;
    // A link to a section changes the hash, too; it leaves the span as it is.
    const isElsewhere = location.hash.length > 1 && readHash(location.hash) === null;
    if (state?.choice === undefined && isElsewhere) return;
    const other = this.otherAttempt; // the browser's history has those of attempts that were shown before
    if (other !== null) this.forgetChoice();
    else this.choice = state?.choice === undefined ? readHash(location.hash) : state.choice;
    this.tellAddress(other);
    this.tell("chosen");
  }

  private tellAddress(other: number | null): void {
    for (const listener of this.addressListeners) listener(other);
  }

  private tell(reason: Reason): void {
    for (const listener of this.listeners) listener(reason);
  }
}

export const timeSpan = new TimeSpan();
