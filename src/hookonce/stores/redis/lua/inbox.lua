-- The inbox: events that wait for workers. A fetched event stays in it, and is due again when its lease ends, so
-- nothing has to be cleaned up after a crash.
-- STATE.step in a comment, such as CLAIMED.enqueue, is the entry of the table LIFE in stores/life/table.py.

-- A reply with more bodies than this would block the server, and might time out over a slow network.
local MOST_FETCHED_BYTES = 1024 * 1024
-- How long a worker's last fetch is remembered: longer than a client repeats a fetch, or a network delays it.
local FETCH_SECONDS = 60

local function body_name(key)
  return base .. ':i:' .. key
end

local function body_of(key)
  return redis.call('GET', body_name(key))
end

local function entry_of(key)
  local record = unfinished(key)
  return record and record.endpoint and record or nil
end

local function member_of(key, record)
  return record.seq .. ':' .. key
end

-- When an entry is due. If the clock was set back, the stored time is too late: use the delay from now on.
local function due_of(record)
  return math.min(record.due, now + record.delay)
end

-- Makes an entry due after a delay in seconds. The caller writes the record.
local function set_due(key, record, delay)
  record.due, record.delay = now + delay, delay
  place(base .. ':q:' .. record.endpoint, member_of(key, record), text(record.due))
  if delay <= 0 then to_wake[record.endpoint] = true end
end

local function leave_inbox(endpoint, key, member, size)
  local name = body_name(key)
  count(endpoint, -1, -(size or redis.call('STRLEN', name)))
  redis.call('DEL', name)
  place(base .. ':q:' .. endpoint, member, nil)
  place(base .. ':o:' .. endpoint, member, nil)
end

-- Removes an event from the inbox. The caller writes the record.
local function forget_entry(key, record)
  leave_inbox(record.endpoint, key, member_of(key, record), record.size)
  record.endpoint = false
end

-- Removes an entry whose body or record was deleted, or evicted by a full server. It cannot be handled, and must
-- not keep other entries from being fetched. If the sender sends the event again, it is new.
local function forget_rest(endpoint, member, record)
  local key = key_of(member)
  if not record or not record.endpoint then return leave_inbox(endpoint, key, member) end
  forget_entry(key, record)
  write_record(key, record)
end

-- The answer to the enqueue of a known event; nil if the event is to be stored.
local function refusal(record, token)
  if record.done_until then return 'D' end -- DONE.enqueue
  if record.dead_letter == 'damaged' and not is_live(record) then return 'U' end
  if sender_retries(record) then return nil end
  if is_hidden(record) then return 'W' end -- LAST_CHANCE.enqueue
  if record.dead_letter then return 'X' end -- INTERRUPTED.enqueue, DEAD.enqueue, REPLAYED.enqueue
  if record.endpoint then return record.put == token and 'S' or 'W' end -- WAITING.enqueue, FETCHED.enqueue
  return nil
end

-- Arguments: the 5 parts of a delivery, token, most events or '', most bytes or '', key.
function ops.enqueue(arg)
  local endpoint, body, token, key = arg[1], arg[5], arg[6], arg[9]
  local record = record_of(key)
  local refused = record and refusal(record, token)
  if refused == 'U' then complement(key, arg) end
  if refused then return refused end
  local most, most_bytes = tonumber(arg[7]), tonumber(arg[8])
  local counts = counts_of(endpoint)
  if most and counts.depth >= most then return 'F' end
  if most_bytes and counts.bytes + #body > most_bytes then return 'F' end

  record = record or new_record() -- FREE.enqueue
  local delay = 0
  if record.dead_letter then -- KEPT_FREE.enqueue, KEPT_CLAIMED.enqueue
    forget_dead_letter(key)
    record.dead_letter = false
  end
  if is_live(record) then -- CLAIMED.enqueue
    cap(key, record)
    delay = record.ends - now
  end
  record.endpoint, record.event_id, record.type = endpoint, arg[2], arg[3]
  record.received, record.size, record.put = arg[4], #body, token
  record.seq, record.due, record.delay = next_number(), now + delay, delay
  redis.call('MSET', name_of(key), packed(record), body_name(key), body)
  count(endpoint, 1, #body)
  -- Note the time: otherwise a clock that is set back before the first fetch would go unnoticed.
  counts.seen = math.max(counts.seen or now, now)
  set_due(key, record, delay)
  place(base .. ':o:' .. endpoint, member_of(key, record), text(now))
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

-- The clocks of a master and its replica may differ by this much.
local CLOCK_SECONDS = 1

-- After the clock was set back, entries would be due too late: shorten their delays.
local function bring_forward(endpoint)
  local counts = counts_of(endpoint)
  if counts.depth == 0 then return end
  local seen = counts.seen
  counts.seen, counts.has_changed = now, true
  if not seen or seen <= now + CLOCK_SECONDS then return end
  local queue = base .. ':q:' .. endpoint
  for _, member in ipairs(read_index('ZRANGEBYSCORE', queue, '(' .. text(now), '+inf')) do
    local key = key_of(member)
    local record = entry_of(key)
    if record then
      if is_live(record) then cap(key, record) end
      record.due = due_of(record)
      place(queue, member, text(record.due))
      write_record(key, record)
    else
      place(queue, member, text(now)) -- due now, so that the next fetch removes the lost entry
    end
  end
end

-- Seconds until the next event of an endpoint is due; '' if its inbox is empty.
local function next_due(endpoint)
  local first = read_index('ZRANGE', base .. ':q:' .. endpoint, 0, 0, 'WITHSCORES')
  if not first[1] then return '' end
  return text(math.max(0, tonumber(first[2]) - now))
end

-- The row of a fetch, for a claim that was granted or extended.
local function fetched_row(key, record, body)
  set_live(key, record.ends)
  set_due(key, record, record.lease)
  write_record(key, record)
  return {key, tostring(record.attempt), record.finished, record.outstanding, record.endpoint, record.event_id,
    record.type, record.received, body}
end

-- Extends the claims of the repeated fetch that are still live, and returns their rows.
local function fetched_before(last, token, lease)
  local found = {}
  for _, key in ipairs(redis.call('LRANGE', last, 2, -1)) do
    local record, body = owned(key, token), body_of(key)
    if is_live(record) and record.endpoint and body then
      record.ends, record.lease = now + lease, lease
      found[#found + 1] = fetched_row(key, record, body)
    end
  end
  return found
end

local function remember_fetch(last, number, token, keys)
  redis.call('DEL', last)
  redis.call('RPUSH', last, number, token, unpack(keys))
  redis.call('PEXPIRE', last, milliseconds(FETCH_SECONDS))
end

-- Notes that the worker runs, and returns the token of its last fetch from this shard, or '' if there is none. Returns
-- nil if this call is late: a network may deliver a call after the worker has repeated it, and nobody reads the reply.
local function last_fetch(last, number, endpoint, worker)
  local known = redis.call('LRANGE', last, 0, 1)
  if tonumber(number) < (tonumber(known[1]) or 0) then return nil end
  see_worker(endpoint, worker)
  bring_forward(endpoint)
  return known[2] or ''
end

-- Arguments: endpoint, worker, token, number of the call. Reply: seconds until the next event is due, or '', and '1' if
-- the shard has done a fetch with this token.
function ops.peek(arg)
  local endpoint, worker, token, number = arg[1], arg[2], arg[3], arg[4]
  local last = base .. ':r:' .. worker
  local last_token = last_fetch(last, number, endpoint, worker)
  if not last_token then return {next_due(endpoint), '0'} end
  if last_token == token then return {next_due(endpoint), '1'} end
  remember_fetch(last, number, '', {})
  return {next_due(endpoint), '0'}
end

-- Arguments: endpoint, worker, token, number of the call, limit, lease. Reply: seconds until the next event is due, or
-- '', the rows of the fetched events, and the keys of events that this call has set aside.
function ops.fetch(arg)
  local endpoint, worker, token, number = arg[1], arg[2], arg[3], arg[4]
  local limit, lease = tonumber(arg[5]), tonumber(arg[6])
  local last = base .. ':r:' .. worker
  local last_token = last_fetch(last, number, endpoint, worker)
  if not last_token then return {next_due(endpoint), {}, {}} end
  if last_token == token then
    local again = fetched_before(last, token, lease)
    return {next_due(endpoint), again, set_aside_now}
  end
  local found, keys, bytes = {}, {}, 0
  local queue = base .. ':q:' .. endpoint
  for _, member in ipairs(read_index('ZRANGEBYSCORE', queue, '-inf', text(now), 'LIMIT', 0, limit)) do
    local key = key_of(member)
    local found_both = redis.call('MGET', name_of(key), body_name(key))
    local record, body = readable(key, found_both[1]), found_both[2]
    if is_live(record) then -- FETCHED.fetch: an attempt inside a request has extended its lease
      cap(key, record)
      set_due(key, record, record.ends - now)
      write_record(key, record)
    elseif not (record and record.endpoint and body) then
      forget_rest(endpoint, member, record)
    else
      bytes = bytes + #body
      if #found > 0 and bytes > MOST_FETCHED_BYTES then break end
      grant(key, record, token, lease) -- WAITING.fetch
      keys[#keys + 1] = key
      found[#found + 1] = fetched_row(key, record, body)
    end
  end
  remember_fetch(last, number, token, keys)
  local due = next_due(endpoint)
  -- More events are due, and other workers may have looked too early: wake them again.
  if limit > 0 and due == '0' then to_wake[endpoint] = true end
  return {due, found, set_aside_now}
end

-- Arguments: endpoint.
function ops.due(arg)
  return next_due(arg[1])
end

-- Arguments: worker, number of the call.
function ops.retire(arg)
  pass_when_full()
  redis.call('ZREM', base .. ':w', arg[1])
  redis.call('HDEL', base .. ':y', arg[1])
  remember_fetch(base .. ':r:' .. arg[1], arg[2], '', {})
  return HELD
end

local function entry_reply(key, entry, body)
  return {
    entry.endpoint, entry.event_id, entry.type, entry.received, body, tostring(entry.attempt), entry.finished,
    entry.history, entry.outstanding, read_index('ZSCORE', base .. ':o:' .. entry.endpoint, member_of(key, entry)),
    entry.seq, text(due_of(entry)), is_live(entry) and '1' or '0',
  }
end

-- Arguments: key.
function ops.entry(arg)
  local entry = entry_of(arg[1])
  return entry and entry_reply(arg[1], entry, body_of(arg[1])) or 'N'
end

-- Arguments: endpoint, 5 filters (filters_of), score, member, limit. Reply: the result of page_of.
function ops.entries(arg)
  local wanted = filters_of(arg, 2)
  local index = base .. ':o:' .. arg[1]
  return page_of(index, 0, page_length_for(wanted), arg[7], arg[8], tonumber(arg[9]), function(key)
    if not is_of_event(key, wanted.event_id) then return nil end
    local entry = entry_of(key)
    if not entry or wanted.type ~= '' and entry.type ~= wanted.type then return nil end
    if tonumber(entry.received) < wanted.since or not is_outstanding(entry.outstanding, wanted.outstanding) then return nil end
    return entry_reply(key, entry, '')
  end)
end

function ops.endpoints()
  write_all()
  return redis.call('SMEMBERS', base .. ':e')
end

-- Arguments: key. Reply: '1' if the event waits, else '0'.
function ops.make_due(arg)
  local key, record = arg[1], entry_of(arg[1])
  if not record or is_live(record) then return '0' end
  if due_of(record) > now then
    set_due(key, record, 0)
  else -- it is due already: keep its place in the order
    record.delay = 0
  end
  write_record(key, record)
  return '1'
end
