// Checks for pages of tests. They are counted, and the result is posted.
const passed = [];
const failed = [];

export function check(words, holds) {
  (holds ? passed : failed).push(words);
}

export async function report(tests) {
  try {
    await tests();
  } catch (error) {
    failed.push(String(error.stack ?? error));
  }
  await fetch("/result", { method: "POST", body: JSON.stringify({ passed: passed.length, failed }) });
}
