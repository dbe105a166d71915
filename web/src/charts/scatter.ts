// Groups of points on logarithmic axes, such as the cost of hosts against what they achieve.
import uPlot from "uplot";
import { make } from "../elements";
import type { ScatterGroup, ScatterModel, ScatterPoint } from "../models";
import { numberText } from "../number_text";
import { BOLD_FONT, theme } from "../theme";
import type { Chart } from "./chart";
import type { Readable, Reading } from "./key_cursor";
import {
  bottomAxis, canvasFont, fitText, hideCursor, plotOptions, pointAt, valueAxis, valueGutter,
} from "./plot_parts";
import { drawSymbol, symbolElement } from "./symbols";
import { showTooltip, type Hint } from "./tooltip";

const HEIGHT = 400;
const REACH_PX = 24;
const FAINT = 0.4;

interface Found {
  group: ScatterGroup;
  point: ScatterPoint;
}

/** Returns an axis's range around values, all above 0. */
function rangeOf(values: number[]): [number, number] {
  const known = values.filter((value) => value > 0);
  if (known.length === 0) return [1, 10];
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const around = high / low < 4 ? 2 : 1.25; // near points get marks around them, too
  return [low / around, high * around];
}

/** Returns marks at 1, 2 and 5 times the powers of ten of a logarithmic axis. */
function logTicks(low: number, high: number): number[] {
  const ticks: number[] = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const factor of [1, 2, 5]) {
      const tick = factor * 10 ** power;
      if (tick >= low && tick <= high) ticks.push(tick);
    }
  }
  return ticks;
}

export class Scatter implements Chart<ScatterModel>, Readable {
  readonly values = this;
  private readonly legendPlace = make("div");
  private readonly title = make("div", { className: "axis-title" });
  private readonly body = make("div");
  private plot: uPlot | null = null;

  constructor(place: HTMLElement, private model: ScatterModel, private width: number) {
    place.append(this.legendPlace, this.title, this.body);
    this.draw();
  }

  show(model: ScatterModel): void {
    this.model = model;
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
    return this.model.groups.length;
  }

  places(row: number): ArrayLike<number> {
    return this.pointsOf(row).map(({ x }) => x);
  }

  read(row: number, index: number): Reading | null {
    const group = this.model.groups[row];
    const point = this.pointsOf(row)[index];
    if (!group || !point || !this.plot) return null;
    const hint = this.hint({ group, point });
    const values = hint.lines.map(({ name, value }) => `${name} ${value}`);
    const words = `${group.name}: ${[...values, point.text].filter(Boolean).join(", ")}`;
    const [left, top] = [this.plot.valToPos(point.x, "x"), this.plot.valToPos(point.y, "y")];
    return { hint, words, ...pointAt(this.plot, left, top) };
  }

  release(): void {
    if (this.plot) hideCursor(this.plot);
  }

  private pointsOf(row: number): ScatterPoint[] {
    return [...(this.model.groups[row]?.points ?? [])].sort((a, b) => a.x - b.x);
  }

  private draw(): void {
    const { groups, front, frontName, xTitle, yTitle } = this.model;
    const places = [...groups.flatMap(({ points }) => points.map(({ x, y }) => [x, y] as const)), ...front];
    const x = rangeOf(places.map(([at]) => at));
    const y = rangeOf(places.map(([, at]) => at));
    const items = groups.map(({ name, colour, symbol }) => make("li", {}, symbolElement(symbol, colour), name));
    const list = make("ul", { className: "legend" }, ...items);
    if (frontName && front.length) list.append(make("li", {}, make("span", { className: "dotted" }), frontName));
    this.legendPlace.replaceChildren(list);
    this.title.textContent = `${yTitle}, logarithmic`;
    const splits = (_: uPlot, __: number, low: number, high: number) => logTicks(low, high);
    const values = (_: uPlot, ticks: number[]) => ticks.map(numberText);
    this.plot?.destroy();
    this.plot = new uPlot(
      {
        ...plotOptions(this.width, HEIGHT, false),
        scales: { x: { time: false, distr: 3, range: () => x }, y: { distr: 3, range: () => y } },
        axes: [
          { ...bottomAxis(`${xTitle}, logarithmic`), splits, values, filter: (_, ticks) => ticks },
          { ...valueAxis(valueGutter(this.width)), splits, values, filter: (_, ticks) => ticks },
        ],
        series: [{}, { paths: () => null, points: { show: false } }],
        hooks: { draw: [(plot) => this.paint(plot)], setCursor: [(plot) => this.hover(plot)] },
      },
      [x, y],
      this.body,
    );
  }

  private paint({ ctx, valToPos, bbox }: uPlot): void {
    const ratio = uPlot.pxRatio;
    const { text, quiet, card } = theme();
    const at = ([x, y]: readonly [number, number]) => [valToPos(x, "x", true), valToPos(y, "y", true)] as const;
    ctx.save();
    ctx.strokeStyle = quiet;
    ctx.lineWidth = 1.5 * ratio;
    ctx.setLineDash([2 * ratio, 4 * ratio]);
    ctx.beginPath();
    for (const place of this.model.front) ctx.lineTo(...at(place));
    ctx.stroke();
    ctx.setLineDash([]);
    for (const { colour, symbol, points } of this.model.groups) {
      for (const { x, y, strong } of points) {
        ctx.globalAlpha = strong ? 1 : FAINT;
        ctx.fillStyle = colour;
        ctx.strokeStyle = card;
        ctx.lineWidth = ratio;
        drawSymbol(ctx, symbol, ...at([x, y]), (symbol === "star" ? 9 : 6) * ratio);
      }
    }
    ctx.globalAlpha = 1;
    if (this.model.chosen) {
      const [x, y] = at(this.model.chosen);
      ctx.strokeStyle = text;
      ctx.lineWidth = 2 * ratio;
      ctx.beginPath();
      ctx.arc(x, y, 11 * ratio, 0, 2 * Math.PI);
      ctx.stroke();
      ctx.font = canvasFont(BOLD_FONT, ratio);
      ctx.fillStyle = text;
      ctx.textBaseline = "middle";
      const onLeft = x > bbox.left + bbox.width / 2;
      ctx.textAlign = onLeft ? "right" : "left";
      ctx.fillText(fitText(ctx, this.model.chosenName, bbox.width / 2), x + (onLeft ? -16 : 16) * ratio, y);
    }
    ctx.restore();
  }

  private found(): Found[] {
    return this.model.groups.flatMap((group) => group.points.map((point) => ({ group, point })));
  }

  private hint({ group, point }: Found): Hint {
    const { xTitle, yTitle } = this.model;
    const lines = [{ name: xTitle, value: numberText(point.x) }, { name: yTitle, value: numberText(point.y) }];
    return { title: group.name, lines, note: point.text };
  }

  private hover({ cursor: { left, top, event }, valToPos }: uPlot): void {
    if (!event) return;
    let best: Found | null = null;
    let reach = REACH_PX;
    for (const each of left !== undefined && left >= 0 ? this.found() : []) {
      const away = Math.hypot(valToPos(each.point.x, "x") - left!, valToPos(each.point.y, "y") - top!);
      if (away < reach) [best, reach] = [each, away];
    }
    showTooltip(best && this.hint(best), event.clientX, event.clientY);
  }
}
