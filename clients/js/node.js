// A state directory for Node; the package exports this module as fedbandit/node.
import { closeSync, fsyncSync, linkSync, mkdirSync, openSync, readFileSync, renameSync, unlinkSync, writeFileSync, writeSync } from "node:fs";
import { join } from "node:path";
import { StateInUse } from "./errors.js";
const missing = (error) => { if (error.code === "ENOENT") return null; throw error; };
const read = (file) => { try { return readFileSync(file, "utf8"); } catch (error) { return missing(error); } };
function writeAll(fd, text) { for (let bytes = Buffer.from(text), at = 0; at < bytes.length;) at += writeSync(fd, bytes, at); }
function syncFolder(folder) { const fd = openSync(folder, "r"); try { fsyncSync(fd); } finally { closeSync(fd); } }
// Stored when observe returns: it survives the end of the process. `fsync` also brings every line to the disk; snapshots, and so uploads, always are.
export function stateDirectory(folder, { fsync = false } = {}) {
  const file = join(folder, "agent.jsonl");
  let fd = null, release = () => {};
  const shut = () => { if (fd !== null) closeSync(fd); fd = null; };
  return {
    load() {
      mkdirSync(folder, { recursive: true, mode: 0o700 });
      release = lock(join(folder, "lock"));
      return read(file);
    },
    save(text) {
      const draft = openSync(`${file}.new`, "w", 0o600);
      try { writeAll(draft, text); fsyncSync(draft); renameSync(`${file}.new`, file); } catch (error) { closeSync(draft); throw error; }
      shut();
      fd = draft; // lines go to the end of the new file
      syncFolder(folder);
    },
    append(text) { writeAll(fd, text); if (fsync) fsyncSync(fd); },
    close() { shut(); release(); },
  };
}
// A process by its id and, where the system tells it, its start: ids are used again, in containers after every restart.
function startOf(pid) {
  try { process.kill(pid, 0); } catch (error) { if (error.code !== "EPERM") return null; }
  try { return readFileSync(`/proc/${pid}/stat`, "utf8").replace(/^.*\) /s, "").split(" ")[19]; } catch { return "unknown"; }
}
const held = new Set(); // by this process
function lock(file) {
  const mine = `${process.pid} ${startOf(process.pid)}`, draft = `${file}.${process.pid}`;
  for (;;) {
    const found = read(file), [pid, start] = (found ?? "").split(" ");
    if (found !== null && (found === mine ? held.has(file) : startOf(Number(pid)) === start)) throw new StateInUse(`the state directory of ${file} is in use by process ${pid}`);
    if (found !== null) setAside(file, `${draft}.old`, found);
    writeFileSync(draft, mine);
    try { linkSync(draft, file); held.add(file); return () => { if (held.delete(file) && read(file) === mine) unlinkSync(file); }; }
    catch (error) { if (error.code !== "EEXIST") throw error; } finally { unlinkSync(draft); } // another process was first
  }
}
function setAside(file, aside, dead) { // the lock of a process that ended; one that another process took meanwhile is put back
  try { renameSync(file, aside); } catch (error) { missing(error); return; }
  if (read(aside) !== dead) try { linkSync(aside, file); } catch { /* taken again */ }
  unlinkSync(aside);
}
