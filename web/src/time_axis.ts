// Moments since recording began in words: the unit that fits a span, and the marks of an axis.
import { roundTicks, tickTexts } from "./number_text";
import type { Span } from "./time_span";

interface Unit {
  name: "s" | "min" | "h";
  seconds: number;
}

const TICK_PX = 76;

export function unitOf(span: Span): Unit {
  const length = span[1] - span[0];
  if (length < 600) return { name: "s", seconds: 1 };
  return length < 5 * 3600 ? { name: "min", seconds: 60 } : { name: "h", seconds: 3600 };
}

export function axisTitle(span: Span): string {
  return `time since recording began (${unitOf(span).name})`;
}

/** Returns the moments that get a mark on an axis as wide as `px`. */
export function timeTicks(span: Span, px: number): number[] {
  const { seconds } = unitOf(span);
  return roundTicks(span[0] / seconds, span[1] / seconds, px / TICK_PX).map((tick) => tick * seconds);
}

export function timeTickTexts(ticks: readonly number[], span: Span): string[] {
  const { seconds } = unitOf(span);
  return tickTexts(ticks.map((tick) => tick / seconds));
}

/** Returns a moment in the unit of a span, as finely as a thousandth of the span. */
export function timeText(time: number, span: Span): string {
  const { name, seconds } = unitOf(span);
  const finest = Math.max((span[1] - span[0]) / seconds / 1000, 1e-6);
  const digits = Math.min(Math.max(Math.ceil(-Math.log10(finest)), 0), 6);
  return `${(time / seconds).toLocaleString("en", { maximumFractionDigits: digits })} ${name}`;
}

export function spanText(span: Span): string {
  return `${timeText(span[0], span)} to ${timeText(span[1], span)}`;
}
