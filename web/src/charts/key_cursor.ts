// The cursor that keys move over a chart's values: what stands there is shown as on hover, and said.
import { make, oncePerFrame } from "../elements";
import { placeNearest } from "../numbers";
import { showTooltip, type Hint } from "./tooltip";

/** What stands at a place of a chart, and where that is in the window. */
export interface Reading {
  hint: Hint;
  words: string; // the same, to be said
  x: number;
  y: number;
}

/** What keys go over: the rows or series of a chart, and the places in each. */
export interface Readable {
  rowCount(): number;
  /** Returns the places of a row on its axis that are shown, ascending. */
  places(row: number): ArrayLike<number>;
  /** Returns what stands at one of them, by its index; null if nothing does. */
  read(row: number, index: number): Reading | null;
  /** Takes away what `read` has marked in the chart. */
  release(): void;
}

const FAR = 10;
const SCROLL = { passive: true, capture: true };
const EDGE_PX = 24; // nearer to the edge of the window a place is scrolled to
export const READING_KEYS =
  "Left and right arrow keys, Home and End go over the values, up and down over rows or series where there are " +
  "several; with Shift arrows go ten further.";

/** Returns the page's one region whose changes screen readers say. */
function spoken(): HTMLElement {
  const found = document.getElementById("reading");
  if (found) return found;
  const made = make("div", { id: "reading", className: "unseen", ariaLive: "polite" });
  document.body.append(made);
  return made;
}

export class KeyCursor {
  private row = 0;
  private index = -1; // before the first key
  private at = NaN; // its place on the axis, by which it is found again in newer values
  private isShown = false;
  private mayScroll = false;
  private readonly mark = make("div", { className: "key-mark", hidden: true });
  private readonly drawSoon = oncePerFrame(() => this.draw());

  constructor(private readonly place: HTMLElement, private readonly values: () => Readable | null) {
    spoken();
    place.tabIndex = 0;
    place.addEventListener("keydown", (event) => this.steer(event));
    place.addEventListener("focus", () => requestAnimationFrame(() => this.showKeys()));
    place.addEventListener("blur", () => this.hide());
    place.append(this.mark);
  }

  /** Stays at its place as the chart draws other values, or another span of time. */
  follow(): void {
    if (this.isShown) this.drawSoon();
  }

  private steer(event: KeyboardEvent): void {
    if (event.target !== this.place || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") return this.hide();
    const values = this.values();
    const next = values && this.next(values, event.key, event.shiftKey ? FAR : 1);
    if (!values || !next) return;
    event.preventDefault();
    [this.row, this.index] = next;
    this.at = values.places(this.row)[this.index]!;
    // Scrolling takes tooltips away, and the browser may still scroll to what has just got the focus.
    if (!this.isShown) addEventListener("scroll", this.drawSoon, SCROLL);
    this.isShown = this.mayScroll = true;
    spoken().textContent = values.read(this.row, this.index)?.words ?? "";
    this.drawSoon();
  }

  /** Returns the row and the index in it that a key leads to; null: nowhere. */
  private next(values: Readable, key: string, by: number): [number, number] | null {
    const now = this.now(values);
    if (!now) return null;
    const [row, index] = now;
    const last = values.places(row).length - 1;
    switch (key) {
      case "Home": return [row, 0];
      case "End": return [row, last];
      case "ArrowLeft": return [row, index < 0 ? last : Math.max(index - by, 0)];
      case "ArrowRight": return [row, Math.min(index < 0 ? 0 : index + by, last)];
      case "ArrowUp": return this.inRow(values, row, -by);
      case "ArrowDown": return this.inRow(values, row, by);
      default: return null;
    }
  }

  /** Returns where the cursor is among the values as they are now; an index of -1 before the first key. */
  private now(values: Readable): [number, number] | null {
    const wanted = Math.min(this.row, values.rowCount() - 1);
    const row = filledRow(values, wanted, 1) ?? filledRow(values, wanted, -1);
    if (row === null) return null;
    const places = values.places(row);
    const isThere = row === this.row && places[this.index] === this.at;
    return [row, this.index < 0 || isThere ? this.index : placeNearest(places, this.at)];
  }

  /** Returns the same place in another row, the nearest that has any. */
  private inRow(values: Readable, row: number, by: number): [number, number] | null {
    const count = values.rowCount();
    if (count < 2) return null;
    const wanted = Math.min(Math.max(this.index < 0 ? row : row + by, 0), count - 1);
    const found = filledRow(values, wanted, by) ?? row;
    return [found, this.index < 0 ? 0 : placeNearest(values.places(found), this.at)];
  }

  private draw(): void {
    const values = this.isShown ? this.values() : null;
    const now = values && this.now(values);
    const reading = values && now && values.read(...now);
    if (!reading) return this.hide();
    const { hint, x, y } = reading;
    const mayScroll = this.mayScroll;
    this.mayScroll = false; // as of a key, not of newer values while the reader is elsewhere
    if (mayScroll && (y < EDGE_PX || y > innerHeight - EDGE_PX)) {
      scrollBy({ top: y - innerHeight / 2, behavior: "instant" });
      return this.drawSoon();
    }
    const box = this.place.getBoundingClientRect();
    this.mark.hidden = false;
    this.mark.style.left = `${x - box.left}px`;
    this.mark.style.top = `${y - box.top}px`;
    showTooltip(y >= 0 && y <= innerHeight ? hint : null, x, y);
  }

  /** Shows what keys there are to those who came by them. */
  private showKeys(): void {
    if (this.isShown || !this.place.matches(":focus-visible")) return;
    const { left, top } = this.place.getBoundingClientRect();
    showTooltip({ title: "Keys", lines: [], note: this.place.getAttribute("aria-description") ?? "" }, left, top);
  }

  hide(): void {
    this.mark.hidden = true;
    showTooltip(null);
    removeEventListener("scroll", this.drawSoon, SCROLL);
    if (this.isShown) this.values()?.release();
    this.isShown = false;
  }
}

/** Returns the nearest row with places, from one on upwards or downwards; null if there is none. */
function filledRow(values: Readable, row: number, by: number): number | null {
  for (let at = row; at >= 0 && at < values.rowCount(); at += Math.sign(by)) {
    if (values.places(at).length > 0) return at;
  }
  return null;
}
