// The banner above the page: what is wrong with the connection or the run, until it no longer is.
import { make } from "./elements";

const messages = new Map<string, string>();

function place(): HTMLElement {
  const found = document.getElementById("banner");
  if (found) return found;
  const made = make("div", { id: "banner", role: "status" });
  document.body.prepend(made);
  return made;
}

/** Shows a message about a subject in the place of the last one about it; null takes it away. */
export function showBanner(subject: string, message: string | null): void {
  if (messages.get(subject) === (message ?? undefined)) return;
  if (message === null) messages.delete(subject);
  else messages.set(subject, message);
  place().replaceChildren(...[...messages.values()].map((text) => make("p", {}, text)));
}
