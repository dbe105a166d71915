// A run's live page: follows the server's events, and keeps charts and sections at what they say.
import { AttemptChoice, type Attempts } from "./attempt_choice";
import { showBanner } from "./banner";
import type { ChartsOfPage } from "./charts_of_page";
import { Controls } from "./controls";
import { CostTicker, type Cost } from "./cost";
import { oncePerFrame } from "./elements";
import { EventStream } from "./event_stream";
import { Logs } from "./logs";
import { SectionUpdate, type NewSection } from "./section_update";
import { askServer, partAddress, sentence, Unreachable } from "./server";
import { spanQuery, timeSpan } from "./time_span";

interface Changed {
  attempt: number;
  attempts: Attempts; // all of the run
  records: number;
  sections: number;
  state: string;
  recording: [on: boolean, deep: boolean, intervalS: number, changes: number] | null; // null: it cannot be changed
  fault: string; // why the run cannot be read at this moment
}

interface Answer {
  subtitle: string;
  cost: Cost | null; // null: a price of its hosts is not known
  state: string;
  sections: NewSection[];
}

export class LivePage {
  private readonly update: SectionUpdate;
  private readonly stream: EventStream;
  private readonly controls: Controls | null;
  private readonly logs: Logs | null;
  private readonly cost: CostTicker | null;
  private readonly attempts: AttemptChoice | null;
  private readonly askSections = oncePerFrame(() => void this.loadSections());
  private isGone = false;
  private seen: Changed | null = null;
  private request: AbortController | null = null;

  constructor(address: string, private readonly charts: ChartsOfPage) {
    this.update = new SectionUpdate(() => charts.update());
    const controls = document.getElementById("controls");
    const logs = document.getElementById("logs");
    const cost = document.getElementById("cost-so-far");
    const attempts = document.getElementById("attempt-choice");
    this.controls = controls && new Controls(controls, address);
    this.logs = logs && new Logs(logs);
    this.attempts = attempts && new AttemptChoice(attempts);
    this.cost = cost && new CostTicker(cost);
    timeSpan.onChange((reason) => reason === "chosen" && this.askSections());
    timeSpan.onAddress((other) => this.noteAddress(other));
    this.stream = new EventStream(
      partAddress("events"),
      {
        changed: (data) => this.take(data as Changed),
        gone: (data) => this.leave(data as { error?: string }),
        alive: () => this.logs?.refresh(), // they grow without records, too, as while recording is paused
      },
      () => this.refresh(),
      () => this.cost?.freeze(),
    );
  }

  private take(now: Changed): void {
    const last = this.seen;
    this.seen = now;
    showBanner("run", now.fault || null);
    this.attempts?.show(now.attempts);
    if (now.attempt !== last?.attempt) timeSpan.ofAttempt(now.attempt);
    if (!last) return this.askSections(); // the run may have changed since the page was made
    if (now.attempt !== last.attempt && last.attempt > 0) {
      timeSpan.reset();
      return this.refresh();
    }
    if (now.records !== last.records) {
      if (timeSpan.touchesEnd) this.charts.refresh();
    }
    if (now.records !== last.records || now.state !== last.state) this.logs?.refresh();
    if (now.sections !== last.sections || now.state !== last.state) {
      this.askSections();
      this.charts.refresh(); // some have the numbers of the texts
    }
    // What may be changed of this attempt depends on those after it, too.
    const controlled = ({ state, recording, attempts }: Changed) => String([state, recording, attempts]);
    if (controlled(now) !== controlled(last)) this.controls?.refresh();
  }

  /** Says so where the address, of a link or of the browser's history, was made for another attempt than is shown. */
  private noteAddress(other: number | null): void {
    const made = `The span of time in the address was one of attempt ${other}`;
    const shown = `attempt ${this.seen?.attempt}, which began anew, is shown`;
    showBanner("link", other === null ? null : `${made}; ${shown}.`);
  }

  private refresh(): void {
    this.charts.refresh();
    this.askSections();
    this.controls?.refresh();
    this.logs?.refresh();
  }

  private leave({ error }: { error?: string }): void {
    this.isGone = true;
    this.stream.close();
    this.charts.freeze();
    this.controls?.end();
    this.cost?.freeze();
    showBanner("run", `${error ?? "The run is gone."} What is shown stays readable.`);
  }

  private async loadSections(): Promise<void> {
    if (this.isGone) return;
    this.request?.abort();
    const request = (this.request = new AbortController());
    try {
      const address = partAddress("sections", spanQuery(timeSpan.chosen));
      const answer = await askServer<Answer>(address, { signal: request.signal });
      if (request.signal.aborted) return;
      showBanner("sections", null);
      const subtitle = document.getElementById("subtitle");
      if (subtitle) subtitle.textContent = answer.subtitle;
      this.cost?.show(answer.cost);
      this.update.apply(answer.sections);
    } catch (error) {
      if (request.signal.aborted || error instanceof Unreachable) return;
      showBanner("sections", `The text could not be brought up to date. ${sentence(error)}`);
    }
  }
}
