// The folder's runs as the server lists them: its first event has all, those that follow the ones that changed.
import { showBanner } from "./banner";
import { EventStream } from "./event_stream";
import { sentence } from "./server";

export interface Run {
  name: string;
  state: string;
  began_unix_s: number | null;
  script: string;
  ranks: number;
  samples_per_s: number | null;
  data_wait_share: number | null;
  cost: string | null;
  verdict: string;
  fault: string;
}

/** All runs, or why they cannot be read at this moment. */
type All = { fault: string } | { runs: Run[]; folder: string; now_unix_s: number };

interface Changes {
  changed: Run[]; // as they are now
  gone: string[]; // names
  now_unix_s: number; // by the server's clock
}

export class ListedRuns {
  readonly byName = new Map<string, Run>();
  folder = "";
  private aheadS = 0; // the server's clock may be another one than the browser's

  /** `onReturn` is called when the stream is back after it was interrupted. */
  constructor(private readonly onChange: () => void, onReturn: () => void = () => undefined) {
    const listeners = {
      runs: (data: unknown) => this.takeAll(data as All),
      changes: (data: unknown) => this.takeChanges(data as Changes),
    };
    new EventStream("/api/events", listeners, onReturn);
  }

  /** Returns the seconds since a moment of the server's clock. */
  ageS(unix_s: number): number {
    return Math.max(Date.now() / 1000 + this.aheadS - unix_s, 0);
  }

  private takeAll(all: All): void {
    const fault = "fault" in all ? all.fault : null;
    showBanner("list", fault && `${sentence(fault)} What is shown may be old.`);
    if ("fault" in all) return;
    this.folder = all.folder;
    this.byName.clear();
    this.put(all.runs, all.now_unix_s);
  }

  private takeChanges({ changed, gone, now_unix_s }: Changes): void {
    for (const name of gone) this.byName.delete(name);
    this.put(changed, now_unix_s);
  }

  private put(runs: readonly Run[], now_unix_s: number): void {
    this.aheadS = now_unix_s - Date.now() / 1000;
    for (const run of runs) this.byName.set(run.name, run);
    this.onChange();
  }
}
