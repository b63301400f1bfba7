-- The records for reconcile: ignored types and accepted gaps; see stores/reconciling.py.

local function accepted_name(key)
  return base .. ':c:' .. key
end

local function is_accepted(name)
  return tonumber(redis.call('GET', name) or '0') > now
end

-- A member of BASE:f:<endpoint> is the first second of a span, a colon and the type; the score is the last second.
-- Arguments: endpoint, the largest gap in seconds between spans that are joined, the number of spans to keep, then type,
-- first and last second of each new span.
function ops.note_ignored(arg)
  local name, apart = base .. ':f:' .. arg[1], tonumber(arg[2])
  local known, earliest = {}, math.huge
  for n = 4, #arg, 3 do
    known[arg[n]], earliest = {}, math.min(earliest, tonumber(arg[n + 1]))
  end
  local near = redis.call('ZRANGEBYSCORE', name, text(earliest - apart), '+inf', 'WITHSCORES')
  for n = 1, #near, 2 do
    local first, event_type = string.match(near[n], '^(%d+):(.*)$')
    if known[event_type] then known[event_type][near[n]] = {tonumber(first), tonumber(near[n + 1])} end
  end
  for n = 4, #arg, 3 do
    local event_type, first, last = arg[n], tonumber(arg[n + 1]), tonumber(arg[n + 2])
    for member, span in pairs(known[event_type]) do
      if span[1] <= tonumber(arg[n + 2]) + apart and span[2] >= tonumber(arg[n + 1]) - apart then
        first, last = math.min(first, span[1]), math.max(last, span[2])
        redis.call('ZREM', name, member)
        known[event_type][member] = nil
      end
    end
    local member = text(first) .. ':' .. event_type
    redis.call('ZADD', name, text(last), member)
    known[event_type][member] = {first, last}
  end
  redis.call('ZREMRANGEBYSCORE', name, '-inf', text(now - retention))
  redis.call('ZREMRANGEBYRANK', name, 0, -1 - tonumber(arg[3]))
  redis.call('PEXPIRE', name, milliseconds(retention))
  return '1'
end

-- Arguments: endpoint. Reply: all spans with their ends.
function ops.ignored(arg)
  return redis.call('ZRANGEBYSCORE', base .. ':f:' .. arg[1], '(' .. text(now - retention), '+inf', 'WITHSCORES')
end

-- Arguments: keys of events.
function ops.accept(arg)
  for _, key in ipairs(arg) do
    redis.call('SET', accepted_name(key), text(now + retention), 'PX', milliseconds(retention))
  end
  return '1'
end

-- Arguments: keys of events. Reply: for each '1' if its gap is accepted, else ''.
function ops.accepted(arg)
  local found = {}
  for number, key in ipairs(arg) do
    found[number] = is_accepted(accepted_name(key)) and '1' or ''
  end
  return found
end
