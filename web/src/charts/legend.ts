// A chart's legend: names with their colours, which a click may take out of the chart and put back.
import { button, make, swatch } from "../elements";

export interface Entry {
  name: string;
  colour: string;
}

/** Returns a legend. */
export function legend(entries: readonly Entry[]): HTMLElement {
  const items = entries.map(({ name, colour }) => make("li", {}, swatch(colour), name));
  return make("ul", { className: "legend" }, ...items);
}

/** Returns a legend of switches. `hidden` has the names taken out; `changed` is called after each click. */
export function switchLegend(entries: readonly Entry[], hidden: Set<string>, changed: () => void): HTMLElement {
  const items = entries.map(({ name, colour }) => {
    const made = button("", () => {
      if (!hidden.delete(name)) hidden.add(name);
      made.ariaPressed = String(!hidden.has(name));
      changed();
    });
    made.append(swatch(colour), name);
    made.ariaPressed = String(!hidden.has(name));
    made.title = `Show or hide ${name}`;
    return make("li", {}, made);
  });
  return make("ul", { className: "legend" }, ...items);
}
