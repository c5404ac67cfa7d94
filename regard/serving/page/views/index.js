// The views, by the names that their addresses have, in the order of the navigation.
//
// A view is a module with
//
//     title    what the navigation and its heading call it
//     route    the path that a model must have to be shown, such as "/ui/tokens"; null: any model
//     about    a sentence for its card on the home page
//     preview  async (box, model, api): draws a small picture into the card's box, which has a fixed height
//     there    async (api): whether there is something to show; left out: a model that has the route is enough
//     render   async (root, parameters, api, views): draws into the empty element `root`
//
// `parameters` (parameters.js) is its state in the address: a control that changes what is drawn
// calls `parameters.go({head: 3})`, which calls `render` again, or draws itself and calls
// `parameters.set(...)`. `api` (api.js) asks the server; an error of it that `render` lets through
// is shown below what is drawn. `controls.js` has controls with labels; what only makes sense on the
// live page has the class `only-live` and is left out of saved files. `views` is the table below.

import * as attention from "./attention.js";
import * as beam from "./beam.js";
import * as captions from "./captions.js";
import * as cells from "./cells.js";
import * as home from "./home.js";
import * as lessons from "./lessons.js";
import * as map from "./map.js";
import * as next from "./next.js";
import * as side_by_side from "./side_by_side.js";
import * as masked_heads from "./masked_heads.js";
import * as tokens from "./tokens.js";

export const views = new Map(
  Object.entries({ home, attention, side_by_side, masked_heads, next, beam, tokens, captions, cells, map, lessons }),
);
