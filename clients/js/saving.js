// A stored state: a snapshot, then one line for each later change. Written in order, and at once where the store is synchronous.
import { FormatError, UnsupportedFormat } from "./errors.js";
const MOST_LINES = 4096; // between two snapshots; also no more characters than two snapshots have
export class Saver {
  #store; #snapshot; #fail; #busy = null; #lines = []; #whole = false; #due = false; #error = null; #left = 0; #room = 0; // lines and characters until the next snapshot
  #closed = false;
  constructor(store, snapshot, fail) { this.#store = store; this.#snapshot = snapshot; this.#fail = fail; } // snapshot() gives the text of the state, fail(error) is told of failures
  line(record) { // a change; stores without `append` get the whole state
    if (!this.#store) return;
    if (this.#store.append) this.#lines.push(`${JSON.stringify(record)}\n`); else this.#whole = true;
    this.#due = true;
    this.#write();
  }
  save() { // the whole state, in place of everything before
    if (!this.#store) return;
    this.#whole = this.#due = true;
    this.#write();
  }
  #write() {
    while (this.#due && !this.#busy && !this.#closed) {
      const lines = this.#lines.splice(0), text = lines.join(""), isWhole = this.#whole || this.#error || lines.length > this.#left || text.length > this.#room;
      this.#due = this.#whole = false;
      try {
        const pending = isWhole ? this.#replace() : this.#store.append(text);
        if (!isWhole) { this.#left -= lines.length; this.#room -= text.length; }
        if (typeof pending?.then === "function") this.#busy = this.#wait(pending); else this.#error = null;
      } catch (error) { this.#failed(error); }
    }
  }
  #replace(text = `${this.#snapshot()}\n`) {
    [this.#left, this.#room] = [MOST_LINES, Math.max(2 * text.length, 65_536)];
    return this.#store.save(text);
  }
  async #wait(pending) {
    try { await pending; this.#error = null; } catch (error) { this.#failed(error); } finally { this.#busy = null; }
    this.#write();
  }
  #failed(error) { this.#error = error; this.#fail(error); } // the next write is a snapshot
  async stored() { // resolves when everything so far is stored; after a failure it tries again
    if (this.#error || !this.#room) this.save();
    while (this.#busy) await this.#busy;
    if (this.#error) throw this.#error;
  }
  async close() {
    try { await this.stored(); } catch { /* told already */ } finally { this.#closed = true; await this.#store?.close?.(); }
  }
}
// The snapshot of a stored text, and the changes after it. The last line is without its end where a process was killed while writing it.
export function readState(text) {
  const [first, ...lines] = text.split("\n");
  try { return { snapshot: JSON.parse(first), changes: lines.slice(0, -1).map((line) => JSON.parse(line)) }; }
  catch (error) { throw new FormatError(`the stored state cannot be read: ${error.message}`); }
}
export function requireFormat({ format }) { if (format !== 1) throw new UnsupportedFormat("not an agent's state, or of another version"); }
