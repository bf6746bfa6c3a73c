// Lines over TCP: "serve PORT" gives back what it gets, "ask HOST COUNT PORT..." makes connections one after another and
// expects its line back on each.
"use strict";
const net = require("node:net");

const LIMIT = 30000; // milliseconds for an answer

function serve(port) {
  net.createServer((socket) => socket.on("error", () => {}).pipe(socket)).listen(port, "0.0.0.0");
}

function ask(host, port, line) {
  return new Promise((resolve, reject) => {
    let got = "";
    const socket = net.connect({ host, port });
    socket.setTimeout(LIMIT, () => socket.destroy(new Error("no answer")));
    socket.setEncoding("utf8");
    socket.on("connect", () => socket.end(line));
    socket.on("data", (data) => (got += data));
    socket.on("error", reject);
    socket.on("end", () => (got === line ? resolve() : reject(new Error(`sent ${line}, got ${got}`))));
  });
}

async function main(mode, first, ...words) {
  if (mode === "serve") return serve(Number(first));
  const [count, ...ports] = words.map(Number);
  for (const port of ports) {
    for (let number = 0; number < count; number++) await ask(first, port, `line ${number}\n`);
  }
}

main(...process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
