"use strict";
// Keeps a page that is served by `mcp-rl watch` up to date, without taking the reader from their place.
(() => {
  const box = document.getElementById("live");
  const episodes = globalThis.mcpRlEpisodes;
  const PERIOD = 1000; // milliseconds
  const SLOW = 5000; // once the run has ended, or nobody answers
  let version = document.body.dataset.version;
  let since = 0;

  const element = (tag, properties, ...children) => {
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (value !== undefined && value !== null) made.setAttribute(name, value);
    }
    made.append(...children.filter((child) => child !== null));
    return made;
  };
  const clock = (seconds) => {
    const whole = Math.floor(seconds);
    const two = (value) => String(value).padStart(2, "0");
    return `${Math.floor(whole / 3600)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`;
  };
  const bar = ({ title, seconds, done, total, left, parts }) => element("li", {},
    element("span", { class: "title" }, title),
    total === null ? null : element("progress", { max: Math.max(1, total), value: done, "aria-label": title }),
    element("span", { class: "count" }, total === null ? `${clock(seconds)} so far` : `${done} of ${total}`),
    total === null || left === null || done >= total ? null : element("span", { class: "note" }, `${clock(left)} left`),
    parts.length ? element("span", { class: "note" }, parts.join(", ")) : null);
  const run = ({ name, href, state, sentence, waiting, newest, doing }) => element("div", { class: "run" },
    element("p", { class: "head" },
      href ? element("a", { href }, name) : element("b", {}, name),
      element("span", { class: `badge ${state}` }, state), element("span", {}, sentence)),
    doing.length ? element("ul", {}, ...doing.map(bar)) : null,
    waiting ? element("p", { class: "note waiting" }, waiting) : null,
    newest ? element("p", { class: "note" }, newest) : null);

  // -- make an element like another one, keeping every node that is the same

  const KEPT = new Set(["filters", "browser"]); // they have their own script
  const morph = (old, fresh) => {
    if (KEPT.has(old.id) || old.isEqualNode(fresh)) return;
    if (old.nodeName !== fresh.nodeName || old.id !== fresh.id || old.nodeName === "svg") {
      old.replaceWith(document.importNode(fresh, true));
      return;
    }
    if (old.nodeType !== Node.ELEMENT_NODE) {
      old.data = fresh.data;
      return;
    }
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    for (const { name } of [...old.attributes]) if (name !== "open" && !fresh.hasAttribute(name)) old.removeAttribute(name);
    let next = old.firstChild;
    for (const child of [...fresh.childNodes]) {
      const same = child.id ? [...old.children].find((each) => each.id === child.id) : next?.id ? null : next;
      if (!same) old.insertBefore(document.importNode(child, true), next);
      else {
        if (same === next) next = next.nextSibling;
        else old.insertBefore(same, next);
        morph(same, child);
      }
    }
    while (next) {
      const gone = next;
      next = next.nextSibling;
      gone.remove();
    }
  };

  // The section at the top of the window stays where it is, whatever changes above it.
  const keepingPlace = (change) => {
    const sections = () => [...document.querySelectorAll("header, main > section")];
    const reading = scrollY > 0 ? sections().find((each) => each.getBoundingClientRect().bottom > 0) : undefined;
    const top = reading?.getBoundingClientRect().top;
    change();
    const now = reading && (reading.isConnected ? reading : reading.id && document.getElementById(reading.id));
    const moved = now ? now.getBoundingClientRect().top - top : 0;
    if (Math.abs(moved) > 0.5) scrollTo({ top: scrollY + moved, behavior: "instant" });
  };

  const sheet = new CSSStyleSheet();
  const renew = (fresh, playing) => {
    sheet.replaceSync(fresh.querySelector("style").textContent);
    document.adoptedStyleSheets = [sheet];
    document.querySelector("style").sheet.disabled = true;
    for (const part of ["header", "main"]) morph(document.querySelector(part), fresh.querySelector(part));
    const data = fresh.getElementById("data");
    if (data && episodes) episodes.replace(JSON.parse(data.textContent), playing);
    version = fresh.body.dataset.version;
  };
  // XMLHttpRequest parses a page without running anything in it.
  const fetchPage = () => new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("GET", "new");
    request.responseType = "document";
    request.onload = () => (request.status === 200 && request.response ? resolve(request.response) : reject(new Error()));
    request.onerror = reject;
    request.send();
  });
  const json = async (address) => {
    const reply = await fetch(address, { cache: "no-store" });
    if (!reply.ok) throw new Error();
    return reply.json();
  };

  const show = (status) => keepingPlace(() => {
    document.title = status.title;
    const fresh = element("aside", { id: "live", "aria-label": box.getAttribute("aria-label") },
      ...status.runs.map(run), status.problem ? element("p", { class: "unfinished" }, status.problem) : null);
    morph(box, fresh);
  });

  const look = async () => {
    const status = await json("status");
    show(status);
    if (episodes && status.episodes !== since) {
      const found = await json(`episodes?since=${since}`);
      since = found.at;
      keepingPlace(() => episodes.add(found.groups));
    }
    if (status.page !== version && version === "0") location.reload(); // nothing was shown yet
    else if (status.page !== version) {
      const fresh = await fetchPage();
      keepingPlace(() => renew(fresh, status.playing));
    }
    return status.runs.some((each) => !each.ended);
  };

  let waiting;
  const poll = async () => {
    clearTimeout(waiting);
    let going = false;
    try {
      going = await look();
    } catch {
      const lost = "No answer from mcp-rl watch: it was stopped. The page shows what it showed last.";
      if (!box.querySelector(".lost")) box.prepend(element("p", { class: "unfinished lost" }, lost));
    }
    if (!document.hidden) waiting = setTimeout(poll, going ? PERIOD : SLOW);
  };
  document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
  poll();
})();
