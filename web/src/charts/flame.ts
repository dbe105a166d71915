// The flame view: which code ran, callers above what they called, as wide as its share of the time.
import { make } from "../elements";
import type { FlameModel, FlameNode } from "../models";
import { numberText } from "../number_text";
import type { Chart } from "./chart";
import { showTooltip, type Hint } from "./tooltip";

const ROW_PX = 24;
const LEAST_SHARE = 0.002;
const KEYS =
  "Down and up arrow keys go to what a function calls and to what called it, left and right to those beside it, Home " +
  "and End to the first and the last of these; Enter looks closer, Escape shows all.";

interface Placed {
  node: FlameNode;
  button: HTMLButtonElement;
  parent: Placed | null;
  below: Placed[];
}

/** Returns the nodes from the root down along names, as far as there are any. */
function pathTo(root: FlameNode, names: readonly string[]): FlameNode[] {
  const path = [root];
  for (const wanted of names) {
    const next = path.at(-1)!.below.find(({ name }) => name === wanted);
    if (!next) break;
    path.push(next);
  }
  return path;
}

export class Flame implements Chart<FlameModel> {
  readonly values = null; // its boxes are buttons, which screen readers say as they get the focus
  private readonly body = make("div", { className: "flame" });
  private zoom: string[] = []; // names from below the root down to what is shown
  private newer: FlameModel | null = null; // waits until nobody looks at the one shown

  constructor(place: HTMLElement, private model: FlameModel, _width: number) {
    place.append(this.body);
    place.setAttribute("aria-description", KEYS);
    for (const leaving of ["pointerleave", "focusout"]) {
      this.body.addEventListener(leaving, () => requestAnimationFrame(() => this.newer && this.show(this.newer)));
    }
    this.body.addEventListener("pointerleave", () => showTooltip(null));
    this.redraw();
  }

  show(model: FlameModel): void {
    this.newer = model;
    if (this.body.matches(":hover, :focus-within")) return;
    this.model = model;
    this.newer = null;
    this.redraw();
  }

  redraw(): void {
    const hadFocus = this.body.contains(document.activeElement);
    const path = pathTo(this.model.root, this.zoom);
    this.zoom.length = path.length - 1;
    this.body.replaceChildren();
    let above: Placed | null = null;
    let deepest = 0;
    path.forEach((node, depth) => {
      const made = this.add(node, depth, 0, 1, above, this.zoom.slice(0, depth));
      above?.below.push(made);
      above = made;
      deepest = depth;
    });
    const top = above as Placed | null;
    if (top) {
      top.button.tabIndex = 0;
      deepest = this.addBelow(top, deepest, 0, 1, this.zoom);
      if (hadFocus) top.button.focus({ preventScroll: true });
    }
    this.body.style.height = `${(deepest + 1) * ROW_PX}px`;
  }

  resize(): void {
    // Widths are shares of the whole, so the browser has resized everything.
  }

  remove(): void {
    showTooltip(null);
    this.body.remove();
  }

  private addBelow(parent: Placed, depth: number, left: number, width: number, names: string[]): number {
    let deepest = depth;
    let begin = left;
    for (const node of parent.node.below) {
      const share = parent.node.value > 0 ? (node.value / parent.node.value) * width : 0;
      if (share >= LEAST_SHARE) {
        const own = [...names, node.name];
        const made = this.add(node, depth + 1, begin, share, parent, own);
        parent.below.push(made);
        deepest = Math.max(deepest, this.addBelow(made, depth + 1, begin, share, own));
      }
      begin += share;
    }
    return deepest;
  }

  private add(
    node: FlameNode, depth: number, left: number, width: number, parent: Placed | null, names: string[],
  ): Placed {
    const role = ["root", "user", "library"].includes(node.role) ? node.role : "library";
    const button = make("button", { type: "button", className: `flame-node ${role}`, tabIndex: -1 }, node.name);
    const { lines, note } = this.hint(node);
    const values = lines.map(({ name, value }) => `${value} ${name}`);
    button.ariaLabel = [node.name, note, ...values].filter(Boolean).join(", ");
    button.style.top = `${depth * ROW_PX}px`;
    button.style.left = `${left * 100}%`;
    button.style.width = `${width * 100}%`;
    const placed: Placed = { node, button, parent, below: [] };
    button.addEventListener("click", () => this.zoomTo(names));
    button.addEventListener("keydown", (event) => this.steer(event, placed));
    button.addEventListener("pointermove", (event) => showTooltip(this.hint(node), event.clientX, event.clientY));
    button.addEventListener("focus", () => {
      if (!button.matches(":focus-visible")) return;
      const box = button.getBoundingClientRect();
      showTooltip(this.hint(node), box.left, box.bottom);
    });
    button.addEventListener("blur", () => showTooltip(null));
    this.body.append(button);
    return placed;
  }

  private hint(node: FlameNode): Hint {
    const share = (node.value / this.model.root.value) * 100;
    const lines = node.text ? [] : [{ name: "of the time", value: `${numberText(share)}%` }];
    return { title: node.name, lines, note: [node.place, node.text].filter(Boolean).join(" · ") };
  }

  /** Shows a node as wide as the chart; a click on the one shown goes back by one. */
  private zoomTo(names: string[]): void {
    const same = names.length === this.zoom.length && names.every((name, i) => name === this.zoom[i]);
    this.zoom = same ? names.slice(0, -1) : [...names];
    showTooltip(null);
    this.redraw();
  }

  private steer(event: KeyboardEvent, { parent, below, button }: Placed): void {
    const beside = parent?.below ?? [];
    const place = beside.findIndex((one) => one.button === button);
    const next = {
      ArrowDown: below[0], ArrowUp: parent, ArrowLeft: beside[place - 1], ArrowRight: beside[place + 1],
      Home: beside[0], End: beside.at(-1),
    }[event.key];
    if (event.key === "Escape") this.zoomTo([]);
    if (next) {
      button.tabIndex = -1;
      next.button.tabIndex = 0;
      next.button.focus();
    }
    if (next || /^(Arrow|Home|End)/.test(event.key)) event.preventDefault();
  }
}
