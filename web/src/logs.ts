// The logs of a run's processes: one at a time, its last lines or those with a text that is searched.
import { make } from "./elements";
import { bytesText, numberText } from "./number_text";
import { askServer, partAddress, sentence } from "./server";

interface LogFile {
  name: string;
  size: number;
}

interface LogLines {
  lines: string[];
  matches: number;
  size: number; // of the file, in bytes
  searched: number; // of it, at its end
}

const LINES = 200;
const TYPING_MS = 250;

/** Returns a line with what was searched for marked in it. */
function marked(line: string, query: string): (Node | string)[] {
  if (!query) return [line];
  const parts: (Node | string)[] = [];
  const [hay, needle] = [line.toLowerCase(), query.toLowerCase()];
  let from = 0;
  // Lower case may change a text's length, and with it all places.
  for (let at = hay.length === line.length ? hay.indexOf(needle) : -1; at >= 0; at = hay.indexOf(needle, from)) {
    parts.push(line.slice(from, at), make("mark", {}, line.slice(at, at + query.length)));
    from = at + query.length;
  }
  return [...parts, line.slice(from)];
}

function matchesText({ lines, matches, size, searched }: LogLines): string {
  const count = `${numberText(matches)} ${matches === 1 ? "line matches" : "lines match"}`;
  const where = searched < size ? ` in the last ${bytesText(searched)} of ${bytesText(size)}` : "";
  const cut = lines.length < matches ? `; the last ${numberText(lines.length)} are shown` : "";
  return `${count}${where}${cut}.`;
}

function linesText({ lines, matches, size, searched }: LogLines): string {
  if (lines.length === 0) return "The log is empty.";
  return searched < size || lines.length < matches ? `The last ${numberText(lines.length)} lines.` : "All lines.";
}

export class Logs {
  private readonly file = make("select", { ariaLabel: "Log" });
  private readonly query = make("input", { type: "search", placeholder: "Search", ariaLabel: "Search in the log" });
  private readonly status = make("span", { className: "small", role: "status" });
  private readonly output = make("pre", { className: "log", tabIndex: 0, ariaLabel: "Lines of the log" });
  private request: AbortController | null = null;
  private typing = 0;
  private isChosen = false; // by the reader; else the newest attempt's first log is shown

  constructor(place: HTMLElement) {
    place.replaceChildren(make("div", { className: "buttons" }, this.file, this.query, this.status), this.output);
    this.file.addEventListener("change", () => {
      this.isChosen = true;
      void this.load();
    });
    this.query.addEventListener("input", () => {
      clearTimeout(this.typing);
      this.typing = window.setTimeout(() => void this.load(), TYPING_MS);
    });
    this.refresh();
  }

  /** Reads the list of logs and the lines shown again. */
  refresh(): void {
    // Lines that move while someone reads or copies them would be in the way.
    const selection = getSelection();
    if (selection && !selection.isCollapsed && selection.containsNode(this.output, true)) return;
    void this.loadFiles();
  }

  private async loadFiles(): Promise<void> {
    try {
      const { files } = await askServer<{ files: LogFile[] }>(partAddress("logs"));
      const chosen = this.isChosen ? this.file.value : files[0]?.name;
      this.file.replaceChildren(
        ...files.map(({ name, size }) =>
          make("option", { value: name, selected: name === chosen }, `${name} (${bytesText(size)})`)),
      );
      this.file.disabled = this.query.disabled = files.length === 0;
      if (files.length) await this.load();
      else this.show("", "No process of this run has written a log yet.");
    } catch (error) {
      this.status.textContent = sentence(error); // the lines stay
    }
  }

  private async load(): Promise<void> {
    this.request?.abort();
    const request = (this.request = new AbortController());
    const query = this.query.value;
    const options = { lines: String(LINES), ...(query && { query }) };
    try {
      const address = partAddress(`logs/${encodeURIComponent(this.file.value)}`, options);
      const answer = await askServer<LogLines>(address, { signal: request.signal });
      if (!request.signal.aborted) this.showLines(answer, query);
    } catch (error) {
      if (!request.signal.aborted) this.status.textContent = sentence(error);
    }
  }

  private showLines(answer: LogLines, query: string): void {
    const { lines } = answer;
    const what = query ? matchesText(answer) : linesText(answer);
    const content = document.createDocumentFragment();
    for (const line of lines) content.append(...marked(line, query), "\n");
    this.show(content, what);
  }

  /** Shows lines; a reader who is at the end stays there. */
  private show(lines: Node | string, status: string): void {
    const { scrollTop, scrollHeight, clientHeight } = this.output;
    const atEnd = scrollTop + clientHeight >= scrollHeight - 8;
    this.output.replaceChildren(lines);
    if (atEnd) this.output.scrollTop = this.output.scrollHeight;
    this.status.textContent = status;
  }
}
