"use strict";
// Everything that a server or a model wrote is set as text, never as markup.
(() => {
  const form = document.getElementById("filters");
  const list = document.getElementById("list");
  const detail = document.getElementById("episode");
  const FIELDS = ["source", "tool", "steps", "outcome", "stop", "text"];
  const PAGE = 100; // rows that are added to the list at a time
  const COLOURS = { off: "messages", logprob: "tokens by logprob", advantage: "tokens by advantage" };

  // Characters that are invisible or reorder text are shown by name; newlines and tabs stay.
  const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;
  const visible = (text) => String(text ?? "").replace(HIDDEN,
    (character) => `⟨U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`);

  const there = (children) => children.filter((child) => child !== null && child !== undefined)
    .map((child) => (typeof child === "string" ? visible(child) : child));
  const make = (tag, properties = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(properties)) {
      if (name === "class") element.className = value;
      else if (name === "textContent" || name === "title") element[name] = visible(value);
      else if (name.includes("-")) element.setAttribute(name, visible(value));
      else element[name] = value;
    }
    element.append(...there(children));
    return element;
  };
  const words = (text) => String(text).replaceAll("_", " ");
  const number = (value, digits = 3) => (value === null || value === undefined ? "–" : value.toFixed(digits));
  const signed = (value) => (value > 0 ? "+" : "") + value.toFixed(3);
  const outcome = (episode) =>
    episode.fault ? "fault" : episode.success === null ? "not judged" : episode.success ? "success" : "failure";
  const MARKS = { success: ["good", "✓"], failure: ["bad", "✗"], fault: ["", "!"], "not judged": ["", "·"] };

  let data;
  let episodes = []; // by number
  let byKey = new Map();
  const unique = (key, taken) => (taken(key) ? unique(`${key}'`, taken) : key);
  const enter = (group) => {
    const scenario = data.scenarios[group.scenario];
    const source = data.sources[group.source];
    const keys = new Set();
    group.key ??= `${source.label}|${group.scenario}`;
    group.members = group.episodes.map((packed, member) => {
      const episode = { messages: [], calls: [], tokens: [], metrics: {}, final_state: [], ...packed };
      const called = episode.calls.map((call) => call.name);
      const key = unique(`${group.key}|${episode.seed}`, (each) => keys.has(each));
      keys.add(key);
      const entry = { key, episode, group, scenario, source, member, tools: new Set([...scenario.tools, ...called]) };
      entry.number = byKey.get(key)?.number ?? episodes.length;
      episodes[entry.number] = entry;
      byKey.set(key, entry);
      return entry;
    });
  };
  const take = (taken) => {
    [data, episodes, byKey] = [taken, [], new Map()];
    const keys = new Set();
    for (const group of data.groups) {
      group.key = unique(`${data.sources[group.source].label}|${group.scenario}`, (each) => keys.has(each));
      keys.add(group.key);
      enter(group);
    }
  };
  const haystack = (entry) => {
    entry.words ??= JSON.stringify([
      entry.scenario.task,
      entry.episode.explanation,
      entry.episode.messages.map((message) => [message.text, message.calls]),
    ]).toLowerCase();
    return entry.words;
  };

  // -- filters, kept in the address so that a view can be shared

  const state = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  const openNumber = () => (/^\d+$/.test(state.e ?? "") ? Number(state.e) : -1);
  const remember = () => {
    const kept = Object.entries(state).filter(([, value]) => value !== "" && value !== undefined);
    history.replaceState(null, "", kept.length ? `#${new URLSearchParams(kept)}` : location.pathname + location.search);
  };
  const offered = {};
  const options = (name, values) => {
    const select = form.elements[name];
    const chosen = state[name] ?? "";
    if (offered.later && chosen && !values.some(([value]) => value === chosen)) values.push([chosen, chosen]);
    select.parentElement.hidden = values.length < 2;
    const all = JSON.stringify(values);
    if (offered[name] === all) return; // an open list stays as it is
    offered[name] = all;
    select.replaceChildren(make("option", { value: "", textContent: "all" }),
      ...values.map(([value, text]) => make("option", { value, textContent: text })));
    select.value = chosen;
    if (select.value !== chosen) { delete state[name]; select.value = ""; }
  };
  const distinct = (values) => [...new Set(values)].sort((a, b) => (a < b ? -1 : 1)).map((v) => [v, words(v)]);
  const offer = () => {
    const splits = [...new Set(data.sources.map((source) => source.split))];
    options("source", [
      ...(splits.length > 1 ? splits.map((split) => [`split:${split}`, `all of ${split}`]) : []),
      ...data.sources.map((source) => [source.label, source.label]),
    ]);
    options("tool", distinct(episodes.flatMap((entry) => [...entry.tools])).map(([v]) => [v, v]));
    options("steps", distinct(episodes.map((entry) => String(entry.scenario.tools.length))));
    options("outcome", distinct(episodes.map((entry) => outcome(entry.episode))));
    options("stop", distinct(episodes.map((entry) => entry.episode.stop)));
    offered.later = true;
  };

  const matches = ({ episode, group, scenario, source, tools }, entry) =>
    (!state.source || state.source === source.label || state.source === `split:${source.split}`) &&
    (!state.tool || tools.has(state.tool)) &&
    (!state.steps || state.steps === String(scenario.tools.length)) &&
    (!state.outcome || state.outcome === outcome(episode)) &&
    (!state.stop || state.stop === episode.stop) &&
    (!state.text || haystack(entry).includes(state.text.toLowerCase()));

  let found = []; // groups with the numbers of their matching episodes
  let most = PAGE;
  const apply = (shown = PAGE) => {
    most = shown;
    found = [];
    let count = 0;
    for (const group of data.groups) {
      const hits = new Set(group.members.filter((entry) => matches(entry, entry)).map((entry) => entry.number));
      if (hits.size) found.push([group, hits]);
      count += hits.size;
    }
    document.getElementById("count").textContent =
      `${count.toLocaleString("en")} of ${episodes.length.toLocaleString("en")} episodes`;
    fill();
    remember();
  };

  const mark = (entry, faded = false) => {
    const { episode } = entry;
    const [kind, sign] = MARKS[outcome(episode)];
    const title = `${episode.greedy ? "greedy" : `episode ${entry.member + 1}`}: ${outcome(episode)}${episode.reward === undefined ? "" : `, reward ${number(episode.reward)}`}`;
    return make("button", {
      type: "button", class: `mark ${kind}${faded ? " faded" : ""}`, textContent: sign, title,
      "aria-label": title, "aria-current": String(entry.number === openNumber()), "data-number": entry.number,
      onclick: () => show(byKey.get(entry.key).number, { look: true }),
    });
  };
  const row = (group, hits) => {
    const { source, scenario } = group.members[0];
    const made = make("li", { class: group.members.some((e) => e.number === openNumber()) ? "open" : "" },
      make("div", { class: "where", textContent: source.live ? `${source.label}, going on` : source.label }),
      make("div", { class: "request", textContent: scenario.task }),
      make("div", { class: "marks" }, ...group.members.map((entry) => mark(entry, !hits.has(entry.number)))));
    made.dataset.group = group.key;
    return made;
  };
  // Rows that stay the same stay where the reader sees them, and keep the focus.
  const fill = () => {
    const before = new Map([...list.children].map((each) => [each.dataset.group, each]));
    const below = (each) => each.getBoundingClientRect().top - list.getBoundingClientRect().top;
    const anchor = list.scrollTop > 0 && [...list.children].find((each) => each.dataset.group && below(each) >= 0);
    const top = anchor && below(anchor);
    const rows = found.slice(0, most).map(([group, hits]) => {
      const made = row(group, hits);
      const old = before.get(group.key);
      return old && old.outerHTML === made.outerHTML ? old : made;
    });
    if (found.length > most) {
      rows.push(make("li", { class: "more" }, make("button", {
        type: "button", textContent: `${found.length - most} more`, onclick: () => { most += PAGE; fill(); } })));
    }
    if (!found.length) rows.push(make("li", { class: "where", textContent: "No episode matches." }));
    const kept = new Set(rows);
    for (const each of [...list.children]) if (!kept.has(each)) each.remove();
    rows.forEach((each, place) => { if (list.children[place] !== each) list.insertBefore(each, list.children[place] ?? null); });
    const now = anchor && rows.find((each) => each.dataset.group === anchor.dataset.group);
    if (now) list.scrollTop += below(now) - top;
  };

  // -- one episode

  const fact = (name, value) => make("span", {}, `${name} `, make("b", { textContent: value }));
  const badge = (text, kind = "") => make("span", { class: `badge ${kind}`, textContent: text });
  const pretty = (text) => {
    try {
      const value = JSON.parse(text);
      return typeof value === "object" && value !== null && text.length > 60 ? JSON.stringify(value, null, 2) : text;
    } catch {
      return text;
    }
  };
  const call = (name, args) =>
    make("div", { class: "call" }, make("pre", {}, make("b", { textContent: name }), ` ${pretty(args ?? "")}`));

  const heat = (value) => Math.round(Math.min(1, value) * 75);
  const tokens = ([pieces, logprobs], { episode }, view) => {
    const gain = episode.advantage ?? 0;
    return make("pre", { class: "tokens" }, ...pieces.map((piece, index) => {
      const text = data.vocabulary[piece];
      const logprob = logprobs[index];
      const probability = logprob === null ? null : Math.exp(logprob);
      const by = view === "advantage" ? (gain < 0 ? "loss" : "gain") : "p";
      const token = make("span", {
        class: `token ${by}`,
        textContent: text === "" ? "▯" : text.replaceAll("\n", "⏎\n"),
        title: `logprob ${number(logprob)}, probability ${number(probability)}`
          + (episode.advantage === undefined ? "" : `, advantage ${signed(gain)}`),
      });
      const amount = view === "advantage" ? Math.abs(gain) / 2 : logprob === null ? 0 : -logprob / 3;
      token.style.setProperty("--heat", heat(amount));
      return token;
    }));
  };
  const legend = (entry, view) => {
    const swatch = (kind, value, text) => {
      const box = make("span", { class: `token swatch ${kind}`, textContent: " " });
      box.style.setProperty("--heat", heat(value));
      return make("span", {}, box, text);
    };
    if (view === "logprob") {
      return make("p", { class: "row scale" }, "probability of the token:", swatch("p", 0, "1"),
        swatch("p", Math.LN2 / 3, "0.5"), swatch("p", Math.log(10) / 3, "0.1"), swatch("p", 1, "0.05 or less"));
    }
    const gain = entry.episode.advantage;
    const text = gain === undefined
      ? "This episode was not trained on, so it has no advantage."
      : gain === 0
        ? "The advantage is 0: these tokens added nothing to the policy gradient."
        : `Every token of the episode has the same advantage, ${signed(gain)}: the update made them ${gain > 0 ? "more" : "less"} likely.`;
    return make("p", { class: "scale", textContent: text });
  };

  const turns = (entry, view) => {
    const { episode } = entry;
    const answers = episode.messages.filter((message) => message.role === "tool").length;
    let turn = 0;
    let result = 0;
    return episode.messages.map((message) => {
      const who = [words(message.role)];
      let kind = message.role === "assistant" ? "assistant" : "";
      const body = [];
      if (message.role === "assistant") {
        const sampled = episode.tokens[turn];
        who.push(`turn ${++turn}`);
        if (message.reasoning) body.push(make("h3", { textContent: "reasoning" }), make("pre", { textContent: message.reasoning }));
        if (view !== "off" && sampled) body.push(tokens(sampled, entry, view));
        else {
          if (message.text) body.push(make("pre", { textContent: message.text }));
          for (const [name, args] of message.calls ?? []) body.push(call(name, args));
          if (!body.length) body.push(make("pre", { class: "where", textContent: "(nothing)" }));
        }
      } else {
        if (message.role === "tool") {
          const record = answers === episode.calls.length ? episode.calls[result] : undefined;
          result += 1;
          who[0] = `result of ${message.name ?? "a tool"}`;
          if (record) {
            who.push(record.unsent ? (record.unknown ? "no such tool, not sent" : "not sent") : `${record.seconds.toFixed(3)} s`);
            if (record.error) { who.push("error"); kind = "error"; }
          }
        }
        body.push(make("pre", { textContent: pretty(message.text ?? "") }));
      }
      return make("div", { class: `turn ${kind}` }, make("div", { class: "who" }, ...who.map((w) => make("span", { textContent: w }))), ...body);
    });
  };

  const judged = ({ model, agreement, noise }) => [
    `Judged by ${model}, which compared the episodes of this group`,
    ...(agreement === undefined ? [] : [`its judges agree on ${number(agreement, 2)} of the pairs`]),
    ...(noise === undefined ? [] : [`asked again in another order, scores differ by ${number(noise, 2)}`]),
  ].join("; ") + ".";

  const elsewhere = (entry) => data.groups.filter(
    (group) => group.scenario === entry.group.scenario && group !== entry.group);
  const others = (entry) => make("div", { class: "others" },
    make("h3", { textContent: "this group" }),
    make("div", { class: "marks" }, ...entry.group.members.map((other) => mark(other))),
    ...elsewhere(entry).flatMap((other) => [
      make("h3", { textContent: `the same scenario, ${data.sources[other.source].label}` }),
      make("div", { class: "marks" }, ...other.members.map((member) => mark(member)))]));

  // The content of an episode, whatever the numbers of its pieces in the vocabulary.
  const said = ({ episode }) => JSON.stringify([episode,
    episode.tokens.map(([pieces]) => pieces.map((piece) => data.vocabulary[piece]))],
  (name, value) => (name === "tokens" ? undefined : value));
  let shown = { key: null, said: null }; // the open episode

  const show = (index, { look = false } = {}) => {
    const entry = episodes[index];
    shown = { key: entry?.key ?? null, said: entry && said(entry) };
    const focused = detail.contains(document.activeElement) ? document.activeElement.className : null;
    state.e = entry ? String(index) : "";
    remember();
    for (const button of list.querySelectorAll(".mark")) {
      const current = Number(button.dataset.number) === index;
      button.setAttribute("aria-current", String(current));
    }
    for (const row of list.children) row.classList.toggle("open", !!row.querySelector('[aria-current="true"]'));
    if (!entry) {
      detail.replaceChildren(make("p", { class: "note", textContent: "Choose an episode: each mark is one." }));
      return;
    }
    const { episode, scenario, group, source } = entry;
    const kind = MARKS[outcome(episode)][0];
    const wanted = [];
    if (scenario.answer !== null && scenario.answer !== undefined) wanted.push(make("pre", { textContent: scenario.answer }));
    if (scenario.verifier) wanted.push(make("pre", { textContent: `${scenario.verifier[0]}: ${pretty(scenario.verifier[1] ?? "")}` }));
    for (const [tool, args] of scenario.reference) wanted.push(call(tool, args));
    const colours = Object.entries(COLOURS).filter(([name]) => name !== "advantage" || episode.advantage !== undefined || source.split === "train");
    const view = colours.some(([name]) => name === state.tokens) ? state.tokens : "off";
    detail.replaceChildren(...there([
      make("div", { class: "where note", textContent: `${source.label}, ${episode.greedy ? "greedy" : `episode ${entry.member + 1} of ${group.members.length}`}${scenario.difficulty === null ? "" : `, difficulty ${number(scenario.difficulty, 2)}`}` }),
      make("div", { class: "request", textContent: scenario.task }),
      make("div", { class: "row" },
        badge(outcome(episode), kind), badge(words(episode.stop)),
        episode.reward === undefined ? null : fact("reward", number(episode.reward)),
        episode.advantage === undefined ? null : fact("advantage", signed(episode.advantage)),
        fact("turns", String(episode.turns ?? 0)), fact("seconds", number(episode.seconds ?? 0, 2)),
        episode.tokens.length ? fact("sampled tokens", String(episode.tokens.reduce((n, t) => n + t[0].length, 0))) : null),
      episode.explanation ? make("p", { class: "explanation", textContent: episode.explanation }) : null,
      group.judge ? make("p", { class: "note", textContent: judged(group.judge) }) : null,
      episode.fault ? make("p", { class: "unfinished", textContent: episode.fault }) : null,
      Object.keys(episode.metrics).length
        ? make("div", { class: "row parts" }, make("span", { class: "note", textContent: "parts:" }),
            ...Object.entries(episode.metrics).map(([name, value]) => fact(words(name), number(value))))
        : null,
      others(entry),
      episode.tokens.length
        ? make("div", { class: "tabs" }, ...colours.map(([name, text]) =>
            make("button", { type: "button", textContent: text, "aria-pressed": String(name === view), "data-tokens": name,
              onclick: () => { state.tokens = name === "off" ? "" : name; show(byKey.get(entry.key).number); } })))
        : make("p", { class: "note", textContent: source.live ? "Its tokens are shown when the batch is done."
            : "No tokens: the model was sampled over an API, or is a script." }),
      view !== "off" && episode.tokens.length ? legend(entry, view) : null,
      ...turns(entry, view),
      episode.submission === undefined ? null : make("div", { class: "turn" }, make("div", { class: "who", textContent: "handed in" }), make("pre", { textContent: episode.submission })),
      ...episode.final_state.map((read) => make("div", { class: "turn" },
        make("div", { class: "who", textContent: "the verifier reads the final state" }), call(read.name, read.arguments), make("pre", { textContent: pretty(read.result ?? "") }))),
      wanted.length ? make("details", {}, make("summary", { textContent: "what was expected" }), ...wanted) : null,
      ...(group.exceptions ?? []).map((sentence) => make("p", { class: "note", textContent: `Played again: ${sentence}` })),
    ]));
    if (focused !== null) {
      const same = focused.startsWith("mark") ? '.mark[aria-current="true"]' : '.tabs [aria-pressed="true"]';
      detail.querySelector(same)?.focus({ preventScroll: true });
    }
    const top = detail.getBoundingClientRect().top;
    if (look && (top < 0 || top > innerHeight * 0.75)) detail.scrollIntoView();
  };

  // Keep the open episode while it matches; else open a group whose episodes differ, which says more than another.
  const showMatching = () => {
    if (found.some(([, hits]) => hits.has(openNumber()))) return;
    const differ = ([group]) => new Set(group.members.map((entry) => outcome(entry.episode))).size > 1;
    const [, hits] = found.find(differ) ?? found[0] ?? [null, [-1]];
    show([...hits][0]);
  };

  // -- begin

  take(JSON.parse(document.getElementById("data").textContent));
  offer();
  form.elements.text.value = state.text ?? "";
  form.addEventListener("input", () => {
    for (const name of FIELDS) state[name] = form.elements[name].value;
    apply();
    showMatching();
  });
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("reset", () => {
    for (const name of FIELDS) delete state[name];
    apply();
  });
  // An example of the summary: show it whatever was filtered.
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-number]");
    if (!link) return;
    event.preventDefault();
    form.reset();
    show(Number(link.dataset.number), { look: true });
  });
  form.hidden = false;
  document.getElementById("browser").hidden = false;
  apply();
  if (openNumber() in episodes) show(openNumber());
  else showMatching();

  // -- a run that goes on (live.js)

  const renew = () => {
    const open = byKey.get(shown.key);
    state.e = open ? String(open.number) : "";
    offer();
    apply(Math.max(most, PAGE));
    if (open && said(open) === shown.said) {
      const where = detail.querySelector(".others");
      const made = others(open);
      if (where.outerHTML !== made.outerHTML) where.replaceWith(made);
    } else if (open) show(open.number);
    else showMatching();
  };
  // Replace everything but the groups of batches that are still being played, and the open episode.
  const replace = (taken, playing) => {
    const kept = data.groups.filter((group) => data.sources[group.source].live && playing.includes(data.sources[group.source].label));
    const open = byKey.get(shown.key)?.group;
    const old = data;
    take(taken);
    for (const group of open && !kept.includes(open) && !byKey.has(shown.key) ? [...kept, open] : kept) {
      put(old.sources[group.source], respelled(group, old.vocabulary), old.scenarios[group.scenario]);
    }
    renew();
  };
  const respelled = (group, vocabulary) => ({ ...group, episodes: group.episodes.map((episode) => ({
    ...episode,
    tokens: (episode.tokens ?? []).map(([pieces, logprobs]) =>
      [pieces.map((piece) => data.vocabulary.push(vocabulary[piece]) - 1), logprobs]),
  })) });
  const put = (source, group, scenario) => {
    let index = data.sources.findIndex((each) => each.label === source.label);
    if (index < 0) index = data.sources.push(source) - 1;
    if (!data.sources[index].live && source.live) return; // it is whole by now
    data.scenarios[group.scenario] ??= scenario;
    const entered = { ...group, source: index };
    enter(entered);
    const place = data.groups.findIndex((each) => each.key === entered.key);
    if (place < 0) data.groups.unshift(entered);
    else data.groups[place] = entered;
  };
  const add = (groups) => {
    for (const { label, split, group, scenario } of groups) put({ label, split, live: true }, group, scenario);
    renew();
  };
  globalThis.mcpRlEpisodes = { replace, add };
})();
