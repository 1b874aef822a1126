"use strict";
(() => {
  const $ = id => document.getElementById(id);
  const read = id => JSON.parse($(id).textContent);
  const data = read("data"), items = read("entries"), bodies = read("bodies");

  // A huge list of entries is in files beside the page.
  const lists = [];
  let missing = data.lists;
  window.list = (number, values) => {
    lists[number] = values;
    if (--missing) return;
    for (const part of lists) items.push(...part);
    start();
  };
  for (let number = 0; number < data.lists; number++) {
    const script = document.createElement("script");
    script.src = `report-data/${data.shards.length + number}.js`;
    script.onerror = () => { $("loading").textContent = `${script.src} is missing; keep that folder beside this page.`; };
    document.head.append(script);
  }
  if (!missing) start();

  function start() {
  for (const item of items) for (const name of Object.keys(data.said)) item[name] = data.said[name][item[name]];
  const byId = new Map(items.map(item => [item.i, item]));
  const sets = data.sets.map(() => []);
  for (const item of items) if (item.g !== undefined) sets[item.g].push(item);
  const PAGE = 60;

  // Small helpers: text always becomes a text node.
  function make(tag, attributes, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name === "on") for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
      else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, value === true ? "" : value);
    }
    node.append(...children.filter(child => child !== null && child !== undefined && child !== ""));
    return node;
  }
  const plural = (n, one, many) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
  const say = text => { $("status").textContent = text; };

  // Code that is in files beside the page ---------------------------------------------------------------
  const waiting = new Map();
  window.shard = (number, values) => {
    values.forEach((value, offset) => { bodies[data.shards[number] + offset] = value; });
    (waiting.get(number) || []).forEach(done => done());
    waiting.set(number, null);
  };
  function withBody(number, use) {
    if (number < 0 || bodies[number] !== undefined) { use(bodies[number]); return; }
    let shard = data.shards.length - 1;
    while (data.shards[shard] > number) shard--;
    load(shard, () => use(bodies[number]));
  }
  function load(shard, done) {
    if (waiting.get(shard) === null) { done(); return; }
    if (waiting.has(shard)) { waiting.get(shard).push(done); return; }
    waiting.set(shard, [done]);
    const script = make("script", {src: `report-data/${shard}.js`});
    script.onerror = () => say(`report-data/${shard}.js is missing; keep that folder beside this page.`);
    document.head.append(script);
  }
  function withAllBodies(use) {
    let left = data.shards.length;
    if (!left) { use(); return; }
    data.shards.forEach((_, shard) => load(shard, () => { if (!--left) use(); }));
  }

  // Decisions ---------------------------------------------------------------------------------------------
  const key = `ling2-migrate ${data.id}`;
  let decided = new Map(), stored = true, begun = false;
  for (const [id, entry] of Object.entries(data.before)) if (byId.has(id)) decided.set(id, entry);
  const keep = text => { decided = new Map(Object.entries(JSON.parse(text)).filter(([id]) => byId.has(id))); };
  try {
    const text = localStorage.getItem(key);
    begun = Boolean(text);
    if (begun) keep(text);
  } catch { stored = false; }
  // The same page in another tab: the decisions are one.
  addEventListener("storage", event => { if (event.key === key && event.newValue) { keep(event.newValue); refresh(); } });
  function save() {
    try { localStorage.setItem(key, JSON.stringify(Object.fromEntries(decided))); }
    catch { if (stored) say("This browser keeps nothing for this page: export the decisions before you close it."); stored = false; }
  }
  const stateOf = item => decided.get(item.i)?.decision || "open";
  const noteOf = item => decided.get(item.i)?.note || "";
  function set(item, field, value) {
    const entry = {...decided.get(item.i)};
    if (value) entry[field] = value; else delete entry[field];
    if (Object.keys(entry).length) decided.set(item.i, entry); else decided.delete(item.i);
  }
  /* Why hunks stand or fall together; of many reasons the first. */
  function shortly(reasons) {
    const all = [...new Set(reasons.flatMap(reason => reason.split("; ")))];
    return all.slice(0, 3).join("; ") + (all.length > 3 ? "; …" : "");
  }
  const undoable = [];
  function remember(chosen) {
    undoable.push(chosen.map(item => [item, decided.get(item.i)?.decision]));
    if (undoable.length > 100) undoable.shift();
  }
  function undo() {
    const last = undoable.pop();
    if (!last) return;
    for (const [item, was] of last) set(item, "decision", was);
    save();
    say(`Undone: ${plural(last.length, "entry is", "entries are")} as before.`);
    refresh();
  }
  /* Decide items, with all that stand or fall with them. */
  function decide(chosen, state) {
    const asked = new Set(chosen), all = new Set(asked), reasons = new Set();
    for (const item of asked) if (item.g !== undefined)
      for (const mate of sets[item.g]) if (!all.has(mate)) { all.add(mate); reasons.add(data.sets[item.g]); }
    remember([...all]);
    for (const item of all) set(item, "decision", state === "open" ? "" : state);
    save();
    const more = all.size - asked.size;
    const words = {accepted: "Accepted", rejected: "Rejected", open: "Undecided:"}[state];
    say(`${words} ${plural(asked.size, "change", "changes")}` + (more
      ? ` and ${plural(more, "other that stands or falls with it", "others that stand or fall with them")} (${shortly([...reasons])}).` : "."));
    if (state === "rejected" && [...asked].some(item => item.k === "move"))
      say($("status").textContent + " A file whose move is rejected stays in place, and apply keeps imports of it and paths to it right.");
    refresh();
  }

  // Filters -----------------------------------------------------------------------------------------------
  const folderOf = item => { const parts = item.f.split("/"); return parts.length > 1 ? parts.slice(0, Math.min(2, parts.length - 1)).join("/") + "/" : "(top)"; };
  const typeOf = item => { const name = item.f.slice(item.f.lastIndexOf("/") + 1), dot = name.lastIndexOf("."); return dot > 0 ? name.slice(dot) : name; };
  const lineText = line => { let text = ""; for (let n = 1; n < line.length; n += 2) text += line[n]; return text; };
  function textOf(item) {
    if (item.text === undefined) {
      const body = item.b === undefined ? null : bodies[item.b];
      const lines = !body ? [] : body[0] === "s" ? body[1] : [...body[1], ...body[2]];
      item.text = [item.f, item.to || "", item.r.join(" "), item.y, item.todo || "", ...lines.map(lineText)].join("\n").toLowerCase();
    }
    return item.text;
  }
  const filters = {search: "", rule: "", tier: "", folder: "", type: "", state: ""};
  for (const item of items) { item.folder = folderOf(item); item.type = typeOf(item); }
  const NAMES = ["rule", "tier", "folder", "type", "state"];
  const wordOf = {tier: item => item.t, folder: item => item.folder, type: item => item.type, state: item => { const state = stateOf(item); return state === "open" ? item.s || state : state; }};
  const passes = (item, name) => name === "rule" ? item.r.includes(filters.rule) : wordOf[name](item) === filters[name];
  /* What passes all filters, and for each filter how many entries there are of each choice, the other filters as they are. */
  function sift() {
    const active = NAMES.filter(name => filters[name]), passed = [];
    const tallies = Object.fromEntries(NAMES.map(name => [name, new Map(filters[name] ? [[filters[name], 0]] : [])]));
    const tally = (name, word) => tallies[name].set(word, (tallies[name].get(word) || 0) + 1);
    for (const item of items) {
      const against = active.filter(name => !passes(item, name));
      if (against.length > 1 || (filters.search && !textOf(item).includes(filters.search) && !noteOf(item).toLowerCase().includes(filters.search))) continue;
      if (!against.length) passed.push(item);
      for (const name of against.length ? against : NAMES)
        if (name === "rule") for (const word of item.r) tally(name, word); else tally(name, wordOf[name](item));
    }
    return {passed, tallies};
  }
  function options(name, tallies) {
    const about = word => name === "rule" && data.rules[word] ? ` ${data.rules[word].summary}` : "";
    const choices = [...tallies[name]].sort((a, b) => a[0] < b[0] ? -1 : 1);
    $(name).replaceChildren(make("option", {value: ""}, TITLES[name]),
      ...choices.map(([word, count]) => make("option", {value: word}, `${word} (${count})${about(word)}`)));
    $(name).value = filters[name];
  }
  function counts(tallies) {
    if (!$("counts").open) return;
    $("tables").replaceChildren(...[["rule", "Rules"], ["type", "File types"], ["folder", "Folders"]].map(([name, title]) => {
      const choices = [...tallies[name]].sort((a, b) => b[1] - a[1]);
      return make("div", {}, make("h2", {}, title), make("ul", {}, ...choices.map(([word, count]) => make("li", {},
        make("button", {type: "button", class: "plain", on: {click: () => { $(name).value = word; filter(name, word); }}}, word), make("span", {}, count.toLocaleString("en"))))));
    }));
  }
  const TITLES = {rule: "all rules", tier: "all tiers", folder: "all folders", type: "all types", state: "all states"};

  // The list of rows --------------------------------------------------------------------------------------
  const folded = new Set(["move"]);
  let rows = [], shown = [], drawn = 0, current = -1, split = false;
  const SECTIONS = [["site", "For a person"], ["left", "Not made"], ["move", "Moved files, and files that stay out"], ["hunk", "Changes"]];

  function build() {
    rows = [];
    const {passed, tallies} = sift();
    shown = passed;
    for (const [kind, title] of SECTIONS) {
      const here = shown.filter(item => item.k === kind);
      if (!here.length) {
        if (kind === "site" && !items.some(item => item.k === "site")) rows.push({type: "h2", text: title, key: kind}, {type: "p", text: "Nothing."});
        continue;
      }
      rows.push({type: "h2", text: `${title} (${here.length.toLocaleString("en")})`, key: kind, count: here.length});
      if (folded.has(kind)) continue;
      const rules = new Map();
      for (const item of here) { if (!rules.has(item.r[0])) rules.set(item.r[0], []); rules.get(item.r[0]).push(item); }
      for (const [rule, members] of rules) {
        const ruleKey = `${kind} ${rule}`;
        rows.push({type: "h3", rule, name: rule, key: ruleKey, count: members.length, members});
        if (folded.has(ruleKey)) continue;
        let rest = members;
        if (kind === "hunk") rest = repeated(members);
        let file = null, fileKey = "";
        const files = new Map();
        for (const item of rest) { if (!files.has(item.f)) files.set(item.f, []); files.get(item.f).push(item); }
        for (const item of rest) {
          if (item.f !== file && kind !== "move") {
            file = item.f;
            fileKey = `${ruleKey} ${file}`;
            rows.push({type: "h4", file, name: `${rule} in ${file}`, key: fileKey, members: files.get(file)});
          }
          if (!folded.has(fileKey)) rows.push({type: "item", item, members: [item]});
        }
      }
    }
    if (!shown.length && items.length) rows.push({type: "p", text: "Nothing matches the filters."});
    if (!items.length) rows.push({type: "p", text: "Nothing was changed."});
    return tallies;
  }
  /* Identical one-line changes become one row; returns the others. */
  function repeated(members) {
    const groups = new Map();
    for (const item of members) if (item.one) { if (!groups.has(item.b)) groups.set(item.b, []); groups.get(item.b).push(item); }
    const folds = [...groups.values()].filter(group => group.length > 1).sort((a, b) => b.length - a.length);
    const gone = new Set(folds.flat());
    for (const group of folds) rows.push({type: "item", item: group[0], members: group});
    return members.filter(item => !gone.has(item));
  }

  const list = $("list"), more = make("div", {id: "more"});
  let observer = new IntersectionObserver(entries => { if (entries.some(entry => entry.isIntersecting)) draw(PAGE); }, {rootMargin: "1500px"});
  function draw(count) {
    const end = Math.min(rows.length, drawn + count), nodes = [];
    for (; drawn < end; drawn++) nodes.push(rows[drawn].node = element(rows[drawn], drawn));
    more.remove();
    list.append(...nodes);
    if (drawn < rows.length) { list.append(more); observer.unobserve(more); observer.observe(more); }
  }
  function rebuild(least) {
    const tallies = build();
    list.replaceChildren();
    drawn = 0; current = -1;
    draw(Math.max(PAGE, least || 0));
    const first = rows.find(row => row.type === "item");
    if (first && first.node) first.node.tabIndex = 0;
    for (const name of NAMES) options(name, tallies);
    counts(tallies);
    progress();
  }
  function progress() {
    const counts = {accepted: 0, rejected: 0, open: 0};
    let sites = 0, dealt = 0;
    for (const item of items)
      if (item.k !== "site") counts[stateOf(item)]++;
      else { sites++; if (stateOf(item) === "accepted") dealt++; }
    const number = n => n.toLocaleString("en"), {accepted, rejected, open} = counts;
    $("progress").textContent = `${number(accepted)} accepted, ${number(rejected)} rejected, ${number(open)} open. `
      + `${number(dealt)} of ${plural(sites, "site", "sites")} dealt with. ${number(shown.length)} of ${number(items.length)} shown.`;
    $("outcome").textContent = data.final ? "" : `As things stand it makes ${plural(accepted, "change", "changes")} and leaves out ${number(rejected + open)}`
      + (open ? `; with --accept-open it leaves out only the ${number(rejected)} rejected.` : ".");
    $("undo").disabled = !undoable.length;
  }
  /* After decisions: rows on the page show their state; counts follow. A filter by state is only applied anew when asked. */
  function refresh() {
    for (const row of rows) if (row.node && row.type === "item") paint(row); else if (row.paint) row.paint();
    options("state", sift().tallies);
    progress();
  }

  // Elements ----------------------------------------------------------------------------------------------
  function heading(row, tag, after, ...content) {
    const open = !folded.has(row.key);
    return make(tag, {}, make("button", {type: "button", class: "plain", "aria-expanded": String(open), "data-key": row.key, on: {click: () => fold(row.key)}}, open ? "▾ " : "▸ ", ...content), after);
  }
  function fold(name) {
    if (folded.has(name)) folded.delete(name); else folded.add(name);
    rebuild(drawn);
    list.querySelector(`[data-key="${CSS.escape(name)}"]`)?.focus();
  }
  function element(row, index) {
    if (row.type === "p") return make("p", {}, row.text);
    if (row.type === "h2") return row.count ? heading(row, "h2", null, row.text) : make("h2", {}, row.text);
    if (row.type === "h4") {
      const to = data.moved[row.file];
      return heading(row, "h4", group(row), make("span", {class: "place"}, row.file + (to ? ` → ${to}` : to === null ? " (stays out)" : "")), ` (${row.members.length})`);
    }
    if (row.type === "h3") {
      const rule = data.rules[row.rule];
      const node = heading(row, "h3", group(row), `${row.rule} ${rule ? rule.summary : "Links"} (${row.count.toLocaleString("en")})`);
      if (rule) node.append(" ", tier(rule.tier), " ", make("button", {type: "button", class: "rule", "aria-label": `Explain ${row.rule}`, on: {click: () => explain(row.rule)}}, "explain"));
      return node;
    }
    return article(row, index);
  }
  /* Decides all entries of a rule or a file, and says how many are open. */
  function group(row) {
    const site = row.members[0].k === "site";
    const left = make("span", {class: "left"});
    row.paint = () => {
      const open = row.members.filter(item => stateOf(item) === "open").length;
      left.textContent = open === row.members.length ? "" : open ? ` ${open.toLocaleString("en")} open` : " all decided";
    };
    row.paint();
    const button = (state, label) => make("button", {type: "button", class: label === "Reject" ? "reject" : "accept", "aria-label": `${label} all of ${row.name}`, on: {click: () => decide(row.members, state)}}, `${label} all`);
    return make("span", {class: "group"}, " ", ...(site ? [] : [button("accepted", "Accept"), " ", button("rejected", "Reject")]), left);
  }
  const tier = name => make("span", {class: `badge ${name}`}, name);
  const place = item => item.f + (item.l ? `:${item.l}` + (item.c ? `:${item.c}` : "") : "");

  function article(row, index) {
    const {item, members} = row, many = members.length > 1;
    const node = make("article", {class: "row", tabindex: "-1", "data-id": item.i, on: {focus: () => select(index, false)}});
    const title = many ? `×${members.length} the same change` : item.k === "move" || (item.k === "left" && item.to !== undefined)
      ? `${item.f} → ${item.to === null ? "stays out" : item.to}` : place(item);
    const head = make("div", {class: "head"}, make("span", {class: "place"}, title), tier(item.t));
    if (item.s) head.append(make("span", {class: "badge review"}, item.s));
    for (const rule of item.r.slice(1)) head.append(make("button", {type: "button", class: "rule", on: {click: () => explain(rule)}}, `also ${rule}`));
    const site = item.k === "site";
    head.append(make("button", {type: "button", class: "accept", on: {click: () => toggle(row, "accepted")}}, site ? "Dealt with" : "Accept"));
    if (!site) head.append(make("button", {type: "button", class: "reject", on: {click: () => toggle(row, "rejected")}}, "Reject"));
    head.append(make("button", {type: "button", class: "note", "aria-expanded": "false", on: {click: () => note(row)}}, "Note"));
    node.append(head);
    const why = [item.y].filter(Boolean).join(" ");
    if (why) node.append(make("p", {class: "why"}, why));
    if (item.todo) node.append(make("p", {class: "why todo"}, `→ ${item.todo}`));
    const tied = new Set(members.filter(member => member.g !== undefined).map(member => member.g));
    if (tied.size) node.append(together(tied, members));
    if (many) node.append(places(row));
    if (item.b !== undefined) {
      const holder = make("div", {});
      node.append(holder);
      withBody(item.b, body => withBody(many || item.x === undefined ? -1 : item.x, around => holder.replaceChildren(code(item, body, around, many))));
    }
    row.node = node;
    if (noteOf(item)) note(row, true);
    paint(row);
    return node;
  }
  function paint(row) {
    const states = new Set(row.members.map(stateOf)), state = states.size === 1 ? [...states][0] : "mixed";
    row.node.classList.toggle("accepted", state === "accepted");
    row.node.classList.toggle("rejected", state === "rejected");
    row.node.classList.toggle("current", rows[current] === row);
    const {item, members} = row;
    row.node.setAttribute("aria-label", `${item.r[0]}, ${members.length > 1 ? `${members.length} places` : place(item)}` + `, ${state}`);
    for (const name of ["accept", "reject"]) row.node.querySelector(`.head > .${name}`)?.setAttribute("aria-pressed", String(state === `${name}ed`));
    for (const one of row.node.querySelectorAll(".places [data-id]")) {
      const was = stateOf(byId.get(one.dataset.id));
      one.querySelector(".accept")?.setAttribute("aria-pressed", String(was === "accepted"));
      one.querySelector(".reject")?.setAttribute("aria-pressed", String(was === "rejected"));
    }
  }
  function toggle(row, state) { decide(row.members, row.members.every(item => stateOf(item) === state) ? "open" : state); }

  function together(tied, members) {
    const mates = [...tied].flatMap(number => sets[number]).filter(item => !members.includes(item));
    const why = [...tied].map(number => data.sets[number]);
    return make("details", {class: "why"}, make("summary", {}, `Stands or falls with ${plural(mates.length, "other hunk", "other hunks")}: ${shortly(why)}`),
      make("ul", {}, ...mates.slice(0, 200).map(item => make("li", {}, make("button", {type: "button", class: "plain link place", on: {click: () => go(item)}}, `${item.f}:${item.l}`)))));
  }
  /* Select an entry wherever it is: what hides it is unfolded, and where that is far off, filters lead there. */
  function go(item) {
    const find = () => rows.findIndex(row => row.type === "item" && row.members.includes(item));
    let index = find();
    if (index < 0 || index > drawn + 10 * PAGE) {
      for (const name of [item.k, `${item.k} ${item.r[0]}`, `${item.k} ${item.r[0]} ${item.f}`]) folded.delete(name);
      $("search").value = "";
      Object.assign(filters, {search: "", rule: item.r[0], tier: "", folder: item.folder, type: item.type, state: ""});
      rebuild();
      index = find();
    }
    select(index, true);
  }
  function places(row) {
    const inner = make("ul", {class: "places"});
    const details = make("details", {class: "why", on: {toggle: () => {
      if (!details.open || inner.childElementCount) return;
      for (const item of row.members) {
        const line = make("li", {"data-id": item.i}, make("span", {class: "place"}, place(item)));
        for (const [name, label] of [["accept", "Accept"], ["reject", "Reject"]])
          line.append(make("button", {type: "button", class: name, "aria-label": `${label} ${place(item)}`, on: {click: () => toggle({members: [item]}, `${name}ed`)}}, label));
        inner.append(line);
      }
      paint(row);
    }}}, make("summary", {}, `×${row.members.length}: all places`), inner);
    return details;
  }
  function note(row, quiet) {
    const button = row.node.querySelector(".head > .note"), old = row.node.querySelector("textarea");
    if (old) { if (!quiet) old.focus(); return; }
    const area = make("textarea", {"aria-label": `Note on ${place(row.item)}`, on: {input: () => { for (const item of row.members) set(item, "note", area.value); save(); }}});
    area.value = noteOf(row.item);
    button.setAttribute("aria-expanded", "true");
    row.node.querySelector(".head").after(area);
    if (!quiet) area.focus();
  }

  // Code --------------------------------------------------------------------------------------------------
  function cell(line, side) {
    const node = make("td", side ? {class: side} : {});
    for (let n = 0; n < line.length; n += 2) {
      const changed = line[n].endsWith("*"), kind = changed ? line[n].slice(0, -1) : line[n];
      if (kind || changed) node.append(make("span", {class: `${kind}${changed ? " w" : ""}`.trim()}, line[n + 1]));
      else node.append(line[n + 1]);
    }
    return node;
  }
  const number = (value, side) => make("td", {class: `no${side ? ` ${side}` : ""}`}, value === null ? "" : String(value));
  const sign = (text, side) => make("td", {class: `sign${side ? ` ${side}` : ""}`}, text);

  function code(item, body, around, bare) {
    const table = make("table", {class: "code", role: "presentation"}), inner = make("tbody", {});
    table.append(inner);
    const row = (kind, ...cells) => inner.append(make("tr", kind ? {class: kind} : {}, ...cells));
    if (body[0] === "s") {
      body[1].forEach((line, n) => row(item.n + n === item.l ? "at" : "", number(item.n + n), cell(line)));
      return table;
    }
    const [pairs, old, fresh] = body, wide = split && innerWidth >= 800;
    const [above, below] = around || [[], []];
    let left = item.l - above.length, right = item.m - above.length;
    const numbers = () => bare ? [null, null] : [left, right];
    const same = line => {
      const [a, b] = numbers();
      if (wide) row("", number(a), cell(line), number(b), cell(line)); else row("", number(a), number(b), sign(" "), cell(line));
      left++; right++;
    };
    const empty = () => [number(null), make("td", {})];
    above.forEach(same);
    let o = 0, f = 0, p = 0;
    while (p < pairs.length) {
      if (pairs[p] === "=") { same(old[o++]); p++; continue; }
      const gone = [], come = [];
      for (; p < pairs.length && pairs[p] !== "="; p++) {
        if (pairs[p] !== "+") gone.push(old[o++]);
        if (pairs[p] !== "-") come.push(fresh[f++]);
      }
      if (wide) for (let n = 0; n < Math.max(gone.length, come.length); n++) {
        const before = n < gone.length ? [number(bare ? null : left++, "old"), cell(gone[n], "old")] : empty();
        row("", ...before, ...(n < come.length ? [number(bare ? null : right++, "new"), cell(come[n], "new")] : empty()));
      } else {
        for (const line of gone) row("old", number(bare ? null : left++), number(null), sign("-"), cell(line));
        for (const line of come) row("new", number(null), number(bare ? null : right++), sign("+"), cell(line));
      }
    }
    below.forEach(same);
    return table;
  }

  function explain(name) {
    const rule = data.rules[name];
    $("explain-title").textContent = `${name} (${rule.tier}): ${rule.summary}`;
    $("explain-text").replaceChildren(...(rule.detail ? [make("p", {}, rule.detail)] : []),
      ...rule.examples.flatMap(example => [make("h3", {}, example.path), make("pre", {}, example.before),
        example.before === example.after ? make("p", {}, "stays as it is") : make("pre", {}, example.after)]),
      make("p", {}, "In the terminal: ", make("code", {}, `ling2-migrate run --explain ${name}`)));
    $("explain").showModal();
  }

  // Moving about ------------------------------------------------------------------------------------------
  function select(index, focus) {
    if (index < 0 || index >= rows.length) return;
    while (drawn <= index) draw(PAGE);
    const was = rows[current];
    current = index;
    for (const row of rows) if (row.node && row.type === "item" && row.node.tabIndex === 0) row.node.tabIndex = -1;
    if (was && was.node && was.type === "item") paint(was);
    const node = rows[index].node;
    node.tabIndex = 0;
    paint(rows[index]);
    if (focus) { node.focus({preventScroll: true}); node.scrollIntoView({block: "nearest"}); }
  }
  function step(way) {
    let index = current + way;
    while (index >= 0 && index < rows.length && rows[index].type !== "item") index += way;
    if (index >= 0 && index < rows.length) select(index, true);
  }
  function unfold() {
    const row = rows[current];
    if (!row) return;
    const details = row.node.querySelector("details");
    if (details) { details.open = !details.open; return; }
    let index = current;
    while (index >= 0 && rows[index].type !== "h3") index--;
    if (index >= 0) fold(rows[index].key);
  }
  function side() {
    split = !split;
    $("view").setAttribute("aria-pressed", String(split));
    const at = rows[current]?.item;
    rebuild(drawn);
    if (at) select(rows.findIndex(row => row.item === at), true);
  }
  const keys = {
    j: () => step(1), k: () => step(-1), e: unfold, v: side, u: undo,
    a: () => rows[current] && toggle(rows[current], "accepted"),
    r: () => rows[current] && rows[current].item.k !== "site" && toggle(rows[current], "rejected"),
    n: () => rows[current] && note(rows[current]),
    "/": () => $("search").focus(), "?": () => $("keys").showModal(),
  };
  document.addEventListener("keydown", event => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.target.matches("textarea, select, input")) { if (event.key === "Escape") event.target.blur(); return; }
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });

  // The bars ----------------------------------------------------------------------------------------------
  function filter(name, value) {
    filters[name] = value;
    const go = () => { rebuild(); say(`${plural(shown.length, "entry", "entries")} shown.`); };
    if (name === "search" && value) withAllBodies(go); else go();
  }
  for (const name of NAMES) $(name).addEventListener("change", event => filter(name, event.target.value));
  $("search").addEventListener("input", event => filter("search", event.target.value.trim().toLowerCase()));
  $("bar").addEventListener("submit", event => event.preventDefault());
  $("clear").addEventListener("click", () => {
    for (const name of Object.keys(filters)) filters[name] = "";
    $("search").value = "";
    rebuild();
    say("All entries shown.");
  });
  $("counts").addEventListener("toggle", () => counts(sift().tallies));
  $("view").addEventListener("click", side);
  $("help").addEventListener("click", () => $("keys").showModal());
  const changes = () => shown.filter(item => item.k !== "site");
  $("accept-shown").addEventListener("click", () => decide(changes(), "accepted"));
  $("reject-shown").addEventListener("click", () => decide(changes(), "rejected"));
  $("open-shown").addEventListener("click", () => decide(changes(), "open"));
  $("undo").addEventListener("click", undo);
  $("export").addEventListener("click", () => {
    const file = {...data.decisions, decisions: Object.fromEntries(decided)};
    const link = make("a", {href: URL.createObjectURL(new Blob([JSON.stringify(file, null, 1) + "\n"], {type: "application/json"})), download: "decisions.json"});
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    say(`Exported ${plural(decided.size, "decision or note", "decisions and notes")}.`);
  });
  $("import").addEventListener("change", async event => {
    try {
      const file = JSON.parse(await event.target.files[0].text());
      if (file.tool !== data.decisions.tool || file.schema !== data.decisions.schema) throw new Error("no decisions of this version");
      const entries = Object.entries(file.decisions);
      for (const [id, entry] of entries)
        if (![undefined, "accepted", "rejected"].includes(entry.decision) || !["undefined", "string"].includes(typeof entry.note)) throw new Error(`no decision: ${id}`);
      const known = entries.filter(([id]) => byId.has(id)).map(([id, entry]) => [byId.get(id), entry]);
      remember(known.map(([item]) => item));
      for (const [item, entry] of known) for (const [field, value] of Object.entries(entry)) set(item, field, value);
      save();
      rebuild();
      say(`Imported ${known.length} of ${plural(entries.length, "decision", "decisions")}` + (known.length < entries.length ? "; this report does not have the others." : "."));
    } catch (error) { say(`This file cannot be imported: ${error.message}`); }
    event.target.value = "";
  });
  if (location.protocol === "file:") {
    const folder = decodeURIComponent(location.pathname).replace(/\/[^/]*$/, "") || "/";
    $("command").textContent = `ling2-migrate apply ${/^[\w./-]+$/.test(folder) ? folder : `'${folder.replaceAll("'", "'\\''")}'`} --decisions decisions.json`;
  }
  $("how").open = !begun;
  new ResizeObserver(() => {
    const top = $("top"), stays = getComputedStyle(top).position === "sticky";
    document.documentElement.style.scrollPaddingTop = stays ? `${top.offsetHeight + 8}px` : "";
  }).observe($("top"));
  rebuild();
  performance.mark("list");
  }
})();
