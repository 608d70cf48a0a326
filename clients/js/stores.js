// Stores for pages. Both take a lock while they are open, so that a second tab with the same name fails with StateInUse.
import { StateInUse } from "./errors.js";
function lock(name, locks = globalThis.navigator?.locks) { // resolves to the function that gives it back; Web Locks need https or localhost
  if (!locks) return Promise.resolve(() => {});
  return new Promise((resolve, reject) => locks.request(`fedbandit ${name}`, { ifAvailable: true }, (held) => {
    if (!held) return reject(new StateInUse(`the state ${name} is in use in another tab`));
    return new Promise((release) => resolve(release));
  }).catch(reject));
}
// One key of localStorage (or of anything with getItem and setItem): small states; stored when observe returns.
export function localStore(name, storage = globalThis.localStorage) {
  let text = "", release = () => {};
  const put = (now) => { storage.setItem(name, now); text = now; };
  return {
    async load() { release = await lock(name); text = storage.getItem(name) ?? ""; return text || null; },
    save: put,
    append: (lines) => put(text + lines),
    close: () => release(),
  };
}
// A database of IndexedDB: larger states; a change is stored a moment after observe returns, see agent.saved().
export function indexedDbStore(name, factory = globalThis.indexedDB) {
  let db, release = () => {};
  const done = (request) => new Promise((resolve, reject) => { request.onsuccess = () => resolve(request.result); request.onerror = () => reject(request.error); });
  const change = (work) => new Promise((resolve, reject) => {
    const transaction = db.transaction("lines", "readwrite", { durability: "strict" });
    transaction.oncomplete = () => resolve();
    transaction.onabort = transaction.onerror = () => reject(transaction.error);
    work(transaction.objectStore("lines"));
  });
  return {
    async load() {
      release = await lock(name);
      const opening = factory.open(`fedbandit ${name}`, 1);
      opening.onupgradeneeded = () => opening.result.createObjectStore("lines", { autoIncrement: true });
      db = await done(opening);
      return (await done(db.transaction("lines").objectStore("lines").getAll())).join("") || null;
    },
    save: (text) => change((lines) => { lines.clear(); lines.add(text); }),
    append: (text) => change((lines) => { lines.add(text); }),
    close() { db?.close(); release(); },
  };
}
