"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const table = document.createElement("table");
for (const [name, values] of Object.entries(data.steps)) {
  const row = table.insertRow();
  for (const value of [name, ...values]) row.insertCell().textContent = value;
}
document.querySelector("main").append(table);
