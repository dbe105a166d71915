// Lines over time or over another quantity, with bands around them, or stacked on one another.
import uPlot from "uplot";
import { make } from "../elements";
import type { Line, LinesModel } from "../models";
import { numberText, tickTexts, withUnit } from "../number_text";
import { placeBelow, placeNearest } from "../numbers";
import { timeText } from "../time_axis";
import { timeSpan } from "../time_span";
import { brushPlot } from "./brush";
import type { Chart } from "./chart";
import { switchLegend } from "./legend";
import type { Readable, Reading } from "./key_cursor";
import {
  bottomAxis, hideCursor, plotOptions, pointAt, timeAxis, timeGutter, valueAxis, valueGutter,
} from "./plot_parts";
import { showTooltip, type Hint } from "./tooltip";

const HEIGHT = 240;
const BAND_OPACITY = "33"; // of 255, in hexadecimal

/** Returns values for uPlot, in which null leaves a gap. */
function withGaps(values: ArrayLike<number>): (number | null)[] {
  return Array.from(values, (value) => (Number.isFinite(value) ? value : null));
}

/** Returns each line with its values on top of the ones before it, the topmost first. */
function stackUp(series: readonly Line[]): Line[] {
  const sums = new Map<number, number>();
  const raised = series.map((line) => {
    const y = Float64Array.from(line.y, (value, i) => {
      const sum = (sums.get(line.x[i]!) ?? 0) + (value || 0);
      sums.set(line.x[i]!, sum);
      return sum;
    });
    return { ...line, y, low: null, high: null };
  });
  return raised.reverse();
}

interface Prepared {
  data: uPlot.AlignedData;
  series: uPlot.Series[];
  bands: uPlot.Band[];
}

function prepare(lines: readonly Line[], stacked: boolean): Prepared {
  const tables: uPlot.AlignedData[] = [];
  const series: uPlot.Series[] = [{}];
  const bands: uPlot.Band[] = [];
  const add = (line: Line, values: ArrayLike<number>, options: uPlot.Series) => {
    tables.push([Array.from(line.x), withGaps(values)] as uPlot.AlignedData);
    series.push(options);
  };
  for (const line of stacked ? stackUp(lines) : lines) {
    if (line.low && line.high) {
      bands.push({ series: [series.length, series.length + 1], fill: line.colour + BAND_OPACITY });
      add(line, line.high, { width: 0, points: { show: false } });
      add(line, line.low, { width: 0, points: { show: false } });
    }
    // Lower areas are drawn over the higher ones, so that each shows its own share.
    add(line, line.y, {
      stroke: line.colour, width: stacked ? 1 : 2, dash: line.dash, ...(stacked && { fill: line.colour }),
    });
  }
  return { data: tables.length ? uPlot.join(tables) : [[], []], series, bands };
}

export class Lines implements Chart<LinesModel>, Readable {
  readonly values = this;
  private readonly hidden = new Set<string>();
  private readonly legendPlace = make("div");
  private readonly title = make("div", { className: "axis-title" });
  private readonly body = make("div");
  private plot: uPlot | null = null;

  constructor(place: HTMLElement, private model: LinesModel, private width: number) {
    place.append(this.legendPlace, this.title, this.body);
    this.show(model);
  }

  show(model: LinesModel): void {
    const again = this.plot !== null && JSON.stringify(shape(model)) === JSON.stringify(shape(this.model));
    this.model = model;
    if (again) this.plot!.setData(this.prepared().data, true);
    else this.build();
  }

  redraw(): void {
    if (this.model.overTime) this.plot?.setScale("x", { min: timeSpan.shown[0], max: timeSpan.shown[1] });
    this.plot?.redraw(false, true);
  }

  resize(width: number): void {
    this.width = width;
    this.plot?.setSize({ width, height: HEIGHT });
  }

  remove(): void {
    showTooltip(null);
    this.plot?.destroy();
    for (const part of [this.legendPlace, this.title, this.body]) part.remove();
  }

  rowCount(): number {
    return this.shown().length;
  }

  places(row: number): ArrayLike<number> {
    const { x } = this.shown()[row]!;
    if (!this.model.overTime) return x;
    const [from, to] = timeSpan.shown;
    return x.subarray(placeBelow(x, from) + 1, placeBelow(x, to) + 1);
  }

  read(row: number, index: number): Reading | null {
    const line = this.shown()[row]!;
    const x = this.places(row)[index];
    if (x === undefined || !this.plot) return null;
    const value = line.y[placeNearest(line.x, x)]!;
    // Stacked lines stand on others, and an unknown value stands nowhere.
    const isPlaced = Number.isFinite(value) && !this.model.stacked;
    const top = isPlaced ? this.plot.valToPos(value, "y") : this.plot.over.clientHeight / 2;
    const hint = this.hint(x, line.name);
    const said = hint.lines.find(({ isCurrent }) => isCurrent)?.value ?? "";
    const words = `${hint.title.replace(/^at /, "")}, ${line.name}: ${said}`;
    return { hint, words, ...pointAt(this.plot, this.plot.valToPos(x, "x"), top) };
  }

  release(): void {
    if (this.plot) hideCursor(this.plot);
  }

  private shown(): Line[] {
    return this.model.series.filter(({ name }) => !this.hidden.has(name));
  }

  private prepared(): Prepared {
    return prepare(this.shown(), this.model.stacked);
  }

  private build(): void {
    const { series, yTitle, unit } = this.model;
    const legend = series.length > 1 ? [switchLegend(series, this.hidden, () => this.draw())] : [];
    this.legendPlace.replaceChildren(...legend);
    this.title.textContent = unit && !yTitle.includes(`(${unit})`) ? `${yTitle} (${unit})` : yTitle;
    this.draw();
  }

  private draw(): void {
    const { overTime, xTitle } = this.model;
    const { data, series, bands } = this.prepared();
    this.plot?.destroy();
    this.plot = new uPlot(
      {
        ...plotOptions(this.width, HEIGHT, overTime),
        scales: {
          x: overTime ? { time: false, range: () => [...timeSpan.shown] as [number, number] } : { time: false },
          y: { range: (_, low, high) => this.valueRange(low, high) },
        },
        axes: [
          overTime ? timeAxis() : { ...bottomAxis(xTitle), values: (_, ticks) => tickTexts(ticks) },
          { ...valueAxis(0), size: (plot) => (overTime ? timeGutter : valueGutter)(plot.width) },
        ],
        series,
        bands,
        hooks: { setCursor: [(plot) => this.hover(plot)] },
      },
      data,
      this.body,
    );
    if (overTime) brushPlot(this.plot);
  }

  /** Returns the axis's range: rates and sizes begin at 0, metrics such as a loss where they are. */
  private valueRange(low: number | null, high: number | null): uPlot.Range.MinMax {
    if (low === null || high === null) return [0, 1];
    const fromZero = this.model.overTime || this.model.stacked;
    return uPlot.rangeNum(fromZero ? Math.min(low, 0) : low, high, 0.1, true);
  }

  private hover(plot: uPlot): void {
    const { left, event } = plot.cursor;
    if (!event) return; // the cursor follows another chart's
    if (left === undefined || left < 0) return showTooltip(null);
    const hint = this.hint(plot.posToVal(left, "x"));
    showTooltip(hint.lines.length ? hint : null, event.clientX, event.clientY);
  }

  /** Returns the lines' values at `x`, or nearest to it. */
  private hint(x: number, current?: string): Hint {
    const { unit, overTime, xTitle } = this.model;
    const lines = this.shown()
      .map((line) => ({ line, at: placeNearest(line.x, x) }))
      .filter(({ at }) => at >= 0)
      .map(({ line, at }) => {
        const around = line.low && line.high ? ` (${numberText(line.low[at]!)} to ${numberText(line.high[at]!)})` : "";
        const value = withUnit(line.y[at]!, unit) + around;
        return { name: line.name, colour: line.colour, value, isCurrent: line.name === current };
      });
    return { title: overTime ? `at ${timeText(x, timeSpan.shown)}` : `${xTitle}: ${numberText(x)}`, lines };
  }
}

/** What of a model decides how a plot is built; the rest is data, which can be replaced. */
function shape(model: LinesModel): unknown {
  const series = model.series.map(({ name, colour, dash, low, high }) => [name, colour, dash, Boolean(low && high)]);
  return [series, model.xTitle, model.yTitle, model.unit, model.overTime, model.stacked];
}
