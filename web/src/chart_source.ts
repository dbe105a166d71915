// Where a chart's model comes from: JSON in the page, or a server that makes it for a span of time.
import { ModelFault } from "./model_reader";
import { askServer, chartAddress } from "./server";
import { spanQuery, timeSpan } from "./time_span";

const METRIC = "metric-"; // the beginning of the names of charts of what the script logged

export interface ChartSource {
  /** Whether another span of time needs another model. */
  readonly dependsOnSpan: boolean;
  load(columns: number, signal: AbortSignal): Promise<unknown>;
}

/** Reads a model that stands in the page; it has all of the time, which charts crop. */
class EmbeddedSource implements ChartSource {
  readonly dependsOnSpan = false;

  constructor(private readonly id: string) {}

  async load(): Promise<unknown> {
    const text = document.getElementById(this.id)?.textContent;
    if (!text) throw new ModelFault("the page does not hold the chart's data");
    try {
      return JSON.parse(text);
    } catch {
      throw new ModelFault("the chart's data is damaged");
    }
  }
}

class ServerSource implements ChartSource {
  readonly dependsOnSpan = true;

  constructor(private readonly name: string) {}

  load(columns: number, signal: AbortSignal): Promise<unknown> {
    // What is shown at first leaves out what nobody chose to; the texts about metrics do not.
    const span = this.name.startsWith(METRIC) ? timeSpan.chosen : timeSpan.wanted;
    const query = { columns: String(Math.round(columns)), ...spanQuery(span) };
    return askServer(chartAddress(this.name, query), { signal });
  }
}

/** Returns where the model of a chart's place comes from. */
export function sourceOf(place: HTMLElement): ChartSource {
  const embedded = place.dataset.model;
  if (embedded) return new EmbeddedSource(embedded);
  return new ServerSource(place.id.replace(/^chart-/, ""));
}
