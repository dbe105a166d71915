// Columns side by side, such as how often steps took how long, with a colour for each group.
import uPlot from "uplot";
import { make } from "../elements";
import type { ColumnsModel } from "../models";
import { withUnit } from "../number_text";
import type { Chart } from "./chart";
import { switchLegend } from "./legend";
import type { Readable, Reading } from "./key_cursor";
import { bottomAxis, hideCursor, plotOptions, pointAt, valueAxis, valueGutter } from "./plot_parts";
import { showTooltip, type Hint } from "./tooltip";

const HEIGHT = 260;
const TICK_PX = 44;

export class Columns implements Chart<ColumnsModel>, Readable {
  readonly values = this;
  private readonly hidden = new Set<string>();
  private readonly legendPlace = make("div");
  private readonly title = make("div", { className: "axis-title" });
  private readonly body = make("div");
  private plot: uPlot | null = null;

  constructor(place: HTMLElement, private model: ColumnsModel, private width: number) {
    place.append(this.legendPlace, this.title, this.body);
    this.show(model);
  }

  show(model: ColumnsModel): void {
    this.model = model;
    const { series, yTitle, unit } = model;
    this.legendPlace.replaceChildren(switchLegend(series, this.hidden, () => this.draw()));
    this.title.textContent = unit && !yTitle.includes(`(${unit})`) ? `${yTitle} (${unit})` : yTitle;
    this.draw();
  }

  redraw(): void {
    this.plot?.redraw(false, true);
  }

  resize(width: number): void {
    this.width = width;
    this.draw();
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
    return [...this.shown()[row]!.values.keys()];
  }

  read(row: number, index: number): Reading | null {
    const series = this.shown()[row];
    const value = series?.values[index];
    if (!series || value === undefined || !this.plot) return null;
    const words = `${series.texts[index] ?? ""}, ${series.name}: ${withUnit(value, this.model.unit)}`;
    const left = this.plot.valToPos(index + 0.5, "x");
    const top = this.plot.valToPos(Math.max(value || 0, 0), "y");
    return { hint: this.hint(index, series.name), words, ...pointAt(this.plot, left, top) };
  }

  release(): void {
    if (this.plot) hideCursor(this.plot);
  }

  private shown(): ColumnsModel["series"] {
    return this.model.series.filter(({ name }) => !this.hidden.has(name));
  }

  private count(): number {
    return Math.max(...this.model.series.map(({ values }) => values.length), 1);
  }

  private draw(): void {
    const ticks = this.fittingTicks();
    const highest = Math.max(0, ...this.shown().flatMap(({ values }) => Array.from(values).filter(Number.isFinite)));
    this.plot?.destroy();
    this.plot = new uPlot(
      {
        ...plotOptions(this.width, HEIGHT, false),
        scales: {
          x: { time: false, range: () => [0, this.count()] },
          y: { range: () => [0, highest * 1.05 || 1] },
        },
        axes: [
          {
            ...bottomAxis(this.model.xTitle),
            splits: () => ticks.map(({ at }) => at),
            values: () => ticks.map(({ text }) => text),
            grid: { show: false },
          },
          valueAxis(valueGutter(this.width)),
        ],
        series: [{}, { paths: () => null, points: { show: false } }],
        hooks: { draw: [(plot) => this.paint(plot)], setCursor: [(plot) => this.hover(plot)] },
      },
      [[0, this.count()], [0, highest]],
      this.body,
    );
  }

  /** Returns the marks of the axis that have room beside one another. */
  private fittingTicks(): ColumnsModel["ticks"] {
    const perColumn = (this.width - valueGutter(this.width) - 24) / this.count();
    let last = -Infinity;
    return this.model.ticks.filter(({ at, text }) => {
      const room = Math.max(TICK_PX, text.length * 7 + 8);
      if ((at - last) * perColumn < room) return false;
      last = at;
      return true;
    });
  }

  private paint(plot: uPlot): void {
    const series = this.shown();
    const bottom = plot.valToPos(0, "y", true);
    series.forEach(({ colour, values }, place) => {
      plot.ctx.fillStyle = colour;
      for (let i = 0; i < values.length; i++) {
        const value = values[i]!;
        if (!(value > 0)) continue;
        const begin = plot.valToPos(i, "x", true);
        const wide = plot.valToPos(i + 1, "x", true) - begin;
        const each = (wide * 0.88) / series.length;
        const top = plot.valToPos(value, "y", true);
        plot.ctx.fillRect(begin + wide * 0.06 + place * each, top, Math.max(each - 0.5, 1), bottom - top);
      }
    });
  }

  private hover(plot: uPlot): void {
    const { left, event } = plot.cursor;
    if (!event) return;
    const i = left !== undefined && left >= 0 ? Math.floor(plot.posToVal(left, "x")) : -1;
    const hint = this.hint(i);
    showTooltip(hint.lines.length ? hint : null, event.clientX, event.clientY);
  }

  /** Returns the values of a column. */
  private hint(i: number, current?: string): Hint {
    const series = i >= 0 ? this.shown().filter(({ values }) => i < values.length) : [];
    const lines = series.map(({ name, colour, values }) => ({
      name, colour, value: withUnit(values[i]!, this.model.unit), isCurrent: name === current,
    }));
    return { title: series[0]?.texts[i] ?? "", lines };
  }
}
