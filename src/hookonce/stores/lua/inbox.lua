-- The inbox: events that wait for workers. An event that is taken stays in it and is due again when
-- its lease runs out, so that nothing has to be swept after a crash.

-- A reply with more bodies than this would hold the server and the client up.
local MOST_TAKEN_BYTES = 8 * 1024 * 1024
-- The worker's last take is remembered for longer than a client repeats it.
local TAKE_SECONDS = 60
local WORKER_SECONDS = 30

local ENTRY = {'endpoint', 'event_id', 'type', 'received', 'seq', 'delay'}

local function entry_of(key)
  local found = redis.call('HMGET', base .. ':i:' .. key, unpack(ENTRY))
  if not found[1] then return nil end
  return {
    endpoint = found[1], event_id = found[2], type = found[3], received = found[4],
    member = found[5] .. ':' .. key, seq = found[5], delay = tonumber(found[6]),
  }
end

-- An entry cannot be due later than it was put off, unless the clock was set back.
local function due_of(entry)
  local due = tonumber(redis.call('ZSCORE', base .. ':q:' .. entry.endpoint, entry.member))
  return math.min(due, now + entry.delay)
end

local function set_due(key, entry, delay)
  redis.call('HSET', base .. ':i:' .. key, 'delay', text(delay))
  redis.call('ZADD', base .. ':q:' .. entry.endpoint, text(now + delay), entry.member)
  if delay <= 0 then to_wake[entry.endpoint] = true end
end

local function forget_entry(key)
  local name, entry = base .. ':i:' .. key, entry_of(key)
  if not entry then return end
  local endpoint, size = entry.endpoint, redis.call('HSTRLEN', name, 'body')
  redis.call('DEL', name)
  redis.call('ZREM', base .. ':q:' .. endpoint, entry.member)
  redis.call('ZREM', base .. ':o:' .. endpoint, entry.member)
  if redis.call('EXISTS', base .. ':q:' .. endpoint) == 0 then
    redis.call('DEL', base .. ':n:' .. endpoint)
    redis.call('SREM', base .. ':e', endpoint)
  else
    redis.call('HINCRBY', base .. ':n:' .. endpoint, 'bytes', -size)
  end
end

-- delivery[6], token, most events or '', most bytes or '', key
function ops.put(arg)
  local endpoint, body, token, key = arg[1], arg[6], arg[7], arg[10]
  local name = base .. ':i:' .. key
  local known
  if not is_new(key) then
    if is_done(key) then return 'D' end
    known = attempt_of(key)
    local kept = kept_flag(key)
    if kept then return kept == '1' and is_live(known) and 'W' or 'X' end
    local its_token = redis.call('HGET', name, 'put')
    if its_token then return its_token == token and 'S' or 'W' end
  end
  local queue, counts = base .. ':q:' .. endpoint, base .. ':n:' .. endpoint
  local most, most_bytes = tonumber(arg[8]), tonumber(arg[9])
  if most and redis.call('ZCARD', queue) >= most then return 'F' end
  if most_bytes then
    local bytes = tonumber(redis.call('HGET', counts, 'bytes') or 0)
    if bytes + #body > most_bytes then return 'F' end
  end

  local delay = 0
  if is_live(known) then
    cap(key, known)
    delay = known.ends - now
  end
  local seq = next_number()
  local member = seq .. ':' .. key
  redis.call('HSET', name, 'endpoint', endpoint, 'event_id', arg[2], 'received', arg[5],
    'body', body, 'put', token, 'seq', seq, 'delay', text(delay))
  if arg[3] == '1' then redis.call('HSET', name, 'type', arg[4]) end
  redis.call('ZADD', queue, text(now + delay), member)
  redis.call('ZADD', base .. ':o:' .. endpoint, text(now), member)
  if delay <= 0 then to_wake[endpoint] = true end
  redis.call('HINCRBY', counts, 'bytes', #body)
  redis.call('SADD', base .. ':e', endpoint)
  if known then redis.call('PERSIST', base .. ':a:' .. key) end
  return 'S'
end

local function see_worker(endpoint, worker)
  pass_when_full()
  local seen, places = base .. ':w', base .. ':y'
  redis.call('ZADD', seen, text(now), worker)
  redis.call('HSET', places, worker, endpoint)
  for _, silent in ipairs(redis.call('ZRANGEBYSCORE', seen, '-inf', text(now - WORKER_SECONDS))) do
    redis.call('ZREM', seen, silent)
    redis.call('HDEL', places, silent)
  end
  redis.call('PEXPIRE', seen, milliseconds(2 * WORKER_SECONDS))
  redis.call('PEXPIRE', places, milliseconds(2 * WORKER_SECONDS))
end

-- Clocks of servers that replace each other differ by so much.
local CLOCK_SECONDS = 1

-- After the clock was set back nothing would be due for as long as it was set back.
local function bring_forward(endpoint)
  local counts = base .. ':n:' .. endpoint
  local seen = redis.call('HGET', counts, 'seen')
  if not seen and redis.call('EXISTS', counts) == 0 then return end
  redis.call('HSET', counts, 'seen', text(now))
  if not seen or tonumber(seen) <= now + CLOCK_SECONDS then return end
  local queue = base .. ':q:' .. endpoint
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', queue, '(' .. text(now), '+inf')) do
    local key = key_of(member)
    local known = attempt_of(key)
    if is_live(known) then cap(key, known) end
    redis.call('ZADD', queue, text(due_of(entry_of(key))), member)
  end
end

-- Seconds until the first of the queue is due; '' where it is empty.
local function next_due(endpoint)
  local first = redis.call('ZRANGE', base .. ':q:' .. endpoint, 0, 0, 'WITHSCORES')
  if not first[1] then return '' end
  return text(math.max(0, tonumber(first[2]) - now))
end

local function taken(key, entry, attempt, finished, body)
  return {key, attempt, finished, entry.endpoint, entry.event_id, entry.type, entry.received, body}
end

local function body_of(key)
  return redis.call('HGET', base .. ':i:' .. key, 'body')
end

local function taken_before(last, token)
  local found = {}
  for _, key in ipairs(redis.call('LRANGE', last, 1, -1)) do
    local known, entry = owned(key, token), entry_of(key)
    if known and entry then
      found[#found + 1] = taken(key, entry, known.attempt, known.finished, body_of(key))
    end
  end
  return found
end

-- endpoint, worker, token: whether there is something to take here
function ops.peek(arg)
  local endpoint, worker = arg[1], arg[2]
  see_worker(endpoint, worker)
  bring_forward(endpoint)
  local last = base .. ':r:' .. worker
  local is_repeat = redis.call('LINDEX', last, 0) == arg[3]
  return {next_due(endpoint), is_repeat and '1' or '0'}
end

-- endpoint, worker, token, limit, lease
function ops.take(arg)
  local endpoint, worker, token = arg[1], arg[2], arg[3]
  local limit, lease = tonumber(arg[4]), tonumber(arg[5])
  see_worker(endpoint, worker)
  bring_forward(endpoint)
  local last = base .. ':r:' .. worker
  if redis.call('LINDEX', last, 0) == token then
    return {next_due(endpoint), taken_before(last, token)}
  end
  local found, keys, bytes = {}, {}, 0
  local queue = base .. ':q:' .. endpoint
  local members = {}
  if limit > 0 then
    members = redis.call('ZRANGEBYSCORE', queue, '-inf', text(now), 'LIMIT', 0, limit)
  end
  for _, member in ipairs(members) do
    local key = key_of(member)
    local entry, known = entry_of(key), attempt_of(key)
    if is_live(known) then
      cap(key, known)
      set_due(key, entry, known.ends - now)
    else
      local body = body_of(key)
      bytes = bytes + #body
      if #found > 0 and bytes > MOST_TAKEN_BYTES then break end
      local attempt, finished = grant(key, known, token, lease, true)
      set_due(key, entry, lease)
      keys[#keys + 1] = key
      found[#found + 1] = taken(key, entry, attempt, finished, body)
    end
  end
  if #keys > 0 then
    redis.call('DEL', last)
    redis.call('RPUSH', last, token, unpack(keys))
    redis.call('PEXPIRE', last, milliseconds(TAKE_SECONDS))
  end
  local due = next_due(endpoint)
  -- Whoever was woken by the same put as this worker has found nothing, or less than there is.
  if limit > 0 and due == '0' then to_wake[endpoint] = true end
  return {due, found}
end

-- endpoint
function ops.due(arg)
  return next_due(arg[1])
end

-- worker
function ops.retire(arg)
  redis.call('ZREM', base .. ':w', arg[1])
  redis.call('HDEL', base .. ':y', arg[1])
  redis.call('DEL', base .. ':r:' .. arg[1])
  return HELD
end

local function entry_reply(key, with_body)
  local entry = entry_of(key)
  if not entry then return nil end
  local known = attempt_of(key)
  return {
    entry.endpoint, entry.event_id, entry.type, entry.received,
    with_body and body_of(key) or '', text(due_of(entry)), is_live(known) and '1' or '0',
    tostring(known and known.attempt or 0), known and known.finished or '',
    known and known.history or '',
    redis.call('ZSCORE', base .. ':o:' .. entry.endpoint, entry.member), entry.seq,
  }
end

-- key
function ops.entry(arg)
  return entry_reply(arg[1], true) or 'N'
end

-- endpoint, has_type, type, offset, limit: one stretch of the list
function ops.entries(arg)
  local offset, limit, stretch = tonumber(arg[4]), tonumber(arg[5]), 200
  local index = base .. ':o:' .. arg[1]
  local members = redis.call('ZRANGE', index, offset, offset + stretch - 1)
  local found = {}
  for n, member in ipairs(members) do
    if #found == limit then return {tostring(offset + n - 1), found} end
    local key = key_of(member)
    if arg[2] == '0' or redis.call('HGET', base .. ':i:' .. key, 'type') == arg[3] then
      found[#found + 1] = entry_reply(key, false)
    end
  end
  return {#members < stretch and '-' or tostring(offset + stretch), found}
end

function ops.endpoints()
  return redis.call('SMEMBERS', base .. ':e')
end

-- key
function ops.hasten(arg)
  local entry = entry_of(arg[1])
  if not entry or is_live(attempt_of(arg[1])) then return '0' end
  set_due(arg[1], entry, 0)
  return '1'
end
