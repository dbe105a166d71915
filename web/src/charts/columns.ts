// Columns side by side, such as how often steps took how long, with a colour for each group.
import uPlot from "uplot";
import { make } from "../elements";
import type { ColumnsModel } from "../models";
import { withUnit } from "../number_text";
import type { Chart } from "./chart";
import { switchLegend } from "./legend";
import { bottomAxis, plotOptions, valueAxis, valueGutter } from "./plot_parts";
import { showTooltip } from "./tooltip";

const HEIGHT = 260;
const TICK_PX = 44;

export class Columns implements Chart<ColumnsModel> {
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
    const series = i >= 0 ? this.shown().filter(({ values }) => i < values.length) : [];
    if (series.length === 0) return showTooltip(null);
    const { unit } = this.model;
    const lines = series.map(({ name, colour, values }) => ({ name, colour, value: withUnit(values[i]!, unit) }));
    showTooltip({ title: series[0]!.texts[i] ?? "", lines }, event.clientX, event.clientY);
  }
}
