-- Dead letters, and deliveries kept for the case that a claim ends unsettled.

-- A delivery that was kept is no dead letter while an attempt at its event still runs.
local function is_hidden(record)
  return record.letter == 'kept' and is_live(record)
end

local function is_visible(record)
  return record ~= nil and record.letter and not is_hidden(record)
end

-- `delivery` is {endpoint, event_id, type, received, body}; nil leaves what is kept.
-- Leaves the record to be written.
local function write_letter(key, record, kind, delivery, reason, failure)
  local name = base .. ':l:' .. key
  local known = redis.call('HMGET', name, 'endpoint', 'seq')
  local endpoint, seq = known[1], known[2]
  if not endpoint then
    endpoint, seq = delivery[1], next_number()
    redis.call('HSET', name, 'endpoint', endpoint, 'event_id', delivery[2], 'type', delivery[3],
      'received', delivery[4], 'body', delivery[5], 'seq', seq)
  end
  redis.call('HSET', name, 'at', text(now), 'reason', reason, 'error', failure)
  for _, index in ipairs({base .. ':x', base .. ':x:' .. endpoint}) do
    place(index, seq .. ':' .. key, text(now))
  end
  record.letter = kind
end

local function forget_letter(key)
  local name = base .. ':l:' .. key
  local known = redis.call('HMGET', name, 'endpoint', 'seq')
  redis.call('DEL', name)
  if not known[1] then return end
  place(base .. ':x', known[2] .. ':' .. key, nil)
  place(base .. ':x:' .. known[1], known[2] .. ':' .. key, nil)
end

-- FREE.keep, CLAIMED.keep, FREE.keep_in_flight, CLAIMED.keep_in_flight; in every other state there is an
-- entry or a letter: WAITING.keep, TAKEN.keep, KEPT.keep, INTERRUPTED.keep, DEAD.keep, REPLAYED.keep,
-- WAITING.keep_in_flight, TAKEN.keep_in_flight, KEPT.keep_in_flight, INTERRUPTED.keep_in_flight,
-- DEAD.keep_in_flight, REPLAYED.keep_in_flight
local function keep(key, delivery, record)
  if record.endpoint or record.letter then return end
  write_letter(key, record, 'kept', delivery, 'interrupted', '')
  write_record(key, record)
end

-- The first eleven are as in entry_reply.
local function letter_reply(key, with_body)
  local record = unfinished(key)
  if not is_visible(record) then return nil end
  local name = base .. ':l:' .. key
  local found = redis.call('HMGET', name,
    'endpoint', 'event_id', 'type', 'received', 'at', 'seq', 'reason', 'error')
  if not found[1] then return nil end -- somebody has deleted it, or a full server evicted it
  local attempts, history = record.attempt, record.history
  if is_live(record) then
    attempts = attempts - 1 -- the one under way may yet succeed
  elseif record.token then
    history = with_failure(history, attempts, record.ends, INTERRUPTED)
  end
  local body = with_body and redis.call('HGET', name, 'body') or ''
  return {found[1], found[2], found[3], found[4], body, tostring(attempts), record.finished, history,
    record.owed, unpack(found, 5)}
end

-- key, token, delivery[5]
function ops.keep(arg)
  local key, record = arg[1], owned(arg[1], arg[2])
  if not record then return LOST end
  keep(key, {unpack(arg, 3, 7)}, record)
  return HELD
end

-- key, delivery[5]
function ops.keep_in_flight(arg)
  local key = arg[1]
  local record = record_of(key) or new_record()
  if record.done_until then return HELD end -- DONE.keep_in_flight
  keep(key, {unpack(arg, 2, 6)}, record)
  return HELD
end

-- key
function ops.letter(arg)
  return letter_reply(arg[1], true) or 'N'
end

-- endpoint or '', what is wanted[5], score, member, limit
function ops.letters(arg)
  local index = arg[1] == '' and base .. ':x' or base .. ':x:' .. arg[1]
  local wanted = wanted_of(arg, 2)
  local first = read_index('ZCOUNT', index, '-inf', '(' .. text(wanted.since))
  return stretch_of(index, first, stretch_for(wanted), arg[7], arg[8], tonumber(arg[9]), function(key)
    if not is_of_event(key, wanted.event_id) then return nil end
    if wanted.type ~= '' or wanted.reason ~= '' then
      local known = redis.call('HMGET', base .. ':l:' .. key, 'type', 'reason')
      if wanted.type ~= '' and known[1] ~= wanted.type then return nil end
      if wanted.reason ~= '' and known[2] ~= wanted.reason then return nil end
    end
    if not may_owe(key, wanted.owed) then return nil end
    local row = letter_reply(key, false)
    return row and owes(row[9], wanted.owed) and row or nil
  end)
end
