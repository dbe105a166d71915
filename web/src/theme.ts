// The page's colours for what is drawn on canvases, which cannot use the stylesheet's variables.

export interface Theme {
  text: string;
  quiet: string;
  line: string;
  card: string;
  accent: string;
  shade: string; // behind stretches of time that are no training
}

export const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif';
export const BOLD_FONT = `600 ${FONT}`;
/** Okabe and Ito's colours: told apart with any kind of colour blindness, readable on both themes. */
const SERIES_COLOURS = ["#0a7cc4", "#d98a00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#8d99a6"];
// The stylesheet's print rules do not hold yet when a page is about to be printed.
const ON_PAPER: Theme = {
  text: "#000000", quiet: "#444444", line: "#cccccc", card: "#ffffff", accent: "#1c4f93", shade: "#e9ecf0",
};

let current: Theme | null = null;
let printing = false;

function readTheme(): Theme {
  const style = getComputedStyle(document.documentElement);
  const read = (name: string) => style.getPropertyValue(`--${name}`).trim() || "#808080";
  return {
    text: read("text"), quiet: read("quiet"), line: read("line"), card: read("card"),
    accent: read("accent"), shade: read("shade"),
  };
}

export function theme(): Theme {
  if (printing) return ON_PAPER;
  return (current ??= readTheme());
}

export function seriesColour(place: number): string {
  return SERIES_COLOURS[place % SERIES_COLOURS.length]!;
}

/** Returns black or white, whichever is easier to read on a colour such as #e8590c. */
export function textOn(colour: string): string {
  const parts = /^#(..)(..)(..)$/.exec(colour)?.slice(1).map((part) => parseInt(part, 16) / 255);
  if (!parts) return "#000000";
  const [red, green, blue] = parts.map((part) => (part <= 0.04 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  const light = 0.2126 * red! + 0.7152 * green! + 0.0722 * blue!;
  return light > 0.18 ? "#000000" : "#ffffff";
}

/** Calls `redraw` when the colours change, and `print` before (true) and after (false) printing. */
export function watchTheme(redraw: () => void, print: (on: boolean) => void): void {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    current = null;
    redraw();
  });
  for (const [name, on] of [["beforeprint", true], ["afterprint", false]] as const) {
    addEventListener(name, () => {
      printing = on;
      print(on);
    });
  }
}
