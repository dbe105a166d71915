// What all charts on uPlot share: margins, axes in the page's colours, and a cursor.
import uPlot from "uplot";
import { roundTicks, tickTexts } from "../number_text";
import { BOLD_FONT, FONT, theme } from "../theme";
import { axisTitle, timeTicks, timeTickTexts } from "../time_axis";
import { timeSpan, type Span } from "../time_span";

export const RIGHT_MARGIN = 24;
const NARROW = 560;

/** The room left of a plot: equal in all charts over time, so that a moment has one position in all. */
export function timeGutter(width: number): number {
  return width < NARROW ? 76 : 132;
}

export function valueGutter(width: number): number {
  return width < NARROW ? 52 : 64;
}

function axisStyle(): uPlot.Axis {
  return {
    stroke: () => theme().quiet,
    font: FONT,
    labelFont: FONT,
    grid: { stroke: () => theme().line, width: 1 },
    ticks: { stroke: () => theme().line, width: 1, size: 5 },
  };
}

/** Returns a uPlot axis at the bottom. */
export function bottomAxis(label: string): uPlot.Axis {
  return { ...axisStyle(), side: 2, label, labelSize: 20, size: 30, gap: 4 };
}

export function timeAxis(): uPlot.Axis {
  const shown = (): Span => timeSpan.shown;
  const axis = bottomAxis("");
  return {
    ...axis,
    // uPlot takes a function here, though its types do not say so.
    label: (() => axisTitle(shown())) as unknown as string,
    splits: (plot) => timeTicks(shown(), plot.width - timeGutter(plot.width) - RIGHT_MARGIN),
    values: (_, ticks) => timeTickTexts(ticks, shown()),
  };
}

/** Returns a uPlot axis on the left with values. */
export function valueAxis(size: number): uPlot.Axis {
  return {
    ...axisStyle(),
    side: 3,
    size,
    gap: 4,
    splits: (plot, _, low, high) => roundTicks(low, high, plot.height / 50),
    values: (_, ticks) => tickTexts(ticks),
  };
}

/** Returns the options of every plot. Charts over time share the cursor's moment. */
export function plotOptions(width: number, height: number, shareCursor: boolean): uPlot.Options {
  return {
    width,
    height,
    padding: [8, RIGHT_MARGIN, 0, 0],
    legend: { show: false },
    cursor: {
      y: false,
      drag: { x: false, y: false },
      points: { show: false },
      ...(shareCursor && {
        sync: { key: "time", setSeries: false, scales: ["x", null] as [string, null] },
      }),
    },
    scales: {},
    series: [{}],
  };
}

/** Moves a plot's cursor, in pixels from its left and top, also in charts that share it. */
function moveCursor(plot: uPlot, left: number, top: number): void {
  // The third argument, by which others follow, is missing in uPlot's types.
  const move: (at: { left: number; top: number }, calls: boolean, follow: boolean) => void = plot.setCursor;
  move({ left, top }, false, true);
}

/** Moves a plot's cursor, in pixels from its left and top, and returns where that is in the window. */
export function pointAt(plot: uPlot, left: number, top: number): { x: number; y: number } {
  moveCursor(plot, left, top);
  const box = plot.over.getBoundingClientRect();
  return { x: box.left + left, y: box.top + top };
}

export function hideCursor(plot: uPlot): void {
  moveCursor(plot, -10, -10);
}

/** Returns text cut in its middle to a width in a canvas's pixels: the ends of names tell them apart. */
export function fitText(context: CanvasRenderingContext2D, text: string, width: number): string {
  if (context.measureText(text).width <= width) return text;
  const cut = (length: number) => {
    const head = Math.ceil(length * 0.4);
    return `${text.slice(0, head)}…${text.slice(text.length - (length - head))}`;
  };
  let low = 0;
  let high = text.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(cut(middle)).width <= width) low = middle;
    else high = middle - 1;
  }
  return cut(low);
}

/**
 * Returns the labels of rows for a width in a canvas's pixels. Where one does not fit, all have the first letters of
 * words before numbers alone, as in "r3 w12": cut, "rank 3 worker 12" and "rank 7 worker 12" would look alike.
 */
export function fitLabels(context: CanvasRenderingContext2D, labels: string[], width: number): string[] {
  const allFit = labels.every((label) => context.measureText(label).width <= width);
  const short = (label: string) => label.replace(/\b(\p{L})\p{L}+ (?=\d)/gu, "$1");
  return labels.map((label) => fitText(context, allFit ? label : short(label), width));
}

/** Draws a title above a canvas position, on a halo that keeps it readable over marks and lines. */
export function drawTitle(
  context: CanvasRenderingContext2D, text: string, x: number, y: number, width: number, ratio: number,
): void {
  const { card, text: ink } = theme();
  context.font = canvasFont(BOLD_FONT, ratio);
  context.textAlign = "left";
  context.textBaseline = "alphabetic";
  context.lineWidth = 4 * ratio;
  context.lineJoin = "round";
  context.strokeStyle = card;
  context.fillStyle = ink;
  const shown = fitText(context, text, width);
  context.strokeText(shown, x, y);
  context.fillText(shown, x, y);
}

/** Returns a font for a canvas with so many pixels to each of the page. */
export function canvasFont(font: string, ratio: number): string {
  return font.replace("12px", `${12 * ratio}px`);
}
