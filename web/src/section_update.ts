// Replaces sections of a page by newer ones without disturbing who is reading them.
import { make } from "./elements";

export interface NewSection {
  id: string;
  title: string;
  html: string; // escaped by the server
  stamp: string;
}

/** Elements that the page's script has filled; they stay when the section around them is replaced. */
const KEPT = ".chart[id], #run-list, #controls, #logs";
const FOCUSABLE = "a, button, input, select, summary, [tabindex]";

/** Returns a new section's content as nodes of this document. */
function parse({ title, html }: NewSection): DocumentFragment {
  const parsed = new DOMParser().parseFromString(html, "text/html");
  const content = document.createDocumentFragment();
  content.append(make("h2", {}, title), ...document.adoptNode(parsed.body).childNodes);
  return content;
}

function holdsSelection(section: HTMLElement): boolean {
  const selection = getSelection();
  return selection !== null && !selection.isCollapsed && selection.containsNode(section, true);
}

function isBeingTyped(section: HTMLElement): boolean {
  const active = document.activeElement;
  if (active === null || !section.contains(active) || active.closest(KEPT)) return false;
  return active.matches("input, textarea, select");
}

function nameOf(details: HTMLDetailsElement): string {
  return details.id || (details.querySelector("summary")?.textContent ?? "");
}

function keepParts(section: HTMLElement, content: DocumentFragment): void {
  for (const fresh of content.querySelectorAll<HTMLElement>(KEPT)) {
    const old = document.getElementById(fresh.id);
    if (!old || !section.contains(old) || fresh.dataset.model) continue;
    old.ariaLabel = fresh.ariaLabel ?? old.ariaLabel;
    fresh.replaceWith(old);
  }
}

/** Returns what an element is about, so that it is found though others came before it; "": it has none. */
function identityOf(element: Element): string {
  const of = ["id", "data-copy", "href"].map((name) => element.getAttribute(name));
  return of.find((text) => text !== null) ?? "";
}

/** Returns a function that brings back what the reader opened, scrolled and focused in a section. */
function readerState(section: HTMLElement): () => void {
  const details = new Map([...section.querySelectorAll("details")].map((each) => [nameOf(each), each.open]));
  const scrolled = [...section.querySelectorAll(".wide, .source")].map((each) => each.scrollLeft);
  const active = document.activeElement;
  const place = active ? [...section.querySelectorAll(FOCUSABLE)].indexOf(active) : -1;
  const identity = active && place >= 0 ? identityOf(active) : "";
  return () => {
    for (const each of section.querySelectorAll("details")) each.open = details.get(nameOf(each)) ?? each.open;
    section.querySelectorAll(".wide, .source").forEach((each, i) => (each.scrollLeft = scrolled[i] ?? 0));
    const all = [...section.querySelectorAll<HTMLElement>(FOCUSABLE)];
    const again = identity ? all.find((each) => identityOf(each) === identity) : all[place];
    again?.focus({ preventScroll: true });
  };
}

/** Keeps the part of the page that is on the screen where it is while something above it changes. */
function keepScroll(change: () => void): void {
  const top = [...document.querySelectorAll("main > section")].find((each) => each.getBoundingClientRect().bottom > 0);
  const before = top?.getBoundingClientRect().top ?? 0;
  change();
  if (top?.isConnected && before < 0) {
    const moved = top.getBoundingClientRect().top - before;
    if (moved) scrollBy({ top: moved, behavior: "instant" });
  }
}

function updateLinks(sections: readonly NewSection[]): void {
  const nav = document.querySelector(".top nav");
  if (!nav) return;
  const links = [...nav.querySelectorAll("a")];
  const others = links.filter((link) => !link.getAttribute("href")?.startsWith("#"));
  const fresh = sections.map(({ id, title }) => make("a", { href: `#${id}` }, title));
  const now = [...others, ...fresh];
  // Links that are made anew lose the focus.
  if (now.length === links.length && now.every((link, i) => link.outerHTML === links[i]!.outerHTML)) return;
  nav.replaceChildren(...now);
}

export class SectionUpdate {
  private readonly stamps = new Map<string, string>();
  private waiting: readonly NewSection[] = []; // until nothing in them is selected any more

  /** `changed` is called after sections were replaced. */
  constructor(private readonly changed: () => void) {
    for (const section of document.querySelectorAll<HTMLElement>("main > section[data-stamp]")) {
      this.stamps.set(section.id, section.dataset.stamp!);
    }
    document.addEventListener("selectionchange", () => {
      if (this.waiting.length && getSelection()?.isCollapsed) this.apply(this.waiting);
    });
    document.addEventListener("focusout", () => {
      setTimeout(() => this.waiting.length && this.apply(this.waiting));
    });
  }

  /** Brings the page's sections to what the server has now, in its order. */
  apply(sections: readonly NewSection[]): void {
    const main = document.querySelector("main");
    if (!main) return;
    this.waiting = [];
    keepScroll(() => {
      const ids = new Set(sections.map(({ id }) => id));
      for (const old of main.querySelectorAll<HTMLElement>(":scope > section")) {
        const filled = old.id === "" || old.matches(KEPT) || old.querySelector("#run-list, #controls, #logs");
        if (!ids.has(old.id) && !filled) old.remove();
      }
      let after: Element | null = null;
      for (const fresh of sections) after = this.place(main, fresh, after, sections);
    });
    updateLinks(sections);
    this.changed();
  }

  private place(
    main: HTMLElement, fresh: NewSection, after: Element | null, all: readonly NewSection[],
  ): HTMLElement {
    let section = [...main.querySelectorAll<HTMLElement>(":scope > section")].find(({ id }) => id === fresh.id);
    if (!section) {
      section = make("section", { id: fresh.id });
      if (after) after.after(section);
      else main.prepend(section);
    }
    if (this.stamps.get(fresh.id) === fresh.stamp && section.hasChildNodes()) return section;
    if (holdsSelection(section) || isBeingTyped(section)) {
      this.waiting = all;
      return section;
    }
    const restore = readerState(section);
    const content = parse(fresh);
    keepParts(section, content);
    const note = section.querySelector(":scope > h2 > .span-note");
    section.replaceChildren(content);
    if (note) section.querySelector("h2")?.append(note);
    restore();
    this.stamps.set(fresh.id, fresh.stamp);
    return section;
  }
}
