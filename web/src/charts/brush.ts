// Choosing the span of time on a chart: by dragging over it, and by keys while it has the focus, but for those that
// go over its values.
import type uPlot from "uplot";
import { make } from "../elements";
import { timeSpan, type Span } from "../time_span";

const LEAST_DRAG_PX = 4;
export const SPAN_KEYS = "Comma and full stop move in time, plus and minus zoom, Escape shows all.";

/** Lets a drag over a plot choose the span; a double click or a drag with Shift shows all again. */
export function brushPlot(plot: uPlot): void {
  const over = plot.over;
  const shade = make("div", { className: "brush", hidden: true });
  over.append(shade);
  let from: number | null = null;

  const position = (event: PointerEvent) => {
    const box = over.getBoundingClientRect();
    return Math.min(Math.max(event.clientX - box.left, 0), box.width);
  };
  const end = () => {
    from = null;
    shade.hidden = true;
  };

  over.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || !event.isPrimary) return;
    from = position(event);
    over.setPointerCapture(event.pointerId);
  });
  over.addEventListener("pointermove", (event) => {
    if (from === null) return;
    const to = position(event);
    shade.hidden = false;
    shade.style.left = `${Math.min(from, to)}px`;
    shade.style.width = `${Math.abs(to - from)}px`;
  });
  over.addEventListener("pointerup", (event) => {
    if (from === null) return;
    const ends = [from, position(event)].sort((a, b) => a - b) as [number, number];
    end();
    if (ends[1] - ends[0] < LEAST_DRAG_PX) return;
    if (event.shiftKey) timeSpan.showAll();
    else timeSpan.choose([plot.posToVal(ends[0], "x"), plot.posToVal(ends[1], "x")]);
  });
  over.addEventListener("pointercancel", end);
  over.addEventListener("dblclick", () => timeSpan.showAll());
}

function moved([from, to]: Span, by: number): Span {
  return [from + (to - from) * by, to + (to - from) * by];
}

function scaled([from, to]: Span, factor: number): Span {
  const middle = (from + to) / 2;
  const half = ((to - from) * factor) / 2;
  return [middle - half, middle + half];
}

/** Returns the span that a key leads to, null if it is none of a chart's keys. */
function spanAfter(key: string): Span | "all" | null {
  const shown = timeSpan.shown;
  const part = timeSpan.part !== null;
  switch (key) {
    case ",": return part ? moved(shown, -0.1) : null;
    case ".": return part ? moved(shown, 0.1) : null;
    case "+": case "=": return scaled(shown, 0.5);
    case "-": case "_": return part ? scaled(shown, 2) : null;
    case "Escape": return "all";
    default: return null;
  }
}

/** Lets keys on a focused chart choose the span. Keys in quick succession are one step of the history. */
export function steerByKeys(place: HTMLElement): void {
  let last = -Infinity;
  place.tabIndex = 0;
  place.addEventListener("keydown", (event) => {
    if (event.target !== place || event.ctrlKey || event.metaKey || event.altKey) return;
    const wanted = spanAfter(event.key);
    if (wanted === null) return;
    event.preventDefault();
    const step = event.timeStamp - last > 1000;
    if (wanted === "all") timeSpan.showAll(step);
    else timeSpan.move(wanted, step);
    last = event.timeStamp;
  });
}
