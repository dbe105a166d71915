// The choice of a run's attempt in the page's head, where it has several.
import { make } from "./elements";
import { attemptQuery } from "./server";

export type Attempts = [number: number, state: string][]; // oldest first

export class AttemptChoice {
  private readonly chosen = attemptQuery().attempt ?? ""; // "": always the latest
  private readonly choice = make("select");
  private shown = "";

  constructor(private readonly place: HTMLElement) {
    place.replaceChildren(make("label", {}, "Attempt ", this.choice));
    this.choice.addEventListener("change", () => {
      const { value } = this.choice;
      this.choice.value = this.chosen; // the browser's back button leads to this page as it is
      // Without the span of time in the address: times of another attempt begin anew.
      location.assign(location.pathname + (value && `?attempt=${value}`));
    });
  }

  show(attempts: Attempts): void {
    const now = JSON.stringify(attempts);
    if (now === this.shown) return; // a list that is open stays so
    this.shown = now;
    const option = (value: string, text: string) => make("option", { value }, text);
    const latest = attempts.at(-1);
    this.choice.replaceChildren(
      option("", latest ? `the latest: ${latest[0]}, ${latest[1]}` : "the latest"),
      ...attempts.map(([number, state]) => option(String(number), `${number}: ${state}`)),
    );
    this.choice.value = this.chosen;
    this.place.hidden = attempts.length < 2;
  }
}
