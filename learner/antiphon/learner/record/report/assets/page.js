"use strict";

// Curves: the values under the pointer are shown in the key.
for (const svg of document.querySelectorAll("svg[data-lines]")) {
  const curves = [...svg.querySelectorAll(".curve")].map((line) => ({
    at: line.getAttribute("points").split(" ").map((pair) => Number(pair.split(",")[0])),
    x: line.dataset.x.split(" "),
    y: line.dataset.y.split(" "),
  }));
  const cursor = svg.querySelector(".cursor");
  const where = svg.parentElement.querySelector(".where");
  const values = [...svg.parentElement.querySelectorAll(".key b")];
  const nearest = (curve, x) =>
    curve.at.reduce((best, at, i) => (Math.abs(at - x) < Math.abs(curve.at[best] - x) ? i : best), 0);

  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    curves.forEach((curve, i) => { values[i].textContent = curve.y[nearest(curve, x)]; });
    const first = nearest(curves[0], x);
    cursor.removeAttribute("hidden");
    cursor.setAttribute("x1", curves[0].at[first]);
    cursor.setAttribute("x2", curves[0].at[first]);
    where.textContent = `at ${Number(curves[0].x[first]).toLocaleString("en")}:`;
  });
  svg.addEventListener("pointerleave", () => {
    curves.forEach((curve, i) => { values[i].textContent = curve.y.at(-1); });
    cursor.setAttribute("hidden", "");
    where.textContent = "";
  });
}

// Trees: a row of joint actions per turn; the one that is chosen is followed into the next row.
const trees = JSON.parse(document.getElementById("trees").textContent);
const browser = document.getElementById("browser");
const picker = document.getElementById("tree");

const number = (value) => (value === null || value === undefined ? "-" : String(Number(value.toPrecision(4))));

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  Object.assign(made, attributes);
  made.append(...children.filter((child) => child !== null));
  return made;
}

function said(head, text) {
  return element("div", { className: "say" }, element("small", {}, head), element("div", {}, text || "(empty)"));
}

function best(node) {
  const returns = node.actions.map((action) => action.return ?? -Infinity);
  return returns.indexOf(Math.max(...returns));
}

function card(node, index, child, chosen, choose) {
  const action = node.actions[index];
  const extra = [
    ...Object.entries(action.components ?? {}).map(([name, value]) => `${name} ${number(value)}`),
    ...(action.missing ? [`no score: ${action.missing}`] : []),
    ...(action.stop && action.stop !== "last_turn"
      ? [`ends here: ${action.stop.replaceAll("_", " ")}${action.detail ? ` (${action.detail})` : ""}`] : []),
    ...(action.info ? [`info ${action.info}`] : []),
  ];
  const answers = action.samples.map((sample, agent) => {
    const answer = node.answers[agent][sample];
    const sign = answer.advantage > 0 ? "plus" : answer.advantage < 0 ? "minus" : "";
    const head = element("span", {}, `agent ${agent} · advantage `,
      element("b", { className: sign }, number(answer.advantage)),
      ` · ${answer.tokens} tokens · log p ${number(answer.logprob)}${answer.kl === null ? "" : ` · KL ${number(answer.kl)}`} · weights ${answer.versions.join("-")}`);
    return said(head, answer.text);
  });
  const follow = child === undefined ? null
    : element("button", { type: "button", ariaPressed: String(chosen), onclick: choose },
      chosen ? "followed below" : "show what followed");
  return element("article", { className: chosen ? "action chosen" : "action" },
    element("header", {}, element("span", {}, `[${index}]`),
      element("b", {}, `reward ${number(action.reward)}`), element("span", {}, `return ${number(action.return)}`)),
    extra.length ? element("div", { className: "extra" }, extra.join(" · ")) : null,
    ...answers, ...(action.roles ?? []).map((text, role) => said(`which gives role ${role}`, text)), follow);
}

function draw(nodes, node, place) {
  const children = node.actions.map((_, index) => nodes.get([...node.path, index].join()));
  const preferred = best(node);
  let chosen = children[preferred] ? preferred : children.findIndex((child) => child);
  const below = element("div", {});
  const row = element("div", { className: "actions" });
  const show = () => {
    row.replaceChildren(...node.actions.map((_, index) =>
      card(node, index, children[index], index === chosen, () => { chosen = index; show(); })));
    if (chosen > 0) row.scrollLeft = row.children[chosen].offsetLeft - row.offsetLeft;
    below.replaceChildren();
    if (children[chosen]) draw(nodes, children[chosen], below);
  };
  const after = node.path.length ? `, after ${node.path.map((index) => `[${index}]`).join(" ")}` : "";
  place.append(
    element("div", { className: "node" }, element("h3", {}, `Turn ${node.turn}${after}`),
      element("div", { className: "prompts" }, ...node.prompts.map((prompt, agent) =>
        said(`agent ${agent} was asked${node.dead[agent] ? " (its answers taught nothing)" : ""}`, prompt))),
      row),
    below);
  show();
}

function open(index) {
  const tree = trees[index];
  browser.replaceChildren();
  draw(new Map(tree.nodes.map((node) => [node.path.join(), node])), tree.nodes[0], browser);
}

if (picker) {
  trees.forEach((tree, index) => {
    const rewards = tree.nodes[0].actions.map((action) => action.reward).filter((reward) => reward !== null);
    const mean = rewards.length ? number(rewards.reduce((sum, reward) => sum + reward, 0) / rewards.length) : "-";
    const kind = tree.phase === "eval" ? "evaluation, " : "";
    const start = tree.nodes[0].prompts[0].replace(/\s+/g, " ").slice(0, 60);
    picker.append(element("option", { value: index },
      `${kind}epoch ${tree.epoch}, row ${tree.row}, reward ${mean}: ${start}`));
  });
  const step = (by) => {
    picker.selectedIndex = Math.min(trees.length - 1, Math.max(0, picker.selectedIndex + by));
    open(picker.selectedIndex);
  };
  picker.addEventListener("change", () => open(picker.selectedIndex));
  document.getElementById("previous").addEventListener("click", () => step(-1));
  document.getElementById("next").addEventListener("click", () => step(1));
  picker.selectedIndex = trees.length - 1;
  open(trees.length - 1);
}
