// A chart's place in the page: gets its model, draws it, and says why where there is nothing to draw.
import type { Chart } from "./charts/chart";
import { Bars } from "./charts/bars";
import { SPAN_KEYS, steerByKeys } from "./charts/brush";
import { Columns } from "./charts/columns";
import { Flame } from "./charts/flame";
import { Heatmap } from "./charts/heatmap";
import { KeyCursor, READING_KEYS } from "./charts/key_cursor";
import { Lines } from "./charts/lines";
import { Scatter } from "./charts/scatter";
import { Steps } from "./charts/steps";
import { sourceOf, type ChartSource } from "./chart_source";
import { make, oncePerFrame } from "./elements";
import { ModelFault, readModel } from "./model_reader";
import type { Model } from "./models";
import { sentence, ServerFault } from "./server";
import { timeSpan, type Reason } from "./time_span";

const PAPER_PX = 680; // the width between the margins of a printed page
const NEAR = "300px"; // so far from the screen a chart counts as seen
const UNSEEN_MS = 800; // charts on the screen come first

function makeChart(place: HTMLElement, model: Model, width: number): Chart {
  switch (model.kind) {
    case "heatmap": return new Heatmap(place, model, width) as Chart;
    case "steps": return new Steps(place, model, width) as Chart;
    case "bars": return new Bars(place, model, width) as Chart;
    case "columns": return new Columns(place, model, width) as Chart;
    case "flame": return new Flame(place, model, width) as Chart;
    case "lines": return new Lines(place, model, width) as Chart;
    case "scatter": return new Scatter(place, model, width) as Chart;
  }
}

/** Returns why a model leaves nothing to see, null if there is something. */
function whyEmpty(model: Model): string | null {
  const none = {
    heatmap: () => model.kind === "heatmap" && model.bands.every(({ rows }) => rows.length === 0),
    steps: () => model.kind === "steps" && model.rows.every(({ starts }) => starts.length === 0),
    bars: () => model.kind === "bars" && model.rows.length === 0,
    columns: () => model.kind === "columns" && model.series.every(({ values }) => values.length === 0),
    flame: () => model.kind === "flame" && !(model.root.value > 0),
    lines: () => model.kind === "lines" && model.series.every(({ x }) => x.length === 0),
    scatter: () => model.kind === "scatter" && model.groups.every(({ points }) => points.length === 0),
  }[model.kind]();
  if (!none) return null;
  return timeSpan.part
    ? "Nothing was recorded in this span of time. Press Escape on a chart, or double-click one, to show all of it."
    : "Nothing was recorded for this chart so far.";
}

export class ChartPlace {
  private readonly source: ChartSource;
  private readonly message = make("p", { className: "note", hidden: true, role: "status" });
  private readonly size: ResizeObserver;
  private readonly sight: IntersectionObserver;
  private readonly ask = oncePerFrame(() => void this.load());
  private readonly drawSoon = oncePerFrame(() => {
    this.isOutdated = false;
    this.attempt(() => this.chart?.redraw());
  });
  private chart: Chart | null = null;
  private kind: Model["kind"] | null = null;
  private request: AbortController | null = null;
  private followsTime = false;
  private isSteered = false; // by keys, to other spans of time
  private cursor: KeyCursor | null = null;
  private frozen = false;
  private width = 0;
  // Charts that nobody sees are neither asked for again nor drawn again until somebody does.
  private isSeen = false;
  private isStale = false;
  private isOutdated = false; // what is drawn, with the model at hand

  constructor(readonly place: HTMLElement) {
    this.source = sourceOf(place);
    place.replaceChildren(this.message);
    this.size = new ResizeObserver(() => this.fit(place.clientWidth));
    this.size.observe(place);
    this.sight = new IntersectionObserver((entries) => this.see(entries.at(-1)!.isIntersecting), { rootMargin: NEAR });
    this.sight.observe(place);
  }

  /** Whether a newer model may differ from the one shown. */
  get isLive(): boolean {
    return this.source.dependsOnSpan;
  }

  /** Asks for the newest model, at most once a frame; an older answer that comes later is dropped. */
  refresh(): void {
    if (this.width === 0 || this.frozen) return;
    if (this.isSeen) this.ask();
    else this.isStale = true;
  }

  /** Keeps what is shown from now on: there is nobody left to ask. */
  freeze(): void {
    this.frozen = this.chart !== null;
  }

  followSpan(reason: Reason): void {
    if (this.followsTime) this.redraw(); // what is at hand is stretched meanwhile
    if (this.source.dependsOnSpan && (reason === "chosen" || reason === "widened")) this.refresh();
  }

  redraw(): void {
    if (this.isSeen) this.drawSoon();
    else this.isOutdated = true;
  }

  /** Draws for paper at once, as the browser prints right after this; or for the screen again. */
  print(on: boolean): void {
    this.attempt(() => this.chart?.resize(on ? PAPER_PX : this.width));
    this.attempt(() => this.chart?.redraw());
  }

  remove(): void {
    this.size.disconnect();
    this.sight.disconnect();
    this.request?.abort();
    this.cursor?.hide();
    this.chart?.remove();
  }

  private fit(width: number): void {
    if (width === this.width || width === 0) return; // 0: in a closed part of the page
    this.width = width;
    if (this.chart) return this.attempt(() => this.chart?.resize(width));
    this.isStale = true;
    if (this.isSeen) this.ask();
    else setTimeout(() => this.isStale && this.ask(), UNSEEN_MS);
  }

  private see(isSeen: boolean): void {
    this.isSeen = isSeen;
    if (!isSeen || this.width === 0) return;
    if (this.isStale && !this.frozen) this.ask();
    else if (this.isOutdated) this.drawSoon();
  }

  private async load(): Promise<void> {
    this.request?.abort();
    const request = (this.request = new AbortController());
    this.isStale = false;
    try {
      const raw = await this.source.load(this.width, request.signal);
      if (!request.signal.aborted) this.show(readModel(raw));
    } catch (error) {
      const stays = this.chart !== null && error instanceof ServerFault && error.leavesAll;
      if (!request.signal.aborted && !stays) this.fail(error);
    }
  }

  private show(model: Model): void {
    const limits = "limits" in model ? model.limits : null;
    if (limits) timeSpan.learn(limits, "first" in model ? model.first : null);
    if (limits && !this.isSteered) steerByKeys(this.place); // an empty chart, too: keys lead to other spans
    this.isSteered ||= limits !== null;
    this.describeKeys();
    const why = whyEmpty(model);
    this.say(why);
    if (why !== null) return this.clear();
    if (this.chart && this.kind === model.kind) {
      this.chart.show(model);
      this.cursor?.follow();
      return;
    }
    this.clear();
    this.followsTime = limits !== null;
    this.kind = model.kind;
    this.chart = makeChart(this.place, model, this.width);
    // Children of an image are no elements for screen readers; those of a group are. From an application these keep
    // none of the keys for themselves.
    this.place.role = this.chart.values ? "application" : "group";
    this.place.ariaRoleDescription = "chart";
    if (this.chart.values) this.cursor ??= new KeyCursor(this.place, () => this.chart?.values ?? null);
    this.describeKeys();
    this.place.dispatchEvent(new CustomEvent("headrace-drawn", { bubbles: true, detail: this.followsTime }));
  }

  private attempt(draw: () => void): void {
    try {
      draw();
      this.cursor?.follow();
    } catch (error) {
      this.fail(error);
    }
  }

  private fail(error: unknown): void {
    this.clear();
    if (error instanceof ServerFault) return this.say(sentence(error));
    if (!(error instanceof ModelFault)) console.error(error);
    this.say(
      `This chart cannot be drawn. ${sentence(error)} The page may be older than its data, or damaged: ` +
      "reload it, or make the report again.",
    );
  }

  private clear(): void {
    this.chart?.remove();
    this.chart = null;
    this.kind = null;
    this.cursor?.follow();
  }

  /** Says which keys the chart knows, where it has the focus itself. */
  private describeKeys(): void {
    const keys = [this.cursor && READING_KEYS, this.isSteered && SPAN_KEYS].filter(Boolean).join(" ");
    if (keys) this.place.setAttribute("aria-description", keys);
  }

  private say(text: string | null): void {
    this.message.textContent = text;
    this.message.hidden = text === null;
    if (text !== null) this.place.role = "group"; // as above
  }
}
