// What each word of the description of an image attends to. The image stays in the page: its address has the
// model and the number of beams alone.

import { chosenModel, field, numberInput, question, submit } from "../controls.js";
import { h, put } from "../dom.js";
import { picture } from "../picture.js";

export const title = "Captions";
export const route = "/ui/regions";
export const about = "Where each word of the description of an image attends.";
let image = null; // {name, data}: of the last file that was chosen



export async function render(root, parameters, api) {
  const model = await chosenModel(root, parameters, api, route);
  if (!model) return;
  const beams = numberInput("beams", parameters.number("beams", 1), { min: 1, max: 20, step: 1 });
  const file = h("input", { type: "file", accept: "image/*" });
  file.addEventListener("change", async () => {
    if (!file.files.length) return;
    image = { name: file.files[0].name, data: await coded(file.files[0]) };
    form.requestSubmit();
  });
  const form = question((values) => parameters.go(values), model.field, field("Image", file), submit("Describe"), field("Beams", beams));
  const place = h("div");
  root.append(form, place);
  if (!image) {
    put(place, h("p", { class: "note" }, "Choose an image. The model describes it, and the image is shown once for each word, bright where the model attended when it generated the word."));
    return;
  }
  const fields = { model: model.name, images: image.data, beams: parameters.number("beams", 1) };
  const { result } = await api.ask("ui/regions", fields);
  put(place, h("h2", {}, image.name), picture(result.picture));
}

// The bytes of a file in base64, which a data address has after its comma.
function coded(file) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => done(reader.result.slice(reader.result.indexOf(",") + 1)));
    reader.addEventListener("error", () => failed(reader.error));
    reader.readAsDataURL(file);
  });
}
