// The heatmap: how busy every core, GPU, worker and rank was over time, a row each.
import { make } from "../elements";
import type { HeatmapBand, HeatmapModel } from "../models";
import { clockText, momentText, UNKNOWN } from "../number_text";
import { theme } from "../theme";
import { timeText } from "../time_axis";
import { timeSpan } from "../time_span";
import type { Chart } from "./chart";
import { HeatmapImage } from "./heatmap_image";
import type { Readable, Reading } from "./key_cursor";
import { drawTitle } from "./plot_parts";
import { TimePlot, type Area, type Painting } from "./time_plot";
import type { Hint } from "./tooltip";

const TITLE_PX = 24;
const LABEL_PX = 14;
const HATCH_PX = 7; // between the lines where nothing is known

interface PlacedBand {
  band: HeatmapBand;
  image: HeatmapImage;
  top: number;
}

/** Returns a row's height in pixels: many rows are thin, so that all fit on a screen or two. */
function rowHeight(rows: number): number {
  return rows <= 40 ? 18 : Math.min(Math.max(Math.floor(720 / rows), 2), 14);
}

function titleOf(band: HeatmapBand): string {
  return [band.title, band.host].filter(Boolean).join(" · ");
}

export class Heatmap implements Chart<HeatmapModel>, Painting, Readable {
  readonly values = this;
  private bands: PlacedBand[] = [];
  private rowPx = 18;
  private totalPx = 0;
  private readonly plot: TimePlot;
  private readonly scale: HTMLElement;

  constructor(place: HTMLElement, private model: HeatmapModel, width: number) {
    this.take(model);
    this.scale = make(
      "div", { className: "heat-scale" }, "idle", make("span", { className: "heat-colours" }), "busy",
      make("span", { className: "small" }, "hatched: unknown"),
    );
    place.append(this.scale);
    this.plot = new TimePlot(place, this, width);
  }

  show(model: HeatmapModel): void {
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
    this.scale.remove();
  }

  height(): number {
    return this.totalPx;
  }

  rowCount(): number {
    return this.bands.reduce((sum, { band }) => sum + band.rows.length, 0);
  }

  /** Returns the middles of the columns. */
  places(): number[] {
    const { span: [from, to], columns } = this.model;
    const [low, high] = timeSpan.shown;
    const width = (to - from) / columns;
    const first = Math.max(Math.ceil((low - from) / width - 0.5), 0);
    const last = Math.min(Math.floor((high - from) / width - 0.5), columns - 1);
    return Array.from({ length: Math.max(last - first + 1, 0) }, (_, i) => from + (first + i + 0.5) * width);
  }

  read(row: number, index: number): Reading | null {
    const time = this.places()[index];
    const found = this.placed(row);
    const hint = time === undefined || !found ? null : this.describe(time, found.middle);
    if (time === undefined || !found || !hint) return null;
    const began = this.model.beganUnixS;
    const moment = Number.isFinite(began) ? clockText(began + time) : timeText(time, timeSpan.shown);
    const name = [found.name, found.host].filter(Boolean).join(" of ");
    const value = hint.lines[0]!.value;
    const words = `${moment}, ${name}: ${value === UNKNOWN ? UNKNOWN : `${value.replace("%", " %")} busy`}`;
    return { hint, words, ...this.plot.pointAt(time, found.middle) };
  }

  release(): void {
    this.plot.release();
  }

  /** Returns a row's names, counted over all bands, and its middle in pixels from the plot's top. */
  private placed(row: number): { name: string; host: string; middle: number } | null {
    let before = 0;
    for (const { band, top } of this.bands) {
      const inBand = row - before;
      const name = band.rows[inBand];
      if (name !== undefined) return { name, host: band.host, middle: top + (inBand + 0.5) * this.rowPx };
      before += band.rows.length;
    }
    return null;
  }

  labels(): { at: number; text: string }[] {
    const every = Math.ceil(LABEL_PX / this.rowPx);
    return this.bands.flatMap(({ band, top }) =>
      band.rows
        .map((text, row) => ({ at: top + (row + 0.5) * this.rowPx, text }))
        .filter((_, row) => row % every === 0),
    );
  }

  paint(area: Area): void {
    const { context, ratio } = area;
    const [from, to] = this.model.span;
    context.save();
    context.beginPath();
    context.rect(area.left, area.top, area.width, area.height);
    context.clip();
    for (const { band, image, top } of this.bands) {
      const y = area.top + top * ratio;
      const height = band.rows.length * this.rowPx * ratio;
      this.hatch(area, y, height);
      image.paint(context, area, [area.at(from), area.at(to)], y, height);
      if (this.rowPx >= 8) this.separateRows(area, band.rows.length, y);
      drawTitle(context, titleOf(band), area.left, y - 6 * ratio, area.width, ratio);
    }
    context.restore();
  }

  describe(time: number, y: number): Hint | null {
    const found = this.bands.find(({ band, top }) => y >= top && y < top + band.rows.length * this.rowPx);
    if (!found) return null;
    const row = Math.floor((y - found.top) / this.rowPx);
    const [from, to] = this.model.span;
    const column = Math.floor(((time - from) / (to - from)) * this.model.columns);
    const inside = column >= 0 && column < this.model.columns;
    const value = inside ? found.band.values[row * this.model.columns + column]! : 255;
    const lines = [{ name: "busy", value: value > 100 ? UNKNOWN : `${Math.round(value)}%` }];
    const title = [found.band.rows[row], found.band.host].filter(Boolean).join(" · ");
    const began = this.model.beganUnixS;
    const clock = Number.isFinite(began) ? ` (${momentText(began + time)})` : "";
    return { title, lines, note: `at ${timeText(time, timeSpan.shown)}${clock}` };
  }

  private take(model: HeatmapModel): void {
    this.model = model;
    this.rowPx = rowHeight(model.bands.reduce((sum, band) => sum + band.rows.length, 0));
    let top = 0;
    this.bands = model.bands.map((band) => {
      const placed = { band, image: new HeatmapImage(band, model.columns), top: top + TITLE_PX };
      top = placed.top + band.rows.length * this.rowPx;
      return placed;
    });
    this.totalPx = top;
  }

  /** Draws what is seen where the image is clear: without it, unknown and idle would look alike in the dark. */
  private hatch({ context, left, width, ratio }: Area, y: number, height: number): void {
    context.save();
    context.beginPath();
    context.rect(left, y, width, height);
    context.clip();
    context.beginPath();
    for (let x = left - height; x < left + width; x += HATCH_PX * ratio) {
      context.moveTo(x, y + height);
      context.lineTo(x + height, y);
    }
    context.strokeStyle = theme().line;
    context.lineWidth = ratio;
    context.stroke();
    context.restore();
  }

  private separateRows({ context, left, width, ratio }: Area, rows: number, y: number): void {
    context.fillStyle = theme().card;
    for (let row = 1; row < rows; row++) {
      context.fillRect(left, Math.round(y + row * this.rowPx * ratio), width, Math.max(Math.round(ratio), 1));
    }
  }
}
