"use strict";
// store has what the page knows of runs: the list of runs, and the columns of numbers that charts have asked for. It
// gets documents from the server or, in a saved page, from the element "frozen", and it follows runs: an event names
// the runs that changed, and of these only the list and the new steps are fetched. A server that others can reach wants
// its token with each request.
const store = (() => {
  const points = 800; // of a curve; longer runs come in buckets of steps with mean, least and greatest value
  const tailSteps = 4000; // so many new steps at most are added to a curve; beyond that it is fetched again
  const againMs = 10000; // between fetches of a whole curve to which no tail can be added
  const mostNames = 100; // of columns in a request
  const tokenKey = "millrace-token";

  const frozen = readFrozen();
  const listeners = new Map(); // from an event's name to functions
  const overview = new Map(); // from a run to its columns of all steps, by name
  const detail = new Map(); // the same for the steps that are zoomed to, where the overview has buckets
  const waiting = new Map(); // from "run overview|detail" to the columns to ask for
  let runs = [];
  let facts = { version: "", message: null };
  let zoom = null; // {from, to}
  let connection = frozen ? "saved" : "connecting";
  let requests = 0; // made so far
  let token = keep("sessionStorage", tokenKey) ?? "";

  function readFrozen() {
    const text = document.getElementById("frozen")?.textContent.trim();
    return text ? JSON.parse(text) : null;
  }

  function on(event, listener) {
    listeners.set(event, [...(listeners.get(event) ?? []), listener]);
  }

  function emit(event, value) {
    for (const listener of listeners.get(event) ?? []) {
      listener(value);
    }
  }

  // keep reads a text in a storage, writes it, or removes it with null. A browser may refuse storages.
  function keep(storage, key, text) {
    try {
      if (text === undefined) {
        return window[storage].getItem(key);
      }
      if (text === null) {
        window[storage].removeItem(key);
      } else {
        window[storage].setItem(key, text);
      }
    } catch {
      // the choice then lasts as long as the page
    }
    return text ?? null;
  }

  // setToken keeps the token in this tab of the browser; "" forgets it. A text that no header can have is none.
  function setToken(text) {
    token = /^[\x21-\x7e]{1,256}$/.test(text) ? text : "";
    keep("sessionStorage", tokenKey, token || null);
    wake();
  }

  const headers = () => (token ? { "X-Millrace-Token": token } : {});

  // get returns a document. Its error is one line for people. A saved page has documents by their paths without queries.
  async function get(path) {
    if (frozen) {
      const doc = frozen[path] ?? frozen[path.split("?")[0]];
      if (doc === undefined) {
        throw new Error("this saved page does not have it: look at the run with millrace serve");
      }
      return doc;
    }
    requests++;
    return decode(await fetch(path, { cache: "no-store", headers: headers() }));
  }

  async function decode(answer) {
    if (answer.status === 204) {
      return {};
    }
    let doc = {};
    try {
      doc = await answer.json();
    } catch {
      throw new Error(`the server answered ${answer.status} without a document`);
    }
    if (!answer.ok) {
      if (answer.status === 401 && token) {
        setToken(""); // it is a wrong one
      }
      throw new Error(dom.clean(doc.error ?? `the server answered ${answer.status}`, 500));
    }
    return doc;
  }

  // post asks for a change; the answer has no document.
  const post = async (path) => decode(await fetch(path, { method: "POST", headers: headers() }));

  const run = (id) => runs.find((r) => r.id === id);

  // nameOf is a run's name without the folders that the names of all runs begin with.
  function nameOf(r) {
    const own = r.name.split("/");
    const all = runs.map((other) => other.name.split("/"));
    let same = 0;
    while (same < own.length - 1 && all.every((name) => name.length > same + 1 && name[same] === own[same])) {
      same++;
    }
    return own.slice(same).join("/") || r.name;
  }
  const urlOf = (id) => `api/runs/${encodeURIComponent(id)}`;

  // --- the list of runs ---

  let isRefreshing = false;
  let isStale = false;

  // refresh fetches the list, and the new steps of what has changed. Calls during a refresh are made up for by one.
  async function refresh() {
    if (isRefreshing) {
      isStale = true;
      return;
    }
    isRefreshing = true;
    try {
      do {
        isStale = false;
        const before = new Map(runs.map((r) => [r.id, r.revision]));
        const doc = await get("api/runs");
        facts = { version: doc.version, message: doc.message };
        runs = doc.runs ?? [];
        forget(new Set(runs.map((r) => r.id)));
        emit("runs", runs);
        const changed = runs.filter((r) => before.has(r.id) && before.get(r.id) !== r.revision);
        await Promise.all(changed.map(follow));
        if (changed.length) {
          emit("changed", new Set(changed.map((r) => r.id)));
        }
      } while (isStale);
    } catch (error) {
      console.info("millrace: the list of runs did not arrive:", error.message);
    } finally {
      isRefreshing = false;
    }
  }

  // forget drops the columns of runs that are gone.
  function forget(known) {
    for (const cache of [overview, detail]) {
      for (const id of cache.keys()) {
        if (!known.has(id)) {
          cache.delete(id);
        }
      }
    }
  }

  // --- columns ---

  // column returns a column of a run, or undefined, and then asks for it. Its values are of the steps that are zoomed
  // to where the overview is coarser than the screen. {steps, mean, min, max, bucket} is of numbers of each step,
  // {at, values} of those that only some steps have.
  function column(id, name) {
    const whole = overview.get(id)?.get(name);
    if (whole === undefined) {
      want(id, name, "overview");
      return undefined;
    }
    if (zoom && whole && whole.bucket > 1) {
      const close = detail.get(id)?.get(name);
      if (close) {
        return close;
      }
      want(id, name, "detail");
    }
    return whole ?? undefined;
  }

  function want(id, name, kind) {
    const key = id + " " + kind;
    if (!waiting.size) {
      setTimeout(ask); // after all charts of this turn have said what they want
    }
    if (!waiting.has(key)) {
      waiting.set(key, { id, kind, names: new Set() });
    }
    waiting.get(key).names.add(name);
  }

  const inFlight = new Set(); // "run kind name"

  // pieces cuts a list of names, so that an address does not grow too long.
  function pieces(names) {
    const all = [];
    for (let i = 0; i < names.length; i += mostNames) {
      all.push(names.slice(i, i + mostNames));
    }
    return all;
  }

  // ask fetches what charts wanted since the last turn, in one request for each run and each hundred columns.
  function ask() {
    const all = [...waiting.values()];
    waiting.clear();
    for (const { id, kind, names } of all) {
      pieces([...names].filter((name) => !inFlight.has(`${id} ${kind} ${name}`))).forEach((some) => fetchColumns(id, kind, some));
    }
  }

  async function fetchColumns(id, kind, names) {
    const r = run(id);
    if (!r) {
      return;
    }
    const keys = names.map((name) => `${id} ${kind} ${name}`);
    keys.forEach((k) => inFlight.add(k));
    const range = kind === "detail" ? zoom : { from: 0, to: r.last_step };
    const cache = kind === "detail" ? detail : overview;
    try {
      const doc = await get(columnsUrl(id, names, range, points));
      if (kind === "detail" && range !== zoom) {
        return; // the view has moved meanwhile, and what it needs now is asked for by its own charts
      }
      if (!cache.has(id)) {
        cache.set(id, new Map());
      }
      for (const name of names) {
        cache.get(id).set(name, columnOf(doc, name));
      }
    } catch (error) {
      console.info(`millrace: columns of ${id} did not arrive:`, error.message);
      return;
    } finally {
      keys.forEach((k) => inFlight.delete(k));
    }
    emit("columns", id);
  }

  function columnsUrl(id, names, { from, to }, most) {
    const list = names.map(encodeURIComponent).join(",");
    return `${urlOf(id)}/columns?names=${list}&from=${Math.floor(from)}&to=${Math.ceil(to)}&points=${most}`;
  }

  // own is a value that an object has by itself: names of columns are what a program's objective calls them.
  const own = (o, name) => (o && Object.hasOwn(o, name) ? o[name] : undefined);

  // columnOf takes a column out of a document; null: the run has no such numbers.
  function columnOf(doc, name) {
    const c = own(doc.columns, name);
    if (!c) {
      return null;
    }
    if (c.at) {
      return { isSparse: true, isSample: doc.complete === false, at: c.at.slice(), values: c.values.slice(), bucket: 1, last: c.at.at(-1) ?? 0 };
    }
    const mean = c.mean.slice();
    const steps = doc.steps.slice();
    return {
      isSparse: false,
      isSample: doc.complete === false, // the server has not read the whole file yet
      steps,
      mean,
      min: c.min ? c.min.slice() : mean,
      max: c.max ? c.max.slice() : mean,
      bucket: doc.bucket || 1,
      fill: steps.length > 1 ? steps.at(-1) - steps.at(-2) : doc.bucket || 1, // steps in the last bucket
      last: steps.at(-1) ?? 0,
    };
  }

  const fetched = new Map(); // from a run to when its whole curves were fetched last

  // follow adds the new steps of a run to its columns. Where that cannot be done it drops them, and charts keep what
  // they show until the new ones are there.
  async function follow(r) {
    const columns = overview.get(r.id);
    if (!columns || frozen) {
      return;
    }
    for (const [name, c] of columns) {
      if (c === null && r.columns.includes(name)) {
        columns.delete(name); // the run has its first such number now
      }
    }
    const names = [...columns].filter(([, c]) => c !== null).map(([name]) => name);
    await Promise.all(pieces(names).map((some) => followSome(r, columns, some)));
  }

  async function followSome(r, columns, names) {
    const dense = names.map((name) => columns.get(name)).filter((c) => !c.isSparse);
    const last = Math.min(...dense.map((c) => c.last), r.last_step);
    const isRewound = dense.some((c) => c.last > r.last_step);
    const isSample = names.some((name) => columns.get(name).isSample);
    if (isRewound || isSample || r.last_step - last > tailSteps || !dense.length) {
      return fetchColumns(r.id, "overview", names);
    }
    let doc;
    try {
      doc = await get(columnsUrl(r.id, names, { from: last, to: r.last_step }, tailSteps + 1));
    } catch {
      return; // the next event asks again
    }
    if (doc.bucket > 1) { // the run has so many steps that the server has none of its own for each
      if (Date.now() - (fetched.get(r.id) ?? 0) > againMs) {
        fetched.set(r.id, Date.now());
        return fetchColumns(r.id, "overview", names);
      }
      return;
    }
    if (!names.every((name) => append(columns.get(name), doc, name))) {
      return fetchColumns(r.id, "overview", names);
    }
    emit("columns", r.id);
  }

  // append adds the steps of a tail to a column, into its buckets. It returns false where the column has to be fetched
  // again: the run has steps of before again, or the curve has twice the points that it needs.
  function append(c, doc, name) {
    const tail = own(doc.columns, name);
    if (!tail) {
      return true;
    }
    if (c.isSparse) {
      return Boolean(tail.at) && appendSparse(c, tail);
    }
    if (tail.at || c.steps.length > 2 * points) {
      return false;
    }
    for (let i = 0; i < doc.steps.length; i++) {
      const step = doc.steps[i];
      const y = tail.mean[i];
      if (step < c.last) {
        continue;
      }
      if (step === c.last) {
        if (c.bucket === 1 && c.mean.at(-1) !== y) {
          return false;
        }
        continue;
      }
      add(c, step, y);
    }
    return true;
  }

  function add(c, step, y) {
    const end = c.steps.length - 1;
    c.last = step;
    if (end < 0 || c.fill >= c.bucket) {
      c.steps.push(step);
      c.mean.push(y);
      if (c.min !== c.mean) {
        c.min.push(y);
        c.max.push(y);
      }
      c.fill = 1;
      return;
    }
    c.steps[end] = step;
    const had = c.mean[end];
    if (y !== null) {
      c.mean[end] = had === null ? y : (had * c.fill + y) / (c.fill + 1);
      c.min[end] = had === null ? y : Math.min(c.min[end], y);
      c.max[end] = had === null ? y : Math.max(c.max[end], y);
    }
    c.fill++;
  }

  function appendSparse(c, { at, values }) {
    for (let i = 0; i < at.length; i++) {
      if (at[i] > c.last) {
        c.at.push(at[i]);
        c.values.push(values[i]);
        c.last = at[i];
      }
    }
    return true;
  }

  // setZoom says which steps charts show: {from, to}, or null for all.
  function setZoom(range) {
    zoom = range;
    detail.clear();
  }

  // --- other documents of a run ---

  const documents = new Map(); // from a path to {doc, revision, at}; doc is null where there is no such document
  const documentMs = 60000; // after which a document of a run that has changed is fetched again

  // documentOf returns a document of a run that seldom changes, such as "plan" or "settings"; undefined while its first
  // fetch is on its way.
  function documentOf(id, name) {
    const path = `${urlOf(id)}/${name}`;
    const had = documents.get(path);
    const revision = run(id)?.revision;
    if (!had || (had.revision !== revision && had.doc !== undefined && Date.now() - had.at > documentMs)) {
      documents.set(path, { doc: had?.doc, revision, at: Date.now() });
      get(path).catch(() => null).then((doc) => {
        documents.get(path).doc = doc;
        emit("documents", id);
      });
    }
    return documents.get(path).doc;
  }

  // --- the connection ---

  const silenceMs = 40000; // the server says something each 15 s
  let wake = () => {};

  function connect(state) {
    if (connection !== state) {
      connection = state;
      emit("connection", state);
    }
  }

  // pause ends after a while, or when something says that it is worth another try.
  function pause(ms) {
    return new Promise((done) => {
      wake = done;
      setTimeout(done, ms);
    });
  }

  // listen reads the server's events, and opens the stream again whenever it ends. It is a fetch and no EventSource, since
  // that cannot send a token.
  async function listen() {
    if (frozen) {
      emit("connection", connection);
      return;
    }
    for (let wait = 1000; ; wait = Math.min(15000, 2 * wait)) {
      const stop = new AbortController();
      try {
        requests++;
        const answer = await fetch("api/events", { cache: "no-store", headers: headers(), signal: stop.signal });
        if (answer.status === 401) {
          setToken("");
          connect("locked");
          await pause(1 << 30);
          continue;
        }
        if (answer.ok && answer.body) {
          wait = 500;
          connect("live");
          refresh();
          await readEvents(answer.body.getReader(), stop);
        }
      } catch {
        // it ended, and is opened again
      }
      connect("lost");
      await pause(wait);
    }
  }

  // readEvents reads a stream of events to its end, which comes too when the server is silent for too long.
  async function readEvents(reader, stop) {
    const decoder = new TextDecoder();
    let text = "";
    for (;;) {
      const late = setTimeout(() => stop.abort(), silenceMs);
      const { value, done } = await reader.read().finally(() => clearTimeout(late));
      if (done) {
        return;
      }
      text += decoder.decode(value, { stream: true });
      const parts = text.split("\n\n");
      text = parts.pop();
      parts.forEach(hear);
    }
  }

  // hear takes an event: the revisions of all runs.
  function hear(part) {
    const data = part.split("\n").find((line) => line.startsWith("data: "));
    if (!data) {
      return;
    }
    const revisions = JSON.parse(data.slice(6));
    const ids = Object.keys(revisions);
    if (ids.length !== runs.length || ids.some((id) => run(id)?.revision !== revisions[id])) {
      refresh();
    }
  }

  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && !frozen) {
      wake();
      refresh();
    }
  });
  window.addEventListener("online", () => wake());

  return {
    on, get, post, keep, setToken, refresh, listen, column, documentOf, setZoom, run, nameOf, urlOf,
    runs: () => runs,
    facts: () => facts,
    connection: () => connection,
    isSaved: frozen !== null,
    requests: () => requests,
    hasToken: () => token !== "",
  };
})();
