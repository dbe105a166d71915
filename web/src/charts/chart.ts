// What every chart can do, whatever it draws.
import type { Model } from "../models";

export interface Chart<Kind extends Model = Model> {
  /** Shows a newer model of the same kind, keeping what the reader chose. */
  show(model: Kind): void;
  /** Draws again: the colours or the span of time changed. */
  redraw(): void;
  resize(width: number): void;
  remove(): void;
}
