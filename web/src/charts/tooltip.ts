// The page's one tooltip: a title and lines with colours, beside the pointer or a focused element.
import { make, swatch } from "../elements";

export interface Hint {
  title: string;
  lines: { colour?: string; name: string; value: string; isCurrent?: boolean }[];
  note?: string;
}

const GAP_PX = 14;
let box: HTMLElement | null = null;

function place(x: number, y: number): void {
  if (!box) return;
  const { width, height } = box.getBoundingClientRect();
  const left = x + GAP_PX + width > innerWidth ? x - GAP_PX - width : x + GAP_PX;
  const top = y + GAP_PX + height > innerHeight ? y - GAP_PX - height : y + GAP_PX;
  box.style.left = `${Math.max(left, 4)}px`;
  box.style.top = `${Math.max(top, 4)}px`;
}

function contents({ title, lines, note }: Hint): Node[] {
  const rows = lines.map(({ colour, name, value, isCurrent }) => {
    const parts = [make("span", {}, name), make("b", {}, value)];
    const className = isCurrent ? "tooltip-line current" : "tooltip-line";
    return make("div", { className }, ...(colour ? [swatch(colour)] : []), ...parts);
  });
  return [
    make("div", { className: "tooltip-title" }, title),
    ...rows,
    ...(note ? [make("div", { className: "tooltip-note" }, note)] : []),
  ];
}

/** Shows a hint at a place of the window; null hides the tooltip. */
export function showTooltip(hint: Hint | null, x = 0, y = 0): void {
  if (!hint) {
    if (box) box.hidden = true;
    return;
  }
  if (!box) {
    box = make("div", { className: "tooltip", role: "tooltip" });
    document.body.append(box);
    addEventListener("scroll", () => showTooltip(null), { passive: true, capture: true });
    addEventListener("keydown", (event) => event.key === "Escape" && showTooltip(null));
  }
  box.hidden = false;
  box.replaceChildren(...contents(hint));
  place(x, y);
}

/** Shows a hint while the pointer is over an element. */
export function describeOnHover(element: HTMLElement, hint: () => Hint | null): void {
  element.addEventListener("pointermove", (event) => showTooltip(hint(), event.clientX, event.clientY));
  element.addEventListener("pointerleave", () => showTooltip(null));
}
