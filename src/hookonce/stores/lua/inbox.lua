-- The inbox: events that wait for workers. An event that is taken stays in it and is due again when
-- its lease runs out, so that nothing has to be swept after a crash.

-- A reply with more bodies than this would hold the server up, and come too late over a slow link.
local MOST_TAKEN_BYTES = 1024 * 1024
-- The worker's last take is remembered for longer than a client repeats it, or a network delays it.
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
  local counted = redis.call('HMGET', counts, 'bytes', 'seen')
  if most_bytes and tonumber(counted[1] or 0) + #body > most_bytes then return 'F' end

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
  -- Else a clock that is set back before a worker looks would go unnoticed.
  if not counted[2] or tonumber(counted[2]) < now then redis.call('HSET', counts, 'seen', text(now)) end
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

-- What is returned is the worker's from now on, for a whole lease; what has run out meanwhile is due.
local function taken_before(last, token, lease)
  local found = {}
  for _, key in ipairs(redis.call('LRANGE', last, 2, -1)) do
    local known, entry = owned(key, token), entry_of(key)
    if is_live(known) and entry then
      redis.call('HSET', base .. ':a:' .. key, 'until', text(now + lease), 'lease', text(lease))
      set_live(key, now + lease)
      set_due(key, entry, lease)
      found[#found + 1] = taken(key, entry, known.attempt, known.finished, body_of(key))
    end
  end
  return found
end

local function remember_take(last, number, token, keys)
  redis.call('DEL', last)
  redis.call('RPUSH', last, number, token, unpack(keys))
  redis.call('PEXPIRE', last, milliseconds(TAKE_SECONDS))
end

-- A network may deliver a take after the worker has repeated it and gone on: nobody reads its answer.
-- The number of the worker's take, and the token if it was made here; or nil for such a late one.
local function last_take(last, number)
  local known = redis.call('LRANGE', last, 0, 1)
  local last_number = tonumber(known[1]) or 0
  if tonumber(number) < last_number then return nil end
  return last_number, known[2]
end

-- endpoint, worker, token, number: whether there is something to take here
function ops.peek(arg)
  local endpoint, worker, token, number = arg[1], arg[2], arg[3], arg[4]
  local last = base .. ':r:' .. worker
  local last_number, last_token = last_take(last, number)
  if not last_number then return {next_due(endpoint), '0'} end
  see_worker(endpoint, worker)
  bring_forward(endpoint)
  if tonumber(number) > last_number then remember_take(last, number, '', {}) end
  return {next_due(endpoint), last_token == token and '1' or '0'}
end

-- endpoint, worker, token, number, limit, lease
function ops.take(arg)
  local endpoint, worker, token, number = arg[1], arg[2], arg[3], arg[4]
  local limit, lease = tonumber(arg[5]), tonumber(arg[6])
  local last = base .. ':r:' .. worker
  local last_number, last_token = last_take(last, number)
  if not last_number then return {next_due(endpoint), {}} end
  see_worker(endpoint, worker)
  bring_forward(endpoint)
  if last_token == token then
    local again = taken_before(last, token, lease)
    return {next_due(endpoint), again}
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
  remember_take(last, number, token, keys)
  local due = next_due(endpoint)
  -- Whoever was woken by the same put as this worker has found nothing, or less than there is.
  if limit > 0 and due == '0' then to_wake[endpoint] = true end
  return {due, found}
end

-- endpoint
function ops.due(arg)
  return next_due(arg[1])
end

-- worker, number
function ops.retire(arg)
  pass_when_full()
  redis.call('ZREM', base .. ':w', arg[1])
  redis.call('HDEL', base .. ':y', arg[1])
  remember_take(base .. ':r:' .. arg[1], arg[2], '', {})
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
  if due_of(entry) > now then
    set_due(arg[1], entry, 0)
  else -- it keeps its place
    redis.call('HSET', base .. ':i:' .. arg[1], 'delay', '0')
  end
  return '1'
end
