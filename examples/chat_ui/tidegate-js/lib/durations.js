// Words for time: the three HTTP dates of RFC 9110 and the durations LLM providers write.
//
// Law of this file: every function is total. Whatever text arrives, the answer is a finite number
// of milliseconds or null; nothing throws. Digits are ASCII digits only.

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const MONTH = `(${MONTHS.join("|")})`;
const TIME = "([0-9]{2}):([0-9]{2}):([0-9]{2})";
const IMF = new RegExp(`^(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), ([0-9]{2}) ${MONTH} ([0-9]{4}) ${TIME} GMT$`);
const RFC850 = new RegExp(
  `^(?:Mon|Tues|Wednes|Thurs|Fri|Satur|Sun)day, ([0-9]{2})-${MONTH}-([0-9]{2}) ${TIME} GMT$`,
);
const ASCTIME = new RegExp(`^(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) ${MONTH} ([ 0-9][0-9]) ${TIME} ([0-9]{4})$`);
const RFC3339 = /^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?(?:Z|[+-][0-9]{2}:[0-9]{2})$/;

const UNIT_MS = { h: 3_600_000, m: 60_000, s: 1_000, ms: 1, us: 1e-3, "µs": 1e-3, ns: 1e-6 };
const DURATION_PART = /([0-9]+(?:\.[0-9]+)?)(h|ms|us|µs|ns|m|s)/y;

function utcMs(year, month, day, hour, minute, second) {
  // A leap second (60) counts as the second after 59; anything else out of range is no date.
  if (hour > 23 || minute > 59 || second > 60 || day < 1) return null;
  const at = Date.UTC(year, month, day, hour, minute, second);
  const back = new Date(Date.UTC(year, month, day));
  return back.getUTCMonth() === month && Number.isFinite(at) ? at : null;
}

/**
 * An HTTP date in any of its three legal forms, as epoch milliseconds.
 * @param {string} text
 * @param {number} nowMs decides the century of a two-digit year (RFC 9110 section 5.6.7)
 * @returns {number | null}
 */
export function parseHttpDate(text, nowMs) {
  let found = IMF.exec(text);
  if (found) {
    const [, day, month, year, hour, minute, second] = found;
    return utcMs(+year, MONTHS.indexOf(month), +day, +hour, +minute, +second);
  }
  found = RFC850.exec(text);
  if (found) {
    const [, day, month, shortYear, hour, minute, second] = found;
    const thisYear = new Date(nowMs).getUTCFullYear();
    let year = thisYear - (thisYear % 100) + +shortYear;
    if (year > thisYear + 50) year -= 100;
    else if (year <= thisYear - 50) year += 100;
    return utcMs(year, MONTHS.indexOf(month), +day, +hour, +minute, +second);
  }
  found = ASCTIME.exec(text);
  if (found) {
    const [, month, day, hour, minute, second, year] = found;
    return utcMs(+year, MONTHS.indexOf(month), +day, +hour, +minute, +second);
  }
  return null;
}

/**
 * An RFC 3339 timestamp (Anthropic's reset headers), as epoch milliseconds.
 * @param {string} text
 * @returns {number | null}
 */
export function parseTimestamp(text) {
  if (!RFC3339.test(text)) return null;
  const at = Date.parse(text);
  return Number.isFinite(at) ? at : null;
}

/**
 * A duration such as `6m0s`, `2m30.5s`, `500ms` or `53s`, in milliseconds.
 * @param {string} text
 * @returns {number | null}
 */
export function parseDuration(text) {
  let totalMs = 0;
  let at = 0;
  while (at < text.length) {
    DURATION_PART.lastIndex = at;
    const part = DURATION_PART.exec(text);
    if (part === null) return null;
    totalMs += Number(part[1]) * UNIT_MS[part[2]];
    at = DURATION_PART.lastIndex;
  }
  return at > 0 && Number.isFinite(totalMs) ? totalMs : null;
}

/** Every larger figure means the same to a person, and sums of it stay exact: three centuries in seconds. */
export const HUGE_SECONDS = 1e10;

/**
 * A plain decimal number: ASCII digits with at most one point. No sign and no separator. A number with an
 * exponent is believed only when it says a million or more: there the opposite mistake, to come back
 * early, would be the worse one.
 * @param {string} text
 * @returns {number | null} finite and at least 0
 */
export function parseDecimal(text) {
  if (/^[0-9]+(?:\.[0-9]+)?$/.test(text)) return Math.min(Number(text), Number.MAX_VALUE);
  const exponent = /^[0-9]+(?:\.[0-9]+)?[eE]\+?([0-9]{1,6})$/.exec(text);
  return exponent !== null && Number(exponent[1]) >= 6 ? Math.min(Number(text), Number.MAX_VALUE) : null;
}
