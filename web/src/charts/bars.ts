// Stacked bars, a row each, as elements: they stay sharp, selectable and readable in print.
import { make } from "../elements";
import type { BarsModel } from "../models";
import { roundTicks, tickTexts, withUnit } from "../number_text";
import { textOn } from "../theme";
import type { Chart } from "./chart";
import { legend } from "./legend";
import type { Readable, Reading } from "./key_cursor";
import { describeOnHover, type Hint } from "./tooltip";

const LETTER_PX = 7.5;

interface Cell {
  element: HTMLElement;
  hint: Hint;
}

export class Bars implements Chart<BarsModel>, Readable {
  readonly values = this;
  private cells: Cell[][] = []; // by row: its parts, and all of them together
  private readonly body = make("div", { className: "bars" });

  constructor(place: HTMLElement, private model: BarsModel, private width: number) {
    place.append(this.body);
    this.show(model);
  }

  show(model: BarsModel): void {
    this.model = model;
    this.redraw();
  }

  resize(width: number): void {
    this.width = width;
    this.redraw();
  }

  redraw(): void {
    const { rows, parts, xTitle } = this.model;
    const total = (some: typeof parts, row: number) => some.reduce((sum, { values }) => sum + (values[row]! || 0), 0);
    const longest = Math.max(...rows.map((_, row) => total(parts, row)), 0) || 1;
    // A part without a name is the room before others.
    const named = parts.filter(({ name }) => name);
    this.cells = rows.map(() => []);
    const used = named.filter(({ values }) => values.some((value) => value > 0));
    this.body.replaceChildren(
      legend(used),
      ...rows.map((name, row) => this.bar(name, row, total(named, row), longest)),
      this.axis(longest),
      make("div", { className: "bars-title" }, xTitle),
    );
  }

  remove(): void {
    this.body.remove();
  }

  rowCount(): number {
    return this.cells.length;
  }

  places(row: number): ArrayLike<number> {
    return [...this.cells[row]!.keys()];
  }

  read(row: number, index: number): Reading | null {
    const cell = this.cells[row]?.[index];
    if (!cell) return null;
    const { left, top, width, height } = cell.element.getBoundingClientRect();
    const { name, value } = cell.hint.lines[0]!;
    const words = `${cell.hint.title}, ${name}: ${value}`;
    return { hint: cell.hint, words, x: left + width / 2, y: top + height / 2 };
  }

  release(): void {
    // Nothing is marked.
  }

  private bar(name: string, row: number, total: number, longest: number): HTMLElement {
    const { parts, unit } = this.model;
    const track = make("div", { className: "bars-track" });
    for (const { name: part, colour, values, labels } of parts) {
      const value = values[row]!;
      if (!(value > 0)) continue;
      const label = labels[row] ?? "";
      const share = value / longest;
      // The names and the totals take about a third of the width.
      const fits = label.length * LETTER_PX + 6 < share * this.width * 0.66;
      const made = make("div", { className: "bars-part" }, fits ? label : "");
      made.style.width = `${share * 100}%`;
      made.style.backgroundColor = colour;
      made.style.color = textOn(colour);
      const text = withUnit(value, unit) + (label && ` (${label})`);
      const hint = { title: name, lines: [{ name: part, colour, value: text }] };
      if (part) describeOnHover(made, () => hint);
      if (part) this.cells[row]!.push({ element: made, hint });
      track.append(made);
    }
    const label = make("div", { className: "bars-name", title: name }, name);
    const whole = make("div", { className: "bars-total" }, withUnit(total, unit));
    const hint = { title: name, lines: [{ name: "all", value: withUnit(total, unit) }] };
    this.cells[row]!.push({ element: whole, hint });
    return make("div", { className: "bars-row" }, label, track, whole);
  }

  private axis(longest: number): HTMLElement {
    const ticks = roundTicks(0, longest, this.width < 560 ? 3 : 6);
    const texts = tickTexts(ticks);
    const track = make("div", { className: "bars-axis" });
    ticks.forEach((tick, i) => {
      const mark = make("span", {}, texts[i]!);
      mark.style.left = `${(tick / longest) * 100}%`;
      track.append(mark);
    });
    return make("div", { className: "bars-row", ariaHidden: "true" }, make("div"), track, make("div"));
  }
}
