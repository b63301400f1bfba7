// Compares the signature by hand, answers at once, and then handles the event.
import { createHmac, timingSafeEqual } from "node:crypto";
import { createServer } from "node:http";

const key = Buffer.from(process.env.HOOKONCE_SECRETS.replace("whsec_", ""), "base64");
const seen = new Set();

function isSigned(headers, body) {
  const signed = `${headers["webhook-id"]}.${headers["webhook-timestamp"]}.${body}`;
  const expected = Buffer.from(`v1,${createHmac("sha256", key).update(signed).digest("base64")}`);
  const given = Buffer.from(headers["webhook-signature"] ?? "");
  return given.length === expected.length && timingSafeEqual(given, expected);
}

async function handle(id) {
  const answer = await fetch(process.env.HOOKONCE_EFFECTS_URL, { method: "POST", body: id });
  if (!answer.ok) throw new Error(`the effect failed: ${answer.status}`);
}

createServer((request, response) => {
  const chunks = [];
  request.on("data", (chunk) => chunks.push(chunk));
  request.on("end", () => {
    const id = request.headers["webhook-id"];
    const isGenuine = isSigned(request.headers, Buffer.concat(chunks).toString());
    response.writeHead(isGenuine ? 204 : 401).end();
    if (!isGenuine || seen.has(id)) return;
    seen.add(id);
    handle(id).catch((error) => console.error(error));
  });
}).listen(Number(process.env.PORT), "127.0.0.1");
