// A plot over time whose height is in pixels: the frame of the charts that have rows, such as the heatmap.
import uPlot from "uplot";
import { theme, FONT } from "../theme";
import { timeSpan } from "../time_span";
import { brushPlot } from "./brush";
import { fitLabels, hideCursor, plotOptions, pointAt, timeAxis, timeGutter } from "./plot_parts";
import { showTooltip, type Hint } from "./tooltip";

const AXIS_PX = 58; // the time axis below, with its title, and the padding above

/** The part of a canvas that a plot draws into, in the canvas's own pixels. */
export interface Area {
  context: CanvasRenderingContext2D;
  left: number;
  top: number;
  width: number;
  height: number;
  ratio: number; // canvas pixels a pixel of the page
  /** Returns the canvas position of a moment. */
  at(time: number): number;
}

export interface Painting {
  height(): number; // of the plot without axes, in pixels of the page
  labels(): { at: number; text: string }[]; // left of the plot, at pixels from its top
  paint(area: Area): void;
  describe(time: number, y: number): Hint | null;
}

export class TimePlot {
  private readonly plot: uPlot;

  constructor(place: HTMLElement, private readonly painting: Painting, width: number) {
    const options = plotOptions(width, this.outerHeight(), true);
    this.plot = new uPlot(
      {
        ...options,
        scales: {
          x: { time: false, range: () => [...timeSpan.shown] as [number, number] },
          y: { dir: -1, range: () => [0, this.painting.height()] },
        },
        axes: [timeAxis(), this.labelAxis()],
        series: [{}, { show: true, paths: () => null, points: { show: false } }],
        hooks: {
          draw: [(plot) => this.painting.paint(this.area(plot))],
          setCursor: [(plot) => this.hover(plot)],
        },
      },
      this.data(),
      place,
    );
    brushPlot(this.plot);
  }

  redraw(): void {
    const height = this.outerHeight();
    if (height !== this.plot.height) this.plot.setSize({ width: this.plot.width, height });
    this.plot.setData(this.data(), true);
  }

  resize(width: number): void {
    this.plot.axes[1]!.size = () => timeGutter(width);
    this.plot.setSize({ width, height: this.outerHeight() });
  }

  remove(): void {
    showTooltip(null);
    this.plot.destroy();
  }

  /** Moves the cursor to a moment, and returns where it is in the window with so many pixels from the plot's top. */
  pointAt(time: number, top: number): { x: number; y: number } {
    return pointAt(this.plot, this.plot.valToPos(time, "x"), top);
  }

  release(): void {
    hideCursor(this.plot);
  }

  private outerHeight(): number {
    return this.painting.height() + AXIS_PX;
  }

  // uPlot draws nothing without data; the painting draws what there is.
  private data(): uPlot.AlignedData {
    return [[...timeSpan.shown], [0, 0]];
  }

  private labelAxis(): uPlot.Axis {
    const labels = () => this.painting.labels();
    return {
      side: 3,
      size: (plot) => timeGutter(plot.width),
      gap: 6,
      font: FONT,
      stroke: () => theme().text,
      grid: { show: false },
      ticks: { show: false },
      splits: () => labels().map(({ at }) => at),
      values: (plot) => {
        plot.ctx.save();
        plot.ctx.font = FONT;
        const texts = fitLabels(plot.ctx, labels().map(({ text }) => text), timeGutter(plot.width) - 10);
        plot.ctx.restore();
        return texts;
      },
    };
  }

  private area(plot: uPlot): Area {
    const { left, top, width, height } = plot.bbox;
    const [from, to] = timeSpan.shown;
    const perSecond = width / (to - from);
    return {
      context: plot.ctx, left, top, width, height, ratio: uPlot.pxRatio,
      at: (time) => left + (time - from) * perSecond,
    };
  }

  private hover(plot: uPlot): void {
    const { left, top, event } = plot.cursor;
    if (!event) return; // the cursor follows another chart's
    const inside = left !== undefined && top !== undefined && left >= 0;
    const hint = inside ? this.painting.describe(plot.posToVal(left, "x"), top) : null;
    showTooltip(hint, event.clientX, event.clientY);
  }
}
