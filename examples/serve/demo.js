// Sends image files to the server, one after the other, and shows its answers. Names of files and classes are always
// inserted as text, never as HTML.
"use strict";

const TIMEOUT = 120_000;
const REASONS = {
  unknown_format: "This is neither a JPEG nor a PNG file.",
  damaged: "This file is damaged.",
  too_large: "This image has more pixels than the model's export allows.",
};
const NOT_OUTPUTS = ["attention", "attention_corners", "status"];

const find = (id) => document.getElementById(id);
const model = JSON.parse(document.body.dataset.model);
const signature = ["serving_attention", "serving_bytes"].find((name) => model.signatures.includes(name));
// A file grows by a third in base64; the rest of the request is short.
const mostBytes = Math.max(0, Math.floor((model.max_body - 200) / 4) * 3);
const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;
let queue = Promise.resolve();
let [answered, total] = [0, 0];

function base64(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.split(",")[1] ?? "");
    reader.onerror = () => reject(new Error("This file cannot be read."));
    reader.readAsDataURL(file);
  });
}

// Returns the server's response and the text of its body.
async function post(body) {
  const options = { method: "POST", headers: { "Content-Type": "application/json" }, body };
  try {
    const signal = AbortSignal.timeout(TIMEOUT);
    const response = await fetch(`/v1/models/${encodeURIComponent(model.name)}:predict`, { ...options, signal });
    return [response, await response.text()];
  } catch (error) {
    const late = error.name === "TimeoutError";
    throw new Error(late ? "The server took more than two minutes." : "The server does not answer. Is it running?");
  }
}

async function predict(file) {
  if (file.size > mostBytes) {
    throw new Error(`This file has ${megabytes(file.size)}. The server takes at most ${megabytes(mostBytes)}.`);
  }
  const body = JSON.stringify({ signature_name: signature, instances: [{ b64: await base64(file) }] });
  const start = performance.now();
  const [response, text] = await post(body);
  const milliseconds = performance.now() - start;
  let answer = {};
  try {
    answer = JSON.parse(text);
  } catch {
    // A proxy in front of the server may answer with text that is not JSON.
  }
  if (!answer.predictions) {
    throw new Error(answer.error ?? `The server answered ${response.status} ${response.statusText}.`);
  }
  const [row] = answer.predictions;
  if (row.status !== "ok") {
    throw new Error(REASONS[row.status] ?? `The server could not read this file: ${row.status}.`);
  }
  return { row, milliseconds };
}

// Returns the five largest values of each output that is a vector, for exports without class names.
function largest(row) {
  const outputs = Object.entries(row).filter(([name]) => !NOT_OUTPUTS.includes(name));
  return outputs.filter(([, values]) => typeof values[0] === "number").flatMap(([name, values]) => {
    const order = values.map((_, i) => i).sort((i, j) => values[j] - values[i]);
    return order.slice(0, 5).map((i) => ({ label: `${name} ${i}`, value: values[i].toPrecision(4) }));
  });
}

function predictionsOf(row) {
  if (!row.labels) return largest(row);
  return row.labels.map((label, i) => ({ label, score: row.scores[i], value: `${(100 * row.scores[i]).toFixed(1)}%` }));
}

function drawAttention(canvas, map, [[top, left], [bottom, right]]) {
  [canvas.height, canvas.width] = [map.length, map[0].length];
  const values = map.flat();
  const low = Math.min(...values);
  const range = Math.max(...values) - low || 1;
  const context = canvas.getContext("2d");
  const pixels = context.createImageData(canvas.width, canvas.height);
  values.forEach((value, i) => (pixels.data[4 * i + 3] = 255 * (1 - (value - low) / range)));
  context.putImageData(pixels, 0, 0);
  const place = { top, left, height: bottom - top, width: right - left };
  for (const [side, share] of Object.entries(place)) canvas.style[side] = `${100 * share}%`;
  canvas.hidden = false;
}

function newResult(file) {
  const article = find("result").content.firstElementChild.cloneNode(true);
  const image = article.querySelector("img");
  article.querySelector("h2").textContent = file.name;
  article.querySelector(".note").textContent = "Waiting …";
  image.alt = file.name;
  image.onerror = () => (image.parentElement.hidden = true);
  image.src = URL.createObjectURL(file);
  return article;
}

async function show(article, file) {
  const note = article.querySelector(".note");
  try {
    const { row, milliseconds } = await predict(file);
    const predictions = predictionsOf(row);
    for (const { label, score, value } of predictions) {
      const item = find("prediction").content.firstElementChild.cloneNode(true);
      item.querySelector(".label").textContent = label;
      item.querySelector(".value").textContent = value;
      const bar = item.querySelector(".bar");
      bar.hidden = score === undefined;
      bar.firstElementChild.style.width = `${100 * score}%`;
      article.querySelector("ol").append(item);
    }
    if (row.attention) drawAttention(article.querySelector("canvas"), row.attention, row.attention_corners);
    note.textContent = `Answered in ${Math.round(milliseconds)} ms.`;
    if (!predictions.length) note.append(" No output of this export is one vector per image, so none is shown.");
    else if (!row.labels) note.append(" This export has no class names: these are its largest outputs.");
    report(file, predictions.length ? `${predictions[0].label} ${predictions[0].value}` : note.textContent);
  } catch (error) {
    note.textContent = error.message;
    note.classList.add("error");
    report(file, error.message);
  }
}

// Updates the status text, which screen readers read when it changes.
function report(file, text) {
  answered += 1;
  find("status").textContent = `${answered} of ${total}: ${file.name}: ${text}`;
}

function add(files) {
  total += files.length;
  const articles = files.map(newResult);
  find("results").prepend(...articles);
  files.forEach((file, i) => (queue = queue.then(() => show(articles[i], file))));
}

// Adds a button with a sample image from the server.
async function addSample(name, i) {
  const response = await fetch(`/samples/${i}`);
  if (!response.ok) return;
  const blob = await response.blob();
  const file = new File([blob], name, { type: blob.type });
  const button = document.createElement("button");
  const image = document.createElement("img");
  button.type = "button";
  image.alt = name;
  image.src = URL.createObjectURL(file);
  button.append(image);
  button.addEventListener("click", () => add([file]));
  find("samples").append(button);
  find("samples").hidden = false;
}

async function addSamples() {
  for (const [i, name] of model.samples.entries()) await addSample(name, i);
}

find("name").textContent = model.name;
find("version").textContent = model.version;
document.title = `Try the model ${model.name}`;
find("limits").textContent = `JPEG or PNG, up to ${megabytes(mostBytes)} each.`;
find("attention").hidden = signature !== "serving_attention";
find("strength").addEventListener("input", ({ target }) => {
  find("percent").textContent = `${target.value}%`;
  document.documentElement.style.setProperty("--strength", target.value / 100);
});
if (signature) {
  find("files").addEventListener("change", ({ target }) => {
    add([...target.files]);
    // Clear the input, so that the same file can be chosen again.
    target.value = "";
  });
  addSamples();
} else {
  find("files").disabled = true;
  find("status").textContent = "This model takes no image files, because its images have neither 1 nor 3 channels.";
}
document.addEventListener("dragover", (event) => {
  event.preventDefault();
  if (signature) document.body.classList.add("over");
});
document.addEventListener("dragleave", (event) => {
  // If the pointer only moves from one element of the page to another, relatedTarget is that other element.
  if (!event.relatedTarget) document.body.classList.remove("over");
});
document.addEventListener("drop", (event) => {
  event.preventDefault();
  document.body.classList.remove("over");
  if (signature) add([...event.dataTransfer.files]);
});
