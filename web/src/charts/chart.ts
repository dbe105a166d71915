// What every chart can do, whatever it draws.
import type { Model } from "../models";
import type { Readable } from "./key_cursor";

export interface Chart<Kind extends Model = Model> {
  /** What keys go over while the chart has the focus; null: parts of it take the focus and have keys of their own. */
  readonly values: Readable | null;
  /** Shows a newer model of the same kind, keeping what the reader chose. */
  show(model: Kind): void;
  /** Draws again: the colours or the span of time changed. */
  redraw(): void;
  resize(width: number): void;
  remove(): void;
}
