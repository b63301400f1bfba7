-- Dead letters, and deliveries that become dead letters if their claim ends unsettled.
-- STATE.step in a comment, such as CLAIMED.enqueue, is the entry of the table LIFE in stores/life/table.py.

-- A kept delivery is not a dead letter while an attempt at its event is running.
local function is_kept(record)
  return record.dead_letter and record.dead_letter ~= 'dead' and record.dead_letter ~= 'damaged'
end

-- Whether the sender may still send the event again. This state ends by itself: KEPT_FREE.end, KEPT_CLAIMED.end.
local function sender_retries(record)
  return type(record.dead_letter) == 'number' and now < record.dead_letter
end

local function is_hidden(record)
  return is_kept(record) and is_live(record)
end

local function is_visible(record)
  return record ~= nil and record.dead_letter and not is_hidden(record)
end

-- Writes a dead letter or a kept delivery. `state` becomes the record's dead_letter. `delivery` is {endpoint, event_id,
-- type, received, body}, or nil if it is stored already. The caller writes the record.
local function write_dead_letter(key, record, state, delivery, reason, failure)
  local name, at = base .. ':l:' .. key, text(tonumber(state) or now)
  local known = redis.call('HMGET', name, 'endpoint', 'seq')
  local endpoint, seq = known[1], known[2]
  if not endpoint then
    endpoint, seq = delivery[1], next_number()
    redis.call('HSET', name, 'endpoint', endpoint, 'event_id', delivery[2], 'type', delivery[3],
      'received', delivery[4], 'body', delivery[5], 'seq', seq)
  end
  redis.call('HSET', name, 'at', at, 'reason', reason, 'error', failure)
  for _, index in ipairs({base .. ':x', base .. ':x:' .. endpoint}) do
    place(index, seq .. ':' .. key, at)
  end
  if record.dead_letter == 'damaged' then redis.call('SREM', base .. ':b', key) end
  record.dead_letter = state
end

local function forget_dead_letter(key)
  local name = base .. ':l:' .. key
  local known = redis.call('HMGET', name, 'endpoint', 'seq')
  redis.call('DEL', name)
  redis.call('SREM', base .. ':b', key)
  if not known[1] then return end
  place(base .. ':x', known[2] .. ':' .. key, nil)
  place(base .. ':x:' .. known[1], known[2] .. ':' .. key, nil)
end

-- Adds the delivery to a dead letter whose record could not be read, if its body is not stored. So it can be replayed.
local function complement(key, delivery)
  local name = base .. ':l:' .. key
  if redis.call('HGET', name, 'body') ~= '' then return end
  pass_when_full()
  redis.call('HSET', name, 'type', delivery[3], 'received', delivery[4], 'body', delivery[5])
end

-- Keeps a delivery. States in which none is kept: FREE.keep, FREE.keep_until, FREE.keep_in_flight,
-- FREE.keep_in_flight_until, CLAIMED.keep, CLAIMED.keep_until, CLAIMED.keep_in_flight, CLAIMED.keep_in_flight_until.
-- States in which the sender may send the event again: it will not any more (KEPT_FREE.keep, KEPT_FREE.keep_in_flight,
-- KEPT_CLAIMED.keep, KEPT_CLAIMED.keep_in_flight), or it may until another time, which counts if it is earlier, or with
-- `renew` if it is later (KEPT_FREE.keep_until, KEPT_FREE.keep_in_flight_until, KEPT_CLAIMED.keep_until,
-- KEPT_CLAIMED.keep_in_flight_until).
-- States in which it will not, which do not change: LAST_CHANCE.keep, LAST_CHANCE.keep_until,
-- LAST_CHANCE.keep_in_flight, LAST_CHANCE.keep_in_flight_until, INTERRUPTED.keep, INTERRUPTED.keep_until,
-- INTERRUPTED.keep_in_flight, INTERRUPTED.keep_in_flight_until.
-- States with an entry or a dead letter, which do not change: WAITING.keep, WAITING.keep_until,
-- WAITING.keep_in_flight, WAITING.keep_in_flight_until, FETCHED.keep, FETCHED.keep_until, FETCHED.keep_in_flight,
-- FETCHED.keep_in_flight_until, DEAD.keep, DEAD.keep_until, DEAD.keep_in_flight, DEAD.keep_in_flight_until,
-- REPLAYED.keep, REPLAYED.keep_until, REPLAYED.keep_in_flight, REPLAYED.keep_in_flight_until
local function keep(key, delivery, dead_at, renew, record)
  if record.endpoint or record.dead_letter == 'dead' then return end
  if record.dead_letter == 'damaged' then return complement(key, delivery) end
  if record.dead_letter == 'kept' then return end -- a delivery that arrives later does not replace it
  local state, known = tonumber(dead_at), {}
  if not state or state <= now then state = 'kept' end
  if record.dead_letter then
    if state ~= 'kept' then
      if record.dead_letter <= now or state == record.dead_letter then return end
      if (state > record.dead_letter) ~= (renew == '1') then return end
    end
    known = redis.call('HMGET', base .. ':l:' .. key, 'reason', 'error')
  end
  write_dead_letter(key, record, state, delivery, known[1] or 'interrupted', known[2] or '')
  write_record(key, record)
end

-- A row of a listing; nil if the event is not listed. The first eleven values are those of entry_reply; the last two are
-- '1' if the sender may still send the event again, and the bytes of a record that could not be read.
local function dead_letter_reply(key, with_body)
  local record = unfinished(key)
  if not is_visible(record) then return nil end
  local name = base .. ':l:' .. key
  local found = redis.call('HMGET', name,
    'endpoint', 'event_id', 'type', 'received', 'at', 'seq', 'reason', 'error')
  if not found[1] then return nil end -- a person deleted the dead letter, or a full server evicted it
  local attempts, history = record.attempt, record.history
  if is_live(record) then
    attempts = attempts - 1 -- the attempt in flight may still succeed
  elseif record.token then
    history = with_failure(history, attempts, record.ends, INTERRUPTED)
  end
  found[9] = sender_retries(record) and '1' or '0'
  found[10] = with_body and redis.call('HGET', name, 'record') or ''
  local body = with_body and redis.call('HGET', name, 'body') or ''
  return {found[1], found[2], found[3], found[4], body, tostring(attempts), record.finished, history,
    record.outstanding, unpack(found, 5)}
end

-- Arguments: key, token, the 5 parts of a delivery, when it becomes a dead letter or '', and '1' if a later time counts.
function ops.keep(arg)
  local key, record = arg[1], owned(arg[1], arg[2])
  if not record then return LOST end
  keep(key, {unpack(arg, 3, 7)}, arg[8], arg[9], record)
  return HELD
end

-- Arguments: key, the 5 parts of a delivery, the Unix time when it becomes a dead letter ('': now), and '1' if a later
-- time counts.
function ops.keep_in_flight(arg)
  local key = arg[1]
  local record = record_of(key) or new_record()
  if record.done_until then return HELD end -- DONE.keep_in_flight, DONE.keep_in_flight_until
  keep(key, {unpack(arg, 2, 6)}, arg[7], arg[8], record)
  return HELD
end

-- Arguments: key.
function ops.dead_letter(arg)
  return dead_letter_reply(arg[1], true) or 'N'
end

-- Arguments: endpoint or '', 5 filters (filters_of), score, member, limit. Reply: the result of page_of.
function ops.dead_letters(arg)
  local index = arg[1] == '' and base .. ':x' or base .. ':x:' .. arg[1]
  local wanted = filters_of(arg, 2)
  local first = read_index('ZCOUNT', index, '-inf', '(' .. text(wanted.since))
  return page_of(index, first, page_length_for(wanted), arg[7], arg[8], tonumber(arg[9]), function(key)
    if not is_of_event(key, wanted.event_id) then return nil end
    if wanted.type ~= '' or wanted.reason ~= '' then
      local known = redis.call('HMGET', base .. ':l:' .. key, 'type', 'reason')
      if wanted.type ~= '' and known[1] ~= wanted.type then return nil end
      if wanted.reason ~= '' and known[2] ~= wanted.reason then return nil end
    end
    if not may_be_outstanding(key, wanted.outstanding) then return nil end
    local row = dead_letter_reply(key, false)
    return row and is_outstanding(row[9], wanted.outstanding) and row or nil
  end)
end
