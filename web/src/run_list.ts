// The list of runs: filtered and sorted by the reader, with ticks that choose which to compare.
import { button, make } from "./elements";
import { ListedRuns, type Run } from "./listed_runs";
import { durationText, momentText, numberText } from "./number_text";
import { runAddress } from "./server";

type Value = string | number | null;

interface Column {
  title: string;
  isNumber?: boolean;
  value(run: Run): Value; // to sort by
  show?(run: Run, ageS: (unix_s: number) => number): Node | string;
}

function firstNumber(text: string | null): number | null {
  const found = /[\d.]+/.exec((text ?? "").replaceAll(",", ""));
  return found ? Number(found[0]) : null;
}

const STATE_BADGES: Record<string, string> = { running: "info", failed: "critical", killed: "serious" };

const COLUMNS: readonly Column[] = [
  { title: "Run", value: (run) => run.name, show: (run) => make("a", { href: runAddress(run.name) }, run.name) },
  {
    title: "State", value: (run) => run.state,
    show: (run) => make("span", { className: `badge ${STATE_BADGES[run.state] ?? ""}` }, run.state),
  },
  {
    title: "Began", value: (run) => run.began_unix_s,
    show: (run, ageS) =>
      run.began_unix_s === null
        ? "unknown"
        : make("span", { title: momentText(run.began_unix_s) }, `${durationText(ageS(run.began_unix_s))} ago`),
  },
  {
    title: "Script", value: (run) => run.script || null,
    show: (run) => make("code", { title: run.script }, run.script),
  },
  { title: "Ranks", isNumber: true, value: (run) => run.ranks },
  { title: "Samples/s", isNumber: true, value: (run) => run.samples_per_s },
  {
    title: "Data wait", isNumber: true, value: (run) => run.data_wait_share,
    show: (run) => (run.data_wait_share === null ? "" : `${Math.round(run.data_wait_share * 100)}%`),
  },
  {
    title: "Cost", isNumber: true, value: (run) => firstNumber(run.cost),
    show: (run) => run.cost ?? "",
  },
  { title: "Verdict", value: (run) => run.fault || run.verdict || null },
];
const BEGAN = 2;
const MOST_COMPARED = 12; // the server refuses more
const READING = "Reading the runs …";
const AGES_MS = 10_000; // how often the time since a run began is brought up to date

function compare(a: Value, b: Value): number {
  if (a === null || b === null) return a === b ? 0 : a === null ? 1 : -1; // unknown ones last
  if (typeof a === "number" && typeof b === "number") return a - b;
  return String(a).localeCompare(String(b), "en", { numeric: true });
}

/** A run's row, of which only the cells that say something else are made anew. */
class RunRow {
  readonly element = make("tr");
  private readonly cells = COLUMNS.map(({ isNumber }) => make("td", { className: isNumber ? "number" : "" }));
  private readonly shown: string[] = [];

  constructor(name: string, onTick: (ticked: boolean) => void) {
    const tick = make("input", { type: "checkbox", ariaLabel: `Compare ${name}` });
    tick.addEventListener("change", () => onTick(tick.checked));
    this.element.append(make("td", {}, tick), ...this.cells);
  }

  show(run: Run, ageS: (unix_s: number) => number): void {
    COLUMNS.forEach(({ value, show }, i) => {
      const raw = value(run);
      const content = show ? show(run, ageS) : typeof raw === "number" ? numberText(raw) : (raw ?? "");
      const text = typeof content === "string" ? content : (content.textContent ?? "");
      if (this.shown[i] !== text) this.cells[i]!.replaceChildren(content);
      this.shown[i] = text;
    });
    this.cells.at(-1)!.classList.toggle("fault", run.fault !== "");
  }
}

/** Puts elements into a place in their order; those that are there already are not moved. */
function placeInOrder(place: HTMLElement, elements: readonly HTMLElement[]): void {
  const wanted = new Set<Element>(elements);
  for (const child of [...place.children]) if (!wanted.has(child)) child.remove();
  let next = place.firstElementChild;
  for (const element of elements) {
    if (element === next) next = next.nextElementSibling;
    else place.insertBefore(element, next);
  }
}

export class RunList {
  private readonly filter = make("input", {
    type: "search", placeholder: "Filter by name, script, state or verdict", ariaLabel: "Filter the runs",
  });
  private readonly compare = button("Compare", () => this.goCompare());
  private readonly status = make("span", { className: "small", role: "status" });
  private readonly heads = COLUMNS.map(({ title }, place) => button(title, () => this.sortBy(place), "head"));
  private readonly body = make("tbody");
  private readonly table: HTMLElement;
  private readonly ticked = new Set<string>();
  private readonly rows = new Map<string, RunRow>(); // by name; they stay, with what the reader has focused or selected
  private readonly runs: ListedRuns;
  private order = { column: BEGAN, down: true };

  constructor(place: HTMLElement) {
    const heads = this.heads.map((head, i) => make("th", { className: COLUMNS[i]!.isNumber ? "number" : "" }, head));
    const tick = make("th", {}, make("span", { className: "unseen" }, "Compare"));
    const head = make("thead", {}, make("tr", {}, tick, ...heads));
    this.table = make("div", { className: "wide" }, make("table", { className: "run-table" }, head, this.body));
    place.replaceChildren(make("div", { className: "buttons" }, this.filter, this.compare, this.status), this.table);
    this.filter.addEventListener("input", () => this.draw());
    this.status.textContent = READING;
    this.updateCompare();
    this.runs = new ListedRuns(() => this.take());
    setInterval(() => document.hidden || this.draw(), AGES_MS);
  }

  private take(): void {
    const names = this.runs.byName;
    for (const name of this.ticked) if (!names.has(name)) this.ticked.delete(name);
    for (const name of this.rows.keys()) if (!names.has(name)) this.rows.delete(name);
    this.draw();
  }

  private sortBy(column: number): void {
    const isNumber = COLUMNS[column]!.isNumber || column === BEGAN;
    this.order = { column, down: this.order.column === column ? !this.order.down : Boolean(isNumber) };
    this.draw();
  }

  private shown(): Run[] {
    const words = this.filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    const { value } = COLUMNS[this.order.column]!;
    const matches = [...this.runs.byName.values()].filter((run) => {
      const text = [run.name, run.script, run.state, run.verdict, run.fault].join(" ").toLowerCase();
      return words.every((word) => text.includes(word));
    });
    const way = this.order.down ? -1 : 1;
    return matches.sort((a, b) => {
      const [one, other] = [value(a), value(b)];
      return one === null || other === null ? compare(one, other) : way * compare(one, other);
    });
  }

  private draw(): void {
    const shown = this.shown();
    const rows = shown.map((run) => this.rowOf(run));
    const focused = document.activeElement;
    placeInOrder(this.body, rows.map(({ element }) => element));
    // A row that is moved loses it, as where runs are sorted by what changes.
    if (focused instanceof HTMLElement && this.body.contains(focused)) focused.focus({ preventScroll: true });
    this.heads.forEach((head, i) => {
      const isOrder = i === this.order.column;
      head.parentElement!.ariaSort = isOrder ? (this.order.down ? "descending" : "ascending") : "none";
    });
    this.table.hidden = shown.length === 0;
    this.status.textContent = this.statusText(shown.length);
    this.updateCompare();
  }

  private statusText(shown: number): string {
    const { byName, folder } = this.runs;
    if (folder === "") return READING;
    if (byName.size === 0) {
      return `No run is recorded in ${folder} yet. Start one with: headrace run train.py`;
    }
    if (shown === 0) return "No run matches the filter. Clear it to see all.";
    const count = numberText(shown);
    if (shown < byName.size) return `${count} of ${numberText(byName.size)} runs`;
    return `${count} ${shown === 1 ? "run" : "runs"} in ${folder}`;
  }

  private rowOf(run: Run): RunRow {
    let row = this.rows.get(run.name);
    if (!row) {
      row = new RunRow(run.name, (ticked) => {
        if (ticked) this.ticked.add(run.name);
        else this.ticked.delete(run.name);
        this.updateCompare();
      });
      this.rows.set(run.name, row);
    }
    row.show(run, (unix_s) => this.runs.ageS(unix_s));
    return row;
  }

  private updateCompare(): void {
    const count = this.ticked.size;
    const fits = count >= 2 && count <= MOST_COMPARED;
    this.compare.disabled = !fits;
    const what = fits ? ` ${count} runs` : count < 2 ? "" : ` ${MOST_COMPARED} runs at most`;
    this.compare.textContent = `Compare${what}`;
    this.compare.title = fits ? "" : `Tick two to ${MOST_COMPARED} runs`;
  }

  private goCompare(): void {
    const query = new URLSearchParams([...this.ticked].map((name) => ["run", name]));
    location.href = `/compare?${query}`;
  }
}
