/** An error. `code` is one of a fixed set of words, which README.md lists. `message` says what was wrong and what was expected. */
export class OctaplexError extends Error {
  constructor(code, message, options) {
    super(message, options);
    this.name = "OctaplexError";
    this.code = code;
  }
}

const NONE = 2 ** 32 - 1; // stands for a missing number

/** Returns a whole number for the module. Returns `missing` for undefined where that is allowed. */
export function whole(value, name, missing) {
  if (value === undefined && missing !== undefined) return missing;
  if (Number.isInteger(value) && value >= 0 && value < NONE) return value;
  throw new OctaplexError("Range", `${name}: a whole number from 0 to ${NONE - 1}, got ${show(value)}`);
}

/** Throws for options that do not exist, because a misspelt one would otherwise be ignored. */
export function known(options, names, what) {
  if (options === null || typeof options !== "object")
    throw new OctaplexError("Type", `${what}: an object, got ${show(options)}`);
  for (const name of Object.keys(options))
    if (!names.includes(name))
      throw new OctaplexError("UnknownOption", `${what} have no ${name}; they have ${names.join(", ")}`);
}

/** Returns a value for a message. */
export function show(value) {
  if (typeof value === "number") return String(value); // JSON has neither NaN nor infinity
  const tag = Object.prototype.toString.call(value).slice(8, -1);
  return ["Number", "String", "Boolean"].includes(tag) ? JSON.stringify(value) ?? String(value) : tag;
}
