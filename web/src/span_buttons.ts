// What headings of charts over time say about the span shown, with a button that shows all again.
import { button, make } from "./elements";
import { spanText } from "./time_axis";
import { timeSpan } from "./time_span";

interface SpanNote {
  text: HTMLElement;
  whole: HTMLElement;
}

const notes = new Map<Element, SpanNote>(); // by the section, whose heading may be replaced

function update({ text, whole }: SpanNote): void {
  const part = timeSpan.part;
  whole.hidden = part === null;
  text.textContent = part ? spanText(part) : "";
}

function addNote(heading: Element): SpanNote {
  const text = make("span", { className: "small" });
  const showAll = button("Show all time", () => timeSpan.showAll());
  const whole = make("span", { className: "span-note" }, text, showAll);
  heading.append(whole);
  const note = { text, whole };
  update(note);
  return note;
}

/** Lets links to the page's sections lead there without taking the span's place in the address. */
export function keepSpanInAddress(): void {
  document.addEventListener("click", (event) => {
    const link = (event.target as Element).closest?.<HTMLAnchorElement>('nav a[href^="#"]');
    const section = link && document.getElementById(link.hash.slice(1));
    if (!section || !location.hash.startsWith("#span=")) return;
    event.preventDefault();
    section.scrollIntoView();
    section.tabIndex = -1;
    section.focus({ preventScroll: true });
  });
}

/** Adds the button to the heading of each section once a chart over time is drawn there. */
export function addSpanButtons(): void {
  document.addEventListener("headrace-drawn", (event) => {
    const section = (event.target as Element).closest("section");
    const heading = section?.querySelector("h2");
    if (!section || !heading || notes.has(section) || !(event as CustomEvent<boolean>).detail) return;
    notes.set(section, addNote(heading));
  });
  timeSpan.onChange(() => {
    for (const [section, note] of notes) {
      if (section.isConnected) update(note);
      else notes.delete(section);
    }
  });
}
