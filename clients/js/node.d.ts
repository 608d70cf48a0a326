// Types of node.js.
import type { Store } from "./fedbandit.js";
/** A directory for the state of one agent and one process: stored when `observe` returns. `fsync`: every change is on the disk then, too. */
export function stateDirectory(folder: string, options?: { fsync?: boolean }): Required<Store>;
