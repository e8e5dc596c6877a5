// Sends photos to the server that this page came from, one request each, and shows the classes that it returns.

const AT_ONCE = 3; // requests under way: more would only wait in the server's queue
const LONGEST_WAIT = 10; // seconds to wait for a busy server before the second and last attempt
const PATIENCE = 10; // seconds for the network, beyond the server's own limit
const FORM_BYTES = 2000; // the most bytes that a form adds to a photo
const SLOWEST_UPLOAD = 50_000; // bytes a second: a proxy may receive a photo slowly before the server's time begins
const MANY_CLASSES = 30; // from this number on, the list can be searched
const NAMED_CLASSES = 8; // up to this number, the sentence below the title names all classes
const FORMS = { onnx: "ONNX Runtime, float32", int8: "ONNX Runtime, int8", stablehlo: "XLA, float32" };

const byId = (id) => document.getElementById(id);
const percents = new Intl.NumberFormat("en", { style: "percent", minimumFractionDigits: 1, maximumFractionDigits: 1 });
const percent = (share) => (share > 0 && share < 0.0005 ? "< 0.1%" : percents.format(share));
const count = (number) => new Intl.NumberFormat("en").format(number);
const megabytes = (bytes) => `${count(Math.max(0.1, Math.round(bytes / 1e5) / 10))} MB`;
const milliseconds = (ms) => `${count(ms < 10 ? Math.round(ms * 10) / 10 : Math.round(ms))} ms`;
const pause = (seconds) => new Promise((resolve) => setTimeout(resolve, 1000 * seconds));

/** An error whose message is shown on the page. */
class Trouble extends Error {
  constructor(message, detail = "", again = false) {
    super(message);
    this.detail = detail; // a second sentence
    this.again = again; // whether trying again may help
  }
}

function make(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}

// ---- the server -------------------------------------------------------------------------------------------------

let bodyLimit = Infinity; // bytes
let requestSeconds = 30; // the server's own limit

/** The response and its JSON; throws Trouble if none comes in time, AbortError once `signal` is aborted. */
async function ask(url, seconds, signal = new AbortController().signal, options = {}) {
  const stop = new AbortController(); // AbortSignal.any is too new for some phones
  const end = () => stop.abort();
  let late = false;
  const timer = setTimeout(() => { late = true; end(); }, 1000 * seconds);
  signal.addEventListener("abort", end);
  try {
    signal.throwIfAborted();
    const response = await fetch(url, { ...options, signal: stop.signal });
    const reply = await response.json().catch((error) => {
      if (response.ok) throw error; // the connection ended within the answer
      return {}; // a proxy's own page
    });
    stop.signal.throwIfAborted(); // aborted while the answer arrived
    return { response, reply };
  } catch (error) {
    if (signal.aborted) throw error;
    if (late) throw tookTooLong();
    // A server that refuses a large file may close the connection before all of it is sent: there is no answer then.
    throw new Trouble("The server cannot be reached.", "Is it still running?", true);
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", end);
  }
}

async function getJson(url) {
  const { response, reply } = await ask(url, requestSeconds + PATIENCE);
  if (!response.ok) throw new Trouble(reply.error ?? `The server answered ${response.status}.`);
  return reply;
}

/** Throws Trouble for a folder, an empty file, and a file that was moved since it was chosen. */
async function tryToRead(file) {
  const part = file.size === 0 ? file : file.slice(0, 1); // Firefox gives a folder the size 0
  await part.arrayBuffer().catch(() => {
    throw new Trouble("This cannot be read from your disk.", "Choose single photos, not folders.");
  });
  if (file.size === 0) throw new Trouble("This file is empty.");
}

/** Sends one request. Returns the answer of a busy server like any other. */
async function post(model, file, signal) {
  await tryToRead(file); // first, because in Firefox a request never ends if its file cannot be read
  const body = new FormData();
  body.append("images", file, file.name);
  const seconds = requestSeconds + PATIENCE + file.size / SLOWEST_UPLOAD;
  return ask(`v1/models/${encodeURIComponent(model)}:classify`, seconds, signal, { method: "POST", body });
}

/** The classes of a photo, the model's version, and how long the server took; throws Trouble. */
async function classify(model, file, signal) {
  if (file.size > bodyLimit) throw tooLarge(file);
  let { response, reply } = await post(model, file, signal);
  if (response.status === 503) {
    await pause(Math.min(Number(response.headers.get("Retry-After")) || 1, LONGEST_WAIT));
    ({ response, reply } = await post(model, file, signal));
  }
  if (response.status === 404) listing = undefined; // so that the next try asks for the models again
  if (!response.ok) throw refusal(response.status, reply, file);
  return { classes: reply.predictions[0].classes, version: reply.version, ms: reply.ms };
}

function tooLarge(file) {
  const [size, limit] = [megabytes(file.size), megabytes(bodyLimit)];
  let detail = `It is ${size}.`;
  const isNear = size === limit || file.size < bodyLimit; // too large only with the form around it
  if (isNear) detail = `It is ${size}, slightly more than the server accepts.`;
  else if (bodyLimit < Infinity) detail += ` The server accepts up to ${limit}.`;
  return new Trouble("This file is too large.", detail);
}

function tookTooLong() {
  return new Trouble("The server took too long.", "It may be busy.", true);
}

function refusal(status, { error, predictions }, file) {
  if (status === 404) return new Trouble("The server's models have changed.", "", true);
  if (status === 413 && predictions) return new Trouble("This photo is too large.", error); // in pixels
  if (status === 413 && file.size + FORM_BYTES < bodyLimit) {
    return new Trouble("This file is too large.", `A proxy in front of the server refuses ${megabytes(file.size)}.`);
  }
  if (status === 413) return tooLarge(file);
  if (status === 503) return new Trouble("The server is busy.", "Wait a moment.", true);
  if (status === 504) return tookTooLong();
  if (status === 400 || status === 415) return new Trouble("This cannot be read as a photo.", error);
  return new Trouble("The server could not answer.", error ?? `Its status was ${status}.`, true);
}

// ---- photos -----------------------------------------------------------------------------------------------------

const photos = new Set(); // {file, node, answer, stop: AbortController of the newest request}
const queue = [];
let underWay = 0;

const HINT = byId("hint").textContent;

function addPhotos(files) {
  byId("hint").textContent = HINT;
  const added = [...files].map((file) => showPhoto(file));
  byId("photos").prepend(...added.map((photo) => photo.node));
  byId("results").hidden = photos.size === 0;
  added.forEach(askAbout);
}

function showPhoto(file) {
  const photo = { file, answer: make("div"), stop: new AbortController() };
  const remove = make("button", { type: "button", textContent: "✕", ariaLabel: `Remove ${file.name}` });
  remove.addEventListener("click", () => removePhoto(photo));
  photo.title = make("h3", { textContent: file.name, tabIndex: -1 });
  const top = make("header", {}, photo.title, remove);
  photo.node = make("li", { className: "photo" }, preview(file), make("div", { className: "answer" }, top, photo.answer));
  photos.add(photo);
  return photo;
}

function preview(file) {
  const box = make("div", { className: "picture" });
  const image = make("img", { alt: "", decoding: "async", src: URL.createObjectURL(file) });
  image.addEventListener("load", () => URL.revokeObjectURL(image.src));
  image.addEventListener("error", () => { // not a photo, or of a format that this browser cannot show
    URL.revokeObjectURL(image.src);
    const kind = file.name.includes(".") ? file.name.split(".").pop().toUpperCase().slice(0, 6) : "?";
    image.replaceWith(make("span", { className: "kind", ariaHidden: "true", textContent: kind }));
  });
  box.append(image);
  return box;
}

function removePhoto(photo) {
  const next = photo.node.nextElementSibling ?? photo.node.previousElementSibling;
  photo.stop.abort();
  photos.delete(photo);
  photo.node.remove();
  byId("results").hidden = photos.size === 0;
  (next?.querySelector("header button") ?? byId("files")).focus();
}

function removeAll() {
  for (const photo of [...photos]) removePhoto(photo);
}

function askAbout(photo) {
  photo.stop.abort(); // a request to an earlier model
  photo.stop = new AbortController();
  photo.answer.className = "state waiting";
  photo.answer.replaceChildren(
    make("p", { className: "looking", textContent: "Looking …" }),
    make("div", { className: "track" }, make("span", { className: "fill" })),
  );
  if (!queue.includes(photo)) queue.push(photo);
  workOff();
}

function workOff() {
  while (underWay < AT_ONCE && queue.length) {
    const photo = queue.shift();
    if (!photos.has(photo)) continue;
    underWay += 1;
    answer(photo).finally(() => {
      underWay -= 1;
      workOff();
    });
  }
}

async function answer(photo) {
  const { signal } = photo.stop;
  try {
    await listModels(); // the user may add a photo before they arrive
    const model = byId("model").value;
    const begin = performance.now();
    const { classes, version, ms } = await classify(model, photo.file, signal);
    if (signal.aborted) return;
    showClasses(photo, model, classes, ms, performance.now() - begin);
    if (model === byId("model").value) renewCard(model, version);
  } catch (error) {
    if (!signal.aborted) showTrouble(photo, error);
  }
}

function showClasses(photo, model, classes, ms, total) {
  const rows = classes.map((found) => {
    const fill = make("span", { className: "fill" });
    const share = make("span", { className: "share", textContent: percent(found.probability) });
    const track = make("span", { className: "track", ariaHidden: "true" }, fill);
    requestAnimationFrame(() => { fill.style.width = `${100 * found.probability}%`; });
    return make("li", {}, make("span", { textContent: found.class }), share, track);
  });
  const which = byId("model").options.length > 1 ? `${model} · ` : "";
  const time = `${which}${milliseconds(ms)} on the server, ${milliseconds(total)} in all`;
  photo.answer.className = "state tops";
  const list = make("ul", { role: "list" }, ...rows);
  photo.answer.replaceChildren(list, make("p", { className: "small", textContent: time }));
  say(`${photo.file.name}: ${classes[0].class}, ${percent(classes[0].probability)}`);
}

function showTrouble(photo, error) {
  if (!(error instanceof Trouble)) console.error(error);
  const trouble = error instanceof Trouble ? error : new Trouble("Something went wrong on this page.", "", true);
  const parts = [make("strong", { textContent: trouble.message }), make("span", { textContent: trouble.detail ?? "" })];
  if (trouble.again) {
    const button = make("button", { type: "button", textContent: "Try again" });
    button.addEventListener("click", () => {
      photo.title.focus(); // not the button that removes it, which a second key press would activate
      askAbout(photo);
    });
    parts.push(make("div", {}, button));
  }
  photo.answer.className = "state error";
  photo.answer.replaceChildren(...parts);
  if (document.activeElement === photo.title) photo.answer.querySelector("button")?.focus();
  say(`${photo.file.name}: ${sentences(trouble)}`);
}

const sentences = ({ message, detail }) => [message, detail].filter(Boolean).join(" ");

/** Announces a sentence to users of screen readers. */
function say(sentence) {
  const said = byId("said");
  said.append(make("p", { textContent: sentence }));
  while (said.children.length > 20) said.firstChild.remove();
}

// ---- the model --------------------------------------------------------------------------------------------------

let listing; // a promise; undefined before the first try and after a failed one
let cardVersion; // of the card that is shown or asked for; undefined until a first answer tells it, null if none came
let toldNames; // the model and its classes, as JSON

/** Asks the server for its models, once. */
function listModels() {
  listing ??= showModels().catch((error) => {
    listing = undefined;
    throw error;
  });
  return listing;
}

async function showModels() {
  const { models, limits } = await getJson("v1/models");
  bodyLimit = limits?.body_bytes ?? Infinity;
  requestSeconds = limits?.request_seconds ?? requestSeconds;
  const chosen = byId("model").value;
  byId("model").replaceChildren(...models.map(({ name }) => make("option", { value: name, textContent: name })));
  if (models.some(({ name }) => name === chosen)) byId("model").value = chosen;
  byId("choice").hidden = models.length < 2;
  askForCard(byId("model").value); // photos need not wait for it
}

async function showCard(name) {
  const { model_card: card } = await getJson(`v1/models/${encodeURIComponent(name)}/metadata`);
  if (name !== byId("model").value) return; // another one was chosen in the meantime
  cardVersion = card.version;
  const names = card.class_names;
  const known = names.length <= NAMED_CLASSES ? `: ${names.join(", ")}` : "";
  byId("about").textContent = `${name} knows ${count(names.length)} classes${known}.`;
  byId("facts").replaceChildren(...facts(card).map(([what, text]) =>
    make("div", {}, make("dt", { textContent: what }), make("dd", { textContent: text }))));
  const told = JSON.stringify([name, names]);
  if (told !== toldNames) showClassNames(names); // this closes the list
  toldNames = told;
  byId("card").hidden = false;
}

/** Shows the card of a model, of this version if it is known, and no other card if that fails. */
function askForCard(name, version) {
  cardVersion = version; // so that it is asked for only once
  showCard(name).catch((error) => {
    if (name !== byId("model").value) return; // another one was chosen in the meantime
    cardVersion = null; // so that the next answer asks again
    byId("card").hidden = true;
    showFailure(error);
  });
}

/** Shows the card of the version that has answered, if a newer one has taken over, or if no card could be shown. */
function renewCard(name, version) {
  if (cardVersion !== undefined && cardVersion !== version) askForCard(name, version);
}

/** The facts on the card, as [what, text]. */
function facts(card) {
  return [
    ["Name", card.name],
    ["Network", joined([card.network, card.image_size && `${card.image_size} × ${card.image_size} px`])],
    ["Parameters", joined([card.parameters && count(card.parameters), pruned(card.density)])],
    ["Accuracy", accuracy(card)],
    ["Photos", joined(Object.entries(card.data ?? {}).map(([split, number]) => `${count(number)} ${split}`))],
    ["Training", joined([card.step && `${count(card.step)} steps`, day(card.trained)])],
    ["Exported", joined([day(card.exported), card.package_version && `resnet-tpu ${card.package_version}`])],
    ["Version", card.version],
    ["Runs on", FORMS[card.form] ?? card.form],
  ].filter(([, text]) => text);
}

const joined = (texts) => texts.filter(Boolean).join(", ");
const day = (time) => time?.slice(0, 10);
const pruned = (density) => (density < 1 ? `${percent(1 - density)} of the weights pruned` : "");

function accuracy({ metrics = {}, data = {}, class_names: names }) {
  const { split, top_1_accuracy: first, top_5_accuracy: firstFive } = metrics;
  if (!Number.isFinite(first)) return "";
  const five = names.length > 5 && Number.isFinite(firstFive) ? `; ${percent(firstFive)} in the top five` : "";
  return `${percent(first)} of ${data[split] ? `${count(data[split])} ` : ""}${split} photos${five}`;
}

function showClassNames(names) {
  const details = byId("classes");
  details.querySelector("summary").textContent = `All ${count(names.length)} classes`;
  const search = byId("filter").querySelector("input");
  let wasFound = true;
  const list = () => {
    const wanted = search.value.trim().toLowerCase();
    const found = names.filter((name) => name.toLowerCase().includes(wanted));
    const rows = found.length ? found : ["No class has this in its name."];
    details.querySelector("ul").replaceChildren(...rows.map((row) => make("li", { textContent: row })));
    if (wasFound && !found.length) say(rows[0]);
    wasFound = found.length > 0;
  };
  byId("filter").hidden = names.length < MANY_CLASSES;
  search.value = "";
  search.oninput = list;
  details.open = false;
  details.ontoggle = list; // only when opened: there may be thousands
}

function chooseModel() {
  askForCard(byId("model").value);
  for (const photo of photos) askAbout(photo); // again, with the other model
}

// ---- ways in ----------------------------------------------------------------------------------------------------

function takeFrom(input) {
  input.addEventListener("change", () => {
    addPhotos(input.files);
    input.value = ""; // so that the same photo can be chosen again
  });
}

/** Adds dropped or pasted files, and says so if there are none: WebKitGTK, as in GNOME Web, passes none on. */
function takeGiven(event, { files }) {
  addPhotos(files);
  if (files.length > 0 || byId("filter").contains(event.target)) return; // text may be pasted there
  byId("hint").textContent = "Your browser did not pass on a file. Choose photos with the button.";
  say(byId("hint").textContent);
}

function takeDrops() {
  const dragging = (is) => document.body.classList.toggle("dragging", is);
  let over; // the element entered last: WebKit does not say where a leaving drag goes
  addEventListener("dragenter", (event) => { over = event.target; });
  addEventListener("dragover", (event) => {
    event.preventDefault();
    dragging(true);
  });
  addEventListener("dragleave", (event) => event.target === over && dragging(false));
  addEventListener("drop", (event) => {
    event.preventDefault();
    dragging(false);
    takeGiven(event, event.dataTransfer);
  });
  addEventListener("paste", (event) => takeGiven(event, event.clipboardData));
}

function start() {
  takeFrom(byId("files"));
  takeFrom(byId("shot"));
  takeDrops();
  byId("clear").addEventListener("click", removeAll);
  byId("model").addEventListener("change", chooseModel);
  listModels().catch(showFailure);
}

function showFailure(error) {
  byId("about").textContent = sentences(error);
  say(sentences(error));
}

start();
