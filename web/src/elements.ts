// Elements made in script; text always goes in as text, never as HTML.

type Properties<Name extends keyof HTMLElementTagNameMap> = Partial<
  Omit<HTMLElementTagNameMap[Name], "style" | "children" | "dataset">
>;

/** Returns a new element with properties (className, type, ...) and children. */
export function make<Name extends keyof HTMLElementTagNameMap>(
  name: Name,
  properties: Properties<Name> = {},
  ...children: (Node | string)[]
): HTMLElementTagNameMap[Name] {
  const element = document.createElement(name);
  Object.assign(element, properties);
  element.append(...children);
  return element;
}

/** Returns a button that does something. */
export function button(text: string, act: () => void, className = ""): HTMLButtonElement {
  const made = make("button", { type: "button", className }, text);
  made.addEventListener("click", act);
  return made;
}

/** Returns a small square of a colour, for legends. */
export function swatch(colour: string): HTMLSpanElement {
  const made = make("span", { className: "swatch" });
  made.style.backgroundColor = colour;
  made.ariaHidden = "true";
  return made;
}

/** Returns a function that asks for one call in the next frame, however often it is called. */
export function oncePerFrame(act: () => void): () => void {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      act();
    });
  };
}
