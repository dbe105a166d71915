// Stacked bars, a row each, as elements: they stay sharp, selectable and readable in print.
import { make } from "../elements";
import type { BarsModel } from "../models";
import { roundTicks, tickTexts, withUnit } from "../number_text";
import { textOn } from "../theme";
import type { Chart } from "./chart";
import { legend } from "./legend";
import { describeOnHover } from "./tooltip";

const LETTER_PX = 7.5;

export class Bars implements Chart<BarsModel> {
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
      if (part) describeOnHover(made, () => ({ title: name, lines: [{ name: part, colour, value: text }] }));
      track.append(made);
    }
    const label = make("div", { className: "bars-name", title: name }, name);
    const whole = make("div", { className: "bars-total" }, withUnit(total, unit));
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
