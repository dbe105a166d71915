// The page of runs side by side on a server: its numbers and charts, for as long as a run goes on.
import { showBanner } from "./banner";
import type { ChartsOfPage } from "./charts_of_page";
import { EventStream } from "./event_stream";
import { SectionUpdate, type NewSection } from "./section_update";
import { askServer, sentence, Unreachable } from "./server";
import { timeSpan } from "./time_span";

interface Answer {
  subtitle: string; // of when the numbers are
  sections: NewSection[];
}

interface Listed {
  fault?: string;
  runs?: { name: string }[];
}

const PAUSE_MS = 5000; // between questions for numbers

export class ComparisonPage {
  private readonly update: SectionUpdate;
  private asked = -Infinity;
  private isAsking = false;
  private isDue = false; // what is shown is older than what is known
  private waiting = 0; // the timer of the next question
  private seen: string | undefined; // what the list last said of the runs that are compared

  constructor(private readonly charts: ChartsOfPage) {
    this.update = new SectionUpdate(() => charts.update());
    const subtitle = document.getElementById("subtitle");
    if (subtitle) subtitle.textContent = "Comparing the runs …";
    // One stream for all runs: a browser keeps few connections to a server.
    new EventStream("/api/events", { runs: (data) => this.take(data as Listed) }, () => {
      this.asked = -Infinity;
      this.refresh();
    });
    void this.loadSections();
  }

  /** Follows the runs that are compared: others of the folder may go on for days. */
  private take({ fault, runs }: Listed): void {
    showBanner("list", fault ?? null);
    const names = new URLSearchParams(location.search).getAll("run");
    const now = JSON.stringify(runs?.filter(({ name }) => names.includes(name)));
    if (fault || now === this.seen) return;
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
    try {
      const answer = await askServer<Answer>(`/api/comparison${location.search}`);
      this.asked = performance.now();
      showBanner("sections", null);
      const subtitle = document.getElementById("subtitle");
      if (subtitle) subtitle.textContent = answer.subtitle;
      this.update.apply(answer.sections);
    } catch (error) {
      if (error instanceof Unreachable) return;
      showBanner("sections", `The numbers could not be brought up to date. ${sentence(error)}`);
    } finally {
      this.isAsking = false;
      if (this.isDue) this.askSoon();
    }
  }
}
