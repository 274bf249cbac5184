-- Send one request after another from a file and print what was measured as one line of JSON.
-- wrk ... -s wrk.lua URL -- FILE METHOD PATH OFFSET
--   POST: each line of FILE is a body for PATH.  GET: each line is what to add to PATH.

local lines, position, verb, target = {}, 0, "GET", "/"

function init(arguments)
  for line in io.lines(arguments[1]) do lines[#lines + 1] = line end
  verb, target, position = arguments[2], arguments[3], tonumber(arguments[4])
end

function request()
  position = position % #lines + 1
  if verb == "GET" then return wrk.format("GET", target .. lines[position]) end
  return wrk.format("POST", target, { ["Content-Type"] = "application/json" }, lines[position])
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    '{"requests": %d, "seconds": %.4f, "failed": %d, "p50_ms": %.3f, "p95_ms": %.3f, "p99_ms": %.3f}\n',
    summary.requests, summary.duration / 1e6,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout,
    latency:percentile(50) / 1e3, latency:percentile(95) / 1e3, latency:percentile(99) / 1e3))
end
