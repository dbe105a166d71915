// The stream of a server's events, with a banner for as long as it is interrupted.
import { showBanner } from "./banner";
import { parse, sentence, whyRefused } from "./server";

const SUBJECT = "connection";
const RETRY_MS = 3000;
const SILENT_MS = 30_000; // the server sends an event every ten seconds at least
const STOPPED = "the server does not answer; it may have been stopped";
const OFFLINE = "this computer is offline";

type Listener = (data: unknown) => void;

export class EventStream {
  private source: EventSource | null = null;
  private isClosed = false;
  private wasInterrupted = false;
  private retry = 0; // the timer of the next try
  private silence = 0; // the timer after which a stream without events counts as lost

  /**
   * `onReturn` is called when the stream is back after it was interrupted: events were missed. `onLoss` is called when
   * it is interrupted. The listener of `gone`, if there is one, also hears of an address that is not there any more,
   * that of `alive` of a server that has nothing new to tell.
   */
  constructor(
    private readonly address: string,
    private readonly listeners: Record<string, Listener>,
    private readonly onReturn: () => void,
    private readonly onLoss: () => void = () => undefined,
  ) {
    this.open();
    addEventListener("offline", () => {
      this.interrupt(OFFLINE);
      this.open(); // a server of this computer answers all the same
    });
    addEventListener("online", () => this.open());
    // A page that the browser keeps for its back button must not hold a connection, of which there are few.
    addEventListener("pagehide", () => this.pause());
    document.addEventListener("visibilitychange", () => {
      if (document.hidden) this.pause();
      else if (!this.source || this.source.readyState === EventSource.CLOSED) {
        this.wasInterrupted = true;
        this.open();
      }
    });
    addEventListener("pageshow", (event) => {
      if (!event.persisted) return;
      this.wasInterrupted = true;
      this.open();
    });
  }

  /** Ends the stream for good: nothing will come any more. */
  close(): void {
    this.isClosed = true;
    this.pause();
    clearTimeout(this.retry);
    showBanner(SUBJECT, null);
  }

  private pause(): void {
    this.source?.close();
    clearTimeout(this.silence);
  }

  /** Counts a stream as lost that is silent for long: a connection may end without a word. */
  private hear(): void {
    clearTimeout(this.silence);
    this.silence = window.setTimeout(() => {
      this.interrupt("nothing was heard of the server for half a minute");
      this.open();
    }, SILENT_MS);
  }

  private open(): void {
    if (this.isClosed) return;
    this.pause();
    clearTimeout(this.retry);
    if (document.hidden) return; // it may have been opened in the background: `visibilitychange` opens the stream
    this.hear();
    const source = (this.source = new EventSource(this.address));
    source.addEventListener("open", () => {
      showBanner(SUBJECT, null);
      if (this.wasInterrupted) this.onReturn();
      this.wasInterrupted = false;
    });
    source.addEventListener("error", () => {
      this.interrupt(navigator.onLine ? STOPPED : OFFLINE);
      // After some errors, such as an answer with status 500, a browser does not try again by itself.
      if (source.readyState !== EventSource.CLOSED) return;
      this.retry = window.setTimeout(() => this.open(), RETRY_MS);
      void this.askWhy();
    });
    source.addEventListener("alive", () => {
      this.hear();
      this.listeners.alive?.(null);
    });
    for (const [name, listener] of Object.entries(this.listeners)) {
      if (name === "alive") continue;
      source.addEventListener(name, (event) => {
        this.hear();
        const data = parse((event as MessageEvent<string>).data);
        if (data !== null) listener(data);
      });
    }
  }

  /** Shows what the server says where it refuses the stream, as after it was started anew. */
  private async askWhy(): Promise<void> {
    const request = new AbortController();
    try {
      const answer = await fetch(this.address, { signal: request.signal });
      const why = answer.ok ? "" : whyRefused(answer.status, await answer.text());
      if (answer.status === 404 && this.listeners.gone) this.listeners.gone({ error: why });
      else if (!answer.ok) this.refuse(why);
      request.abort();
    } catch {
      // It does not answer, which is shown already.
    }
  }

  private interrupt(why: string): void {
    this.say(`Not connected: ${why}. What is shown may be old. Trying again.`);
  }

  /** Says what the server answered; it is asked again, though another try alone may not help. */
  private refuse(why: string): void {
    this.say(`Not connected. ${sentence(why)} What is shown may be old.`);
  }

  private say(text: string): void {
    if (this.isClosed) return;
    this.wasInterrupted = true;
    this.onLoss();
    showBanner(SUBJECT, text);
  }
}
