-- wrk's part: requests out of prepared files, a share of them writes, and the percentiles as one line of JSON.
-- Arguments: path of the query, file of query bodies, path of the write, file of write bodies, writes in a thousand.
local thread_number = 0

function setup(thread)
  thread:set("number", thread_number)
  thread_number = thread_number + 1
end

local function lines(path)
  local all = {}
  for line in io.lines(path) do all[#all + 1] = line end
  return all
end

function init(args)
  query_path, queries = args[1], lines(args[2])
  write_path, writes = args[3], lines(args[4])
  share = tonumber(args[5])
  math.randomseed(17 + number)
  -- Every thread of every run writes ids of its own.
  next_id = 2000000000 + number * 10000000 + math.random(0, 9000000)
  headers = { ["Content-Type"] = "application/json" }
end

function request()
  if math.random(1000) <= share then
    next_id = next_id + 1
    local body = writes[math.random(#writes)]:gsub("@ID@", tostring(next_id), 1)
    return wrk.format("PUT", write_path, headers, body)
  end
  return wrk.format("POST", query_path, headers, queries[math.random(#queries)])
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    'RESULT {"requests": %d, "seconds": %.3f, "p50_ms": %.3f, "p90_ms": %.3f, "p99_ms": %.3f, "max_ms": %.3f, "refused": %d, "broken": %d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(90) / 1e3,
    latency:percentile(99) / 1e3, latency.max / 1e3, errors.status, errors.connect + errors.read + errors.write + errors.timeout))
end
