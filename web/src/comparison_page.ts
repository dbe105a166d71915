// The page of runs side by side on a server: its numbers and charts, for as long as a run goes on.
import { showBanner } from "./banner";
import type { ChartsOfPage } from "./charts_of_page";
import { ListedRuns } from "./listed_runs";
import { SectionUpdate, type NewSection } from "./section_update";
import { askServer, sentence, Unreachable } from "./server";
import { spanQuery, timeSpan } from "./time_span";

interface Answer {
  subtitle: string; // of when the numbers are
  sections: NewSection[];
}

const PAUSE_MS = 5000; // between questions for numbers
const COMPARING = "Comparing the runs …";

/** Lets links to the runs' own pages carry the span, which counts from the start of each run. */
function carrySpan(): void {
  for (const use of ["pointerdown", "click"]) {
    document.addEventListener(use, (event) => {
      const link = (event.target as Element).closest?.<HTMLAnchorElement>("main a[href]");
      if (link?.pathname.startsWith("/runs/")) link.hash = timeSpan.chosen ? location.hash : "";
    });
  }
}

export class ComparisonPage {
  private readonly update: SectionUpdate;
  private readonly runs: ListedRuns;
  private asked = -Infinity;
  private askedFor = ""; // the address of the last question
  private isAsking = false;
  private isDue = false; // what is shown is older than what is known
  private waiting = 0; // the timer of the next question
  private seen: string | undefined; // what the list last said of the runs that are compared
  private request: AbortController | null = null;

  constructor(private readonly charts: ChartsOfPage) {
    this.update = new SectionUpdate(() => charts.update());
    timeSpan.onChange((reason) => reason === "chosen" && this.followSpan());
    carrySpan();
    // One stream for all runs: a browser keeps few connections to a server.
    this.runs = new ListedRuns(() => this.take(), () => {
      this.asked = -Infinity;
      this.refresh();
    });
    void this.loadSections();
  }

  /** Asks at once for the numbers of the span that was chosen, in place of those of another one. */
  private followSpan(): void {
    if (this.address === this.askedFor) return;
    this.request?.abort();
    this.asked = -Infinity;
    this.isDue = true;
    this.askSoon();
  }

  private get address(): string {
    const runs = new URLSearchParams(location.search).getAll("run").map((run) => ["run", run]);
    const span = Object.entries(spanQuery(timeSpan.chosen));
    return `/api/comparison?${new URLSearchParams([...runs, ...span] as [string, string][])}`;
  }

  /** Follows the runs that are compared: others of the folder may go on for days. */
  private take(): void {
    const names = new URLSearchParams(location.search).getAll("run");
    const now = JSON.stringify(names.map((name) => this.runs.byName.get(name)));
    if (now === this.seen) return;
    this.seen = now;
    this.refresh();
  }

  private refresh(): void {
    if (timeSpan.touchesEnd) this.charts.refresh();
    this.isDue = true;
    this.askSoon();
  }

  /** Asks for numbers once the pause after the last answer is over. */
  private askSoon(): void {
    clearTimeout(this.waiting);
    const pauseMs = Math.max(this.asked + PAUSE_MS - performance.now(), 0);
    this.waiting = window.setTimeout(() => void this.loadSections(), pauseMs);
  }

  private async loadSections(): Promise<void> {
    if (this.isAsking) return; // its end asks again if need be
    this.isAsking = true;
    this.isDue = false;
    const { signal } = (this.request = new AbortController());
    const subtitle = document.getElementById("subtitle");
    if (subtitle && this.address !== this.askedFor) subtitle.textContent = COMPARING;
    this.askedFor = this.address;
    try {
      const answer = await askServer<Answer>(this.address, { signal });
      if (signal.aborted) return;
      this.asked = performance.now();
      showBanner("sections", null);
      if (subtitle) subtitle.textContent = answer.subtitle;
      this.update.apply(answer.sections);
    } catch (error) {
      if (signal.aborted) return;
      if (subtitle?.textContent === COMPARING) subtitle.textContent = "";
      if (error instanceof Unreachable) return;
      showBanner("sections", `The numbers could not be brought up to date. ${sentence(error)}`);
    } finally {
      this.isAsking = false;
      if (this.isDue) this.askSoon();
    }
  }
}
