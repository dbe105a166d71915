// The steps of every rank over time: a column of phases for each step, or for a group of neighbours.
import { make } from "../elements";
import type { StepRow, StepsModel } from "../models";
import { durationText, numberText, roundTicks, withUnit } from "../number_text";
import { placeBelow } from "../numbers";
import { theme } from "../theme";
import { timeText } from "../time_axis";
import { timeSpan } from "../time_span";
import type { Chart } from "./chart";
import { switchLegend } from "./legend";
import type { Readable, Reading } from "./key_cursor";
import { drawTitle } from "./plot_parts";
import { TimePlot, type Area, type Painting } from "./time_plot";
import type { Hint } from "./tooltip";

const TITLE_PX = 24;

function panelHeight(ranks: number): number {
  return ranks === 1 ? 220 : ranks <= 4 ? 130 : ranks <= 8 ? 88 : 56;
}

export class Steps implements Chart<StepsModel>, Painting, Readable {
  readonly values = this;
  private readonly hidden = new Set<string>();
  private readonly legendPlace = make("div");
  private readonly plot: TimePlot;
  private topMs = 1;

  constructor(place: HTMLElement, private model: StepsModel, width: number) {
    place.append(this.legendPlace);
    this.take(model);
    this.plot = new TimePlot(place, this, width);
  }

  show(model: StepsModel): void {
    this.take(model);
    this.plot.redraw();
  }

  redraw(): void {
    this.plot.redraw();
  }

  resize(width: number): void {
    this.plot.resize(width);
  }

  remove(): void {
    this.plot.remove();
    this.legendPlace.remove();
  }

  height(): number {
    return this.model.rows.length * (TITLE_PX + panelHeight(this.model.rows.length));
  }

  rowCount(): number {
    return this.model.rows.length;
  }

  /** Returns when the steps of a rank began. */
  places(row: number): ArrayLike<number> {
    const { starts, ends } = this.model.rows[row]!;
    const [from, to] = timeSpan.shown;
    return starts.subarray(placeBelow(ends, from) + 1, placeBelow(starts, to) + 1);
  }

  read(row: number, index: number): Reading | null {
    const begin = this.places(row)[index];
    const panel = panelHeight(this.model.rows.length);
    const middle = row * (TITLE_PX + panel) + TITLE_PX + panel / 2;
    const hint = begin === undefined ? null : this.describe(begin, middle);
    if (begin === undefined || !hint) return null;
    const { starts, ends } = this.model.rows[row]!;
    const [from, to] = timeSpan.shown;
    const time = (Math.max(begin, from) + Math.min(ends[placeBelow(starts, begin)]!, to)) / 2;
    const parts = hint.lines.map(({ name, value }) => `${name} ${value}`).join(", ");
    const words = `${timeText(begin, timeSpan.shown)}, ${hint.title}${parts && `: ${parts}`}`;
    return { hint, words, ...this.plot.pointAt(time, middle) };
  }

  release(): void {
    this.plot.release();
  }

  labels(): { at: number; text: string }[] {
    const panel = panelHeight(this.model.rows.length);
    const ticks = roundTicks(0, this.topMs, Math.max(panel / 32, 1));
    return this.model.rows.flatMap((_, row) =>
      ticks.map((tick) => ({
        at: row * (TITLE_PX + panel) + TITLE_PX + panel * (1 - tick / this.topMs),
        text: withUnit(tick, "ms"),
      })),
    );
  }

  paint(area: Area): void {
    const { context, ratio } = area;
    const panel = panelHeight(this.model.rows.length);
    context.save();
    context.beginPath();
    context.rect(area.left, area.top, area.width, area.height + ratio);
    context.clip();
    this.model.rows.forEach((row, place) => {
      const top = area.top + (place * (TITLE_PX + panel) + TITLE_PX) * ratio;
      this.paintPanel(area, row, top, panel * ratio);
    });
    context.restore();
  }

  describe(time: number, y: number): Hint | null {
    const { rows, phases } = this.model;
    const row = rows[Math.floor(y / (TITLE_PX + panelHeight(rows.length)))];
    const at = row ? placeBelow(row.starts, time) : -1;
    if (!row || at < 0 || time > row.ends[at]!) return null;
    const count = row.counts[at]!;
    const wall = row.wallMs[at]!;
    const lines = phases
      .map(({ name, colour }, phase) => ({ name, colour, ms: row.parts[phase]![at]! }))
      .filter(({ ms }) => ms > 0)
      .map(({ name, colour, ms }) => ({
        name, colour, value: withUnit(ms, "ms") + (wall > 0 ? ` (${Math.round((ms / wall) * 100)}%)` : ""),
      }));
    const what = count > 1 ? `longest of ${numberText(count)} steps` : "step";
    const begin = timeText(row.starts[at]!, timeSpan.shown);
    return { title: `${row.name}: ${what}, ${durationText(wall / 1e3)}`, lines, note: `from ${begin}` };
  }

  private take(model: StepsModel): void {
    const legendChanged = JSON.stringify(model.phases) !== JSON.stringify(this.model.phases);
    this.model = model;
    this.topMs = this.findTop();
    if (legendChanged || !this.legendPlace.hasChildNodes()) {
      this.legendPlace.replaceChildren(switchLegend(model.phases, this.hidden, () => {
        this.topMs = this.findTop();
        this.plot.redraw();
      }));
    }
  }

  /** Returns the axis's top. With phases taken out it is lower, or else what is left might be too small to see. */
  private findTop(): number {
    const { rows, topMs } = this.model;
    if (this.hidden.size === 0) return Math.max(topMs, 1e-6);
    let highest = 0;
    for (const row of rows) {
      const parts = this.shownParts(row);
      for (let i = 0; i < row.starts.length; i++) {
        highest = Math.max(highest, parts.reduce((sum, { values }) => sum + (values[i]! || 0), 0));
      }
    }
    return Math.min(highest * 1.05, topMs) || Math.max(topMs, 1e-6);
  }

  private shownParts(row: StepRow): { colour: string; values: ArrayLike<number> }[] {
    return this.model.phases
      .map(({ name, colour }, phase) => ({ name, colour, values: row.parts[phase]! }))
      .filter(({ name }) => !this.hidden.has(name));
  }

  private paintPanel(area: Area, row: StepRow, top: number, height: number): void {
    const { context, ratio, left, width } = area;
    const colours = theme();
    context.fillStyle = colours.shade;
    for (const [from, to] of this.model.shades) {
      context.fillRect(area.at(from), top, Math.max(area.at(to) - area.at(from), 1), height);
    }
    context.fillStyle = colours.line;
    for (const tick of roundTicks(0, this.topMs, Math.max(height / ratio / 32, 1))) {
      const y = Math.round(top + height * (1 - tick / this.topMs));
      context.fillRect(left, y, width, Math.max(Math.round(ratio), 1));
    }
    this.paintColumns(area, row, top, height);
    drawTitle(context, row.name, left, top - 8 * ratio, width, ratio);
  }

  private paintColumns({ context, ratio, at }: Area, row: StepRow, top: number, height: number): void {
    const [from, to] = timeSpan.shown;
    const first = Math.max(placeBelow(row.starts, from), 0);
    const end = placeBelow(row.starts, to) + 1;
    const bottom = top + height;
    const perMs = height / this.topMs;
    const heights = new Float64Array(Math.max(end - first, 0));
    for (const { colour, values } of this.shownParts(row)) {
      context.fillStyle = colour;
      for (let i = first; i < end; i++) {
        const part = (values[i]! || 0) * perMs;
        const below = heights[i - first]!;
        const above = Math.min(below + part, height);
        heights[i - first] = below + part;
        if (above <= below) continue;
        const x = at(row.starts[i]!);
        const wide = at(row.ends[i]!) - x;
        // A hair's gap between wide columns tells neighbours apart.
        context.fillRect(x, bottom - above, wide > 6 * ratio ? wide - ratio : Math.max(wide, ratio), above - below);
      }
    }
    context.fillStyle = theme().text;
    for (let i = first; i < end; i++) {
      if (heights[i - first]! <= height * 1.001) continue;
      const middle = (at(row.starts[i]!) + at(row.ends[i]!)) / 2;
      context.beginPath();
      context.moveTo(middle - 3 * ratio, top);
      context.lineTo(middle + 3 * ratio, top);
      context.lineTo(middle, top - 5 * ratio);
      context.fill();
    }
  }
}
