// What a reader may change about a running job: recording, its depth, its interval; stop and resume.
import { button, make } from "./elements";
import { askServer, partAddress, sentence, tellServer } from "./server";

interface Switch {
  running: boolean;
  why: string; // why its recording cannot be changed here; then the next three are missing
  recording?: boolean;
  deep?: boolean;
  interval_s?: number;
  stoppable: boolean;
  resumable: boolean;
}

const DEEP_S = 20;
const PAUSED = "Recording is paused; the run goes on.";
const INTERVALS_S = [0.1, 0.2, 0.5, 1, 2, 5, 10];

/** Asks in a dialog before something that cannot be undone. */
function confirmInDialog(question: string, consequence: string, act: string): Promise<boolean> {
  const { promise, resolve } = deferred<boolean>();
  const dialog = make("dialog");
  const yes = button(act, () => dialog.close("yes"), "danger");
  const no = button("Cancel", () => dialog.close(""));
  const heading = make("h2", { id: "dialog-title" }, question);
  dialog.append(heading, make("p", {}, consequence), make("div", { className: "buttons" }, no, yes));
  dialog.setAttribute("aria-labelledby", heading.id);
  dialog.addEventListener("close", () => {
    dialog.remove();
    resolve(dialog.returnValue === "yes");
  });
  document.body.append(dialog);
  dialog.showModal();
  no.focus();
  return promise;
}

function deferred<T>(): { promise: Promise<T>; resolve: (value: T) => void } {
  let resolve!: (value: T) => void;
  const promise = new Promise<T>((settle) => (resolve = settle));
  return { promise, resolve };
}

export class Controls {
  private readonly record = button("", () => void this.order({ recording: !this.state?.recording }));
  private readonly deep = button(`Record deeply for ${DEEP_S} s`, () => void this.order({ deep_s: DEEP_S }));
  private readonly interval = make("select");
  private readonly stop = button("Stop the run", () => void this.confirmStop(), "danger");
  private readonly resume = button("Resume the run", () => void this.confirmResume());
  private readonly status = make("span", { className: "small", role: "status" });
  private readonly buttons: HTMLElement;
  private state: Switch | null = null;
  private shown: Promise<void> = Promise.resolve(); // when the answer to the last request is shown

  constructor(place: HTMLElement, private readonly address: string) {
    this.interval.addEventListener("change", () => void this.order({ interval_s: Number(this.interval.value) }));
    const interval = make("label", {}, "every ", this.interval);
    this.buttons = make(
      "div", { className: "buttons", hidden: true }, this.record, interval, this.deep, this.stop, this.resume,
    );
    this.deep.title = "Stacks and system calls are sampled more often for a while; the run may be a little slower.";
    place.replaceChildren(this.buttons, this.status);
    this.refresh();
  }

  refresh(): void {
    void this.attempt(() => this.showAnswer(() => askServer<Switch>(partAddress("switch"))));
  }

  /** Takes the buttons away: there is nothing left to control. */
  end(): void {
    this.buttons.hidden = true;
    this.say("");
  }

  private show(state: Switch): void {
    this.state = state;
    this.buttons.hidden = false;
    const { recording = false, deep = false, interval_s = 0 } = state;
    const canChange = state.running && !state.why;
    this.record.textContent = recording ? "Pause recording" : "Record again";
    this.record.hidden = this.deep.hidden = this.interval.parentElement!.hidden = !canChange;
    this.deep.disabled = deep || !recording;
    this.interval.disabled = !recording;
    const choices = [...new Set([...INTERVALS_S, interval_s])].sort((a, b) => a - b);
    this.interval.replaceChildren(
      ...choices.map((seconds) =>
        make("option", { value: String(seconds), selected: seconds === interval_s }, `${seconds} s`)),
    );
    this.stop.disabled = this.resume.disabled = false;
    this.stop.hidden = !state.stoppable;
    this.resume.hidden = !state.resumable;
    this.say(!canChange ? state.why : deep ? "Recording deeply." : recording ? "Recording." : PAUSED);
  }

  /** The run's, as the address has it. */
  private get name(): string {
    return decodeURIComponent(this.address.replace(/^.*\/runs\//, ""));
  }

  /** Asks once the request before is answered, so that no older answer is shown after a newer one. */
  private showAnswer(ask: () => Promise<Switch>): Promise<void> {
    const turn = this.shown.then(async () => this.show(await ask()));
    this.shown = turn.catch(() => undefined);
    return turn;
  }

  private order(change: Record<string, unknown>): Promise<void> {
    return this.attempt(() => this.showAnswer(() => tellServer<Switch>(partAddress("switch"), change)));
  }

  private async confirmStop(): Promise<void> {
    const consequence = "Its processes are asked to end; what was recorded and its checkpoints stay.";
    if (await confirmInDialog(`Stop ${this.name}?`, consequence, "Stop the run")) await this.change("stop");
  }

  private async confirmResume(): Promise<void> {
    const consequence = "The same command starts again, from the last checkpoint if the script saves any.";
    if (await confirmInDialog(`Resume ${this.name}?`, consequence, "Resume the run")) await this.change("resume");
  }

  private change(what: "stop" | "resume"): Promise<void> {
    this.stop.disabled = this.resume.disabled = true;
    this.say(what === "stop" ? "Stopping: it may take up to two minutes." : "Resuming.");
    return this.attempt(async () => {
      const answer = await tellServer<{ done: string }>(partAddress(what));
      await this.showAnswer(() => askServer<Switch>(partAddress("switch")));
      this.say(answer.done);
    });
  }

  private async attempt(act: () => Promise<void>): Promise<void> {
    try {
      await act();
      this.status.classList.remove("fault");
    } catch (error) {
      this.status.classList.add("fault");
      this.stop.disabled = this.resume.disabled = false;
      this.say(sentence(error));
    }
  }

  private say(text: string): void {
    this.status.textContent = text;
  }
}
